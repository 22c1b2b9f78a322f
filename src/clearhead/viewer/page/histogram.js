// Weight over ever wider bins of 0, 1, 2-3, 4-7, … tokens, by distance or by position, beside uniform attention's.

import { el } from "./dom.js";
import { folded } from "./table.js";
import { percent } from "./words.js";

/** What the n-th bin holds. @param {number} n */
export function bins(n) {
  return n < 2 ? String(n) : `${2 ** (n - 1)}–${2 ** n - 1}`;
}

/** @typedef {{name: string, caption: string, table: string, what: string, title: (n: number) => string}} Said */

/** @type {(none: boolean) => Said} */
const BY_DISTANCE = (none) => ({
  name: "distance", caption: `Weight by distance, tokens back${none ? "; lines: uniform attention" : ""}`, table: "Weight by distance as a table",
  what: "tokens back", title: (n) => `${bins(n)} tokens back`,
});

const WHOLE = 8; // more bins than these have only where they begin written below them

/**
 * @param {ArrayLike<number>} values @param {ArrayLike<number> | null} none
 * @param {Said} [said]
 */
export function histogram(values, none, said = BY_DISTANCE(none !== null)) {
  let last = values.length - 1;
  while (last > 3 && values[last] < 5e-5 && !(none && none[last] >= 5e-5)) last--;
  const shown = Array.from({ length: last + 1 }, (_, n) => n);
  const top = Math.max(...shown.map((n) => Math.max(values[n], none ? none[n] : 0)), 1e-9);
  const bars = shown.map((n) => {
    const bar = el("span", { class: "column" }, el("b", { style: { height: `${(100 * values[n]) / top}%` } }));
    if (none) bar.append(el("i", { style: { bottom: `${(100 * none[n]) / top}%` } }));
    return el("span", { class: "bin", title: `${said.title(n)}: ${percent(values[n])}${none ? `, uniform ${percent(none[n])}` : ""}` }, bar, el("small", { text: shown.length <= WHOLE ? bins(n) : n < 2 ? n : `${2 ** (n - 1)}–` }));
  });
  return el("figure", { class: "histogram" },
    el("figcaption", { text: said.caption }),
    el("div", { class: "columns", "aria-hidden": "true" }, ...bars),
    folded(said.table, () => ({
      name: said.name, caption: said.caption,
      columns: [{ title: said.what }, { title: "weight", number: true, show: percent }, ...(none ? [{ title: "uniform", number: true, show: percent }] : [])],
      rows: Array.from({ length: values.length }, (_, n) => [bins(n), values[n], ...(none ? [none[n]] : [])]),
    })));
}
