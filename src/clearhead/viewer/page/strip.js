// How a quantity spreads, as a line, a box and a mark; the numbers stand beside it.

import { el } from "./dom.js";
import { fixed } from "./words.js";

/** @param {any} row quantiles by name, and `uniform` @param {[number, number]} [range] from where to where the picture runs */
export function strip(row, range) {
  if (!range || row.q50 === null) return el("span", { class: "soft", text: "none" });
  const [low, high] = range;
  const at = (/** @type {number} */ x) => 100 * Math.min(1, Math.max(0, high > low ? (x - low) / (high - low) : 0.5));
  const bar = (/** @type {string} */ kind, /** @type {number} */ from, /** @type {number} */ to) =>
    el("i", { class: kind, style: { left: `${at(from)}%`, width: `${at(to) - at(from)}%` } });
  const made = el("span", { class: "strip", role: "img", "aria-label": `5 to 95 of 100: ${fixed(row.q05)} to ${fixed(row.q95)}; 25 to 75: ${fixed(row.q25)} to ${fixed(row.q75)}; median ${fixed(row.q50)}`, title: `from ${fixed(low)} to ${fixed(high)}` },
    bar("line", row.q05, row.q95), bar("box", row.q25, row.q75), bar("mark", row.q50, row.q50));
  if (row.uniform !== null) made.append(bar("uniform", row.uniform, row.uniform));
  return made;
}
