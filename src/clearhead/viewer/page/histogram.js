// How far back a head looks: the weight at distances of 0, 1, 2-3, 4-7, … tokens, beside uniform attention's.

import { el } from "./dom.js";
import { folded } from "./table.js";
import { percent } from "./words.js";

/** @param {import("./app.js").App} _ @param {ArrayLike<number>} values @param {ArrayLike<number> | null} none */
export function histogram(_, values, none) {
  const name = (/** @type {number} */ n) => (n < 2 ? String(n) : `${2 ** (n - 1)}–${2 ** n - 1}`);
  let last = values.length - 1;
  while (last > 3 && values[last] < 5e-5) last--;
  const shown = Array.from({ length: last + 1 }, (_, n) => n);
  const top = Math.max(...shown.map((n) => Math.max(values[n], none ? none[n] : 0)), 1e-9);
  const bars = shown.map((n) => {
    const bar = el("span", { class: "column" }, el("b", { style: { height: `${(100 * values[n]) / top}%` } }));
    if (none) bar.append(el("i", { style: { bottom: `${(100 * none[n]) / top}%` } }));
    return el("span", { class: "bin", title: `${name(n)} tokens back: ${percent(values[n])}${none ? `, uniform ${percent(none[n])}` : ""}` }, bar, el("small", { text: name(n) }));
  });
  return el("figure", { class: "histogram" },
    el("figcaption", { text: `Weight by distance, tokens back${none ? "; lines: uniform attention" : ""}` }),
    el("div", { class: "columns", "aria-hidden": "true" }, ...bars),
    folded("Weight by distance as a table", () => ({
      name: "distance", caption: "Mean weight by distance",
      columns: [{ title: "tokens back" }, { title: "weight", number: true, show: percent }, ...(none ? [{ title: "uniform", number: true, show: percent }] : [])],
      rows: Array.from({ length: values.length }, (_, n) => [name(n), values[n], ...(none ? [none[n]] : [])]),
    })));
}
