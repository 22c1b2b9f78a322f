// Widths and scales: how a scale sharpens or flattens the weights of one query.

import { el } from "../dom.js";
import { bars, box, oneOf } from "./controls.js";
import { say } from "./frame.js";
import { fixed } from "./numbers.js";

/** @typedef {{D: number, scale: string, variance: number, predicted: number, strongest: number, weights: number[]}} Case */

/** @type {Record<string, string>} */
const MEANING = {
  "1": "Unscaled, softmax is nearly a choice of one.",
  "1/D": "Divided by D, it hardly tells keys apart.",
  "1/√D": "The right one: the same spread at every width.",
};
const MISTAKEN = "The commonest mistake: the root of the width of x, here four heads wide.";

/** @param {import("./types.js").Try} given */
export function tryScale(given) {
  /** @type {Case[]} */
  const cases = given.data.cases;
  let [D, scale] = [64, "1/√D"];
  const [right, readout] = [el("div", { class: "bars" }), el("div", { class: "readout" })];
  const show = () => {
    const found = cases.find((each) => each.D === D && each.scale === scale);
    if (!found) return;
    const strongest = (100 * found.strongest).toFixed(0);
    right.replaceChildren(...bars(found.weights.map((w, n) => ({ name: `key ${n + 1}`, value: w, text: fixed(w, 3) })), 1));
    readout.replaceChildren(
      el("p", {}, "Variance of the scores: measured ", el("b", { text: fixed(found.variance, 3) }), ", predicted D·c² = ", el("b", { text: fixed(found.predicted, 3) }), "."),
      el("p", {}, "The strongest of 16 keys gets ", el("b", { text: `${strongest} %` }), " on average; equal shares would be 6 %."),
      el("p", { text: MEANING[scale] ?? MISTAKEN }));
    say(`Width ${D}, scale ${scale}: variance ${fixed(found.variance, 3)}, strongest ${strongest} percent`);
  };
  const widths = oneOf("D", [...new Set(cases.map((each) => each.D))], D, (option) => {
    D = option;
    show();
  });
  const scales = oneOf("scale c", [...new Set(cases.map((each) => each.scale))], scale, (option) => {
    scale = option;
    show();
  });
  show();
  return box(given, el("div", { class: "controls" }, widths, scales), el("div", { class: "pair" }, right, readout));
}
