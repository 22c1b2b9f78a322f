// The cache: a key joins it with every token, and a query meets all that are there.

import { el } from "../dom.js";
import { box, player, slider } from "./controls.js";
import { say } from "./frame.js";
import { matrix, scrolling } from "./matrix.js";

/** @param {import("./types.js").Try} given @param {import("./types.js").Around} around */
export function tryCache(given, around) {
  /** @type {{keys: number[][], rows: number[][]}} */
  const { keys, rows } = given.data;
  const T = rows.length;
  const who = around.names(T);
  let at = Math.min(2, T - 1);
  const [left, right, words] = [el("div", { class: "grid" }), el("div", { class: "grid" }), el("p")];
  const range = slider("Token", 0, T - 1, at, (t) => show(t));
  const over = () => at + 1 >= T;
  const play = player(() => {
    if (over()) return false;
    show(at + 1);
    return true;
  }, () => {
    if (over()) show(0);
  });
  const caption = (/** @type {string} */ name, /** @type {string} */ note) => el("figcaption", {}, el("b", { text: name }), el("span", { text: note }));

  /** @param {number} t */
  function show(t) {
    at = t;
    range.input.value = String(t);
    range.output.textContent = who[t];
    const there = who.slice(0, t + 1);
    const cached = matrix({ name: "keys in the cache", values: keys.slice(0, t + 1), rows: there, decimals: 2 });
    const wide = rows.slice(0, t + 1).map((row) => [...row, ...Array(T - row.length).fill(null)]);
    const grid = matrix({ name: "weights", values: wide, shade: "weight", rows: there, columns: who, decimals: 2 });
    for (const { table } of [cached, grid]) table.tBodies[0].rows[t].classList.add("fresh");
    for (const cell of [...grid.cells[t].slice(0, t + 1), ...cached.cells[t]]) cell.classList.add("now");
    left.replaceChildren(caption("keys", `${t + 1} × ${keys[0].length}, head 0`), scrolling(cached.table));
    right.replaceChildren(caption("weights", "one row a token"), scrolling(grid.table));
    words.replaceChildren("Token ", el("b", { text: who[t] }), ` arrives: its key joins ${t === 0 ? "an empty cache" : `${t} before it`}, its query meets ${t + 1} key${t ? "s" : ""}. ${t + 1} dot products; without a cache all ${((t + 1) * (t + 2)) / 2} up to here would be computed again.`);
    say(words.textContent ?? "");
  }
  show(at);
  return box(given, el("div", { class: "controls" }, range.label, play), words, el("div", { class: "pair" }, left, right));
}
