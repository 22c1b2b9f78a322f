// Scores tile by tile, as online softmax passes over them, with what it carries: the largest score and the sum.

import { el } from "../dom.js";
import { box, oneOf, player, slider } from "./controls.js";
import { say } from "./frame.js";
import { matrix, scrolling } from "./matrix.js";
import { fixed, largest } from "./numbers.js";
import { colourCell, ofSigned } from "./theme.js";

/** @typedef {import("./types.js").Cell} Cell */
/** @typedef {{row: number, column: number, scores: (number | null)[][], top: (number | null)[], total: number[]}} Tile null for -inf */

/**
 * The tiles up to one, which is in colour. @param {Tile[]} all @param {number} n @param {number} size @param {string[]} who
 */
function passed(all, n, size, who) {
  const now = all[n];
  const values = who.map(() => who.map(() => /** @type {Cell} */ (null)));
  const carried = who.map(() => /** @type {Cell[]} */ ([null, null]));
  for (const { row, column, scores, top, total } of all.slice(0, n + 1)) {
    scores.forEach((line, i) => line.forEach((z, j) => (values[row + i][column + j] = z ?? "-inf")));
    top.forEach((m, i) => (carried[row + i] = [m, total[i]]));
  }
  const { table, cells } = matrix({ name: "scores, tile by tile", values, shade: "plain", rows: who, columns: who, decimals: 2 });
  table.classList.add("even");
  const strongest = largest(all.flatMap((tile) => tile.scores));
  const made = new Set(all.map((tile) => `${tile.row},${tile.column}`));
  const tileOf = (/** @type {number} */ x) => x - (x % size);
  cells.forEach((row, i) => row.forEach((cell, j) => {
    const value = values[i][j];
    cell.classList.remove("gone");
    if (tileOf(i) === now.row && tileOf(j) === now.column) {
      cell.classList.add("now");
      if (typeof value === "number") colourCell(cell, () => ofSigned(value, strongest));
      return;
    }
    const ever = made.has(`${tileOf(i)},${tileOf(j)}`);
    cell.classList.add(ever ? "none" : "never");
    cell.textContent = ever && value !== null ? "·" : "";
  }));
  for (const [k, name] of ["m", "l"].entries()) {
    table.tHead?.rows[0].append(el("th", { class: "carry", text: name }));
    [...table.tBodies[0].rows].forEach((row, i) => row.append(el("td", { class: tileOf(i) === now.row ? "carry" : "carry dim", text: fixed(carried[i][k], 3) })));
  }
  return table;
}

/** What a tile changed for its last query. @param {Tile[]} all @param {number} n @param {number} i the query */
function change(all, n, i) {
  const now = all[n];
  const before = all.slice(0, n).filter((tile) => tile.row === now.row).at(-1);
  if (!before) return " A new row of tiles: m starts at -inf, l at 0.";
  const [was, is] = [Number(before.top[i - now.row]), Number(now.top[i - now.row])];
  if (is <= was) return ` For query ${i} no larger score turned up: the tile is added as it is.`;
  return ` For query ${i} the largest score rose from ${fixed(was, 3)} to ${fixed(is, 3)}: all that was summed shrinks by e^(${fixed(was - is, 3)}) = ${fixed(Math.exp(was - is), 3)}, then this tile is added.`;
}

/** @param {import("./types.js").Try} given @param {import("./types.js").Around} around */
export function tryTiles(given, around) {
  /** @type {{T: number, sizes: Record<string, Tile[]>}} */
  const { T, sizes } = given.data;
  const who = around.names(T);
  let [size, at] = [sizes["4"] ? 4 : 2, 0];
  const [left, words] = [scrolling(), el("p")];
  const range = slider("Step", 0, 1, 0, (n) => show(n));
  const over = () => at + 1 >= sizes[size].length;
  const play = player(() => {
    if (over()) return false;
    show(at + 1);
    return true;
  }, () => {
    if (over()) show(0);
  });
  const choose = oneOf("tile", Object.keys(sizes).map(Number), size, (option) => {
    size = option;
    show(0);
  });

  /** @param {number} n */
  function show(n) {
    at = n;
    const all = sizes[size];
    const { row, column } = all[n];
    range.input.max = String(all.length - 1);
    range.input.value = String(n);
    range.output.textContent = `${n + 1} of ${all.length}`;
    left.replaceChildren(passed(all, n, size, who));
    const i = Math.min(T, row + size) - 1;
    words.replaceChildren(el("b", { text: `Queries ${row} to ${i}, keys ${column} to ${Math.min(T, column + size) - 1}.` }), change(all, n, i));
    say(words.textContent ?? "");
  }
  show(0);
  return box(given, el("div", { class: "controls" }, range.label, play, choose), words, left);
}
