// One query and one key: what they are multiplied to, and which weight comes of it.

import { el } from "../dom.js";
import { box } from "./controls.js";
import { say } from "./frame.js";
import { matrix, scrolling } from "./matrix.js";
import { fixed, largest } from "./numbers.js";
import { colourCell, ofSigned } from "./theme.js";

/** A vector as coloured cells. @param {number[]} values @param {number} top */
function stripOf(values, top) {
  return el("div", { class: "strip" }, ...values.map((value) => {
    const cell = el("i", { title: fixed(value) });
    colourCell(cell, () => ofSigned(value, top));
    return cell;
  }));
}

/**
 * The rest of the sentence, from the score to the weight. @param {number} D @param {number[]} scores of one query
 * @param {number[]} weights @param {number} i @param {number} j @returns {(string | Node)[]}
 */
function verdict(D, scores, weights, i, j) {
  if (j > i) return [`Divided by √${D}: ${fixed(scores[j])}. But token ${j} is the future of token ${i}: the mask puts -inf in its place, and the weight is exactly `, el("b", { text: "0" }), "."];
  const root = Math.sqrt(D);
  const total = scores.slice(0, i + 1).reduce((sum, z) => sum + Math.exp(z), 0);
  return [`Divided by √${D} = ${fixed(root, Number.isInteger(root) ? 0 : 2)}: the score `, el("b", { text: fixed(scores[j]) }), `. e to that power is ${fixed(Math.exp(scores[j]))}; the row's sum is ${fixed(total)}; so the weight is `, el("b", { text: fixed(weights[j]) }), "."];
}

/** @param {import("./types.js").Try} given @param {import("./types.js").Around} around */
export function tryPair(given, around) {
  /** @type {{q: number[][], k: number[][], scores: number[][], weights: number[][]}} */
  const { q, k, scores, weights } = given.data;
  const [T, D] = [weights.length, q[0].length];
  const who = around.names(T);
  const grid = matrix({ name: "weights", values: weights, shade: "weight", rows: who, columns: who, decimals: T > 8 ? 2 : 3 });
  const out = el("div", { class: "readout" });

  /** @param {number} i @param {number} j @returns what is said of the two */
  const show = (i, j) => {
    for (const cell of grid.cells.flat()) cell.classList.remove("pointed");
    grid.cells[i][j].classList.add("pointed");
    const products = q[i].map((value, d) => value * k[j][d]);
    const dot = fixed(products.reduce((sum, value) => sum + value, 0));
    const top = largest([q[i], k[j]]);
    out.replaceChildren(
      el("p", {}, "Token ", el("b", { text: who[i] }), " asks, token ", el("b", { text: who[j] }), " answers."),
      el("div", { class: "strips" }, el("span", { text: `query ${i}` }), stripOf(q[i], top), el("span", { text: `key ${j}` }), stripOf(k[j], top),
        el("span", { text: "product" }), stripOf(products, largest([products]))),
      el("p", {}, "The products add up to ", el("b", { text: dot }), "."),
      el("p", {}, ...verdict(D, scores[i], weights[i], i, j)));
    return `Query ${who[i]}, key ${who[j]}: product ${dot}, score ${fixed(scores[i][j])}, weight ${j <= i ? fixed(weights[i][j]) : "0, hidden"}`;
  };
  grid.table.addEventListener("point", (event) => {
    const [i, j] = /** @type {CustomEvent<import("./matrix.js").At>} */ (event).detail;
    const text = show(i, j);
    if (grid.table.contains(document.activeElement)) say(text);
  });
  const last = weights[T - 1];
  show(T - 1, last.indexOf(Math.max(...last)));
  return box(given, el("div", { class: "pair" }, scrolling(grid.table), out));
}
