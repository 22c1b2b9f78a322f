// Matrices: a table of numbers, one stop for Tab, arrows inside.

import { el } from "../dom.js";
import { fixed, largest } from "./numbers.js";
import { colourCell, ofSigned, ofWeight } from "./theme.js";

const WIDE = 10; // columns; more get smaller numbers

/** @typedef {import("./types.js").Grid} Grid */
/** @typedef {import("./types.js").Matrix} Matrix */
/** @typedef {[number, number]} At row and column */
/** @typedef {{table: HTMLTableElement, cells: HTMLTableCellElement[][], at: (from: EventTarget | null) => At | null}} Drawn */

/**
 * The table says which cell somebody is at in an event "point", whose detail is its row and column.
 * @param {Matrix} given @returns {Drawn}
 */
export function matrix({ name, values, shade = "signed", rows = [], columns = [], decimals = 4 }) {
  const small = values[0].length > WIDE;
  const places = small ? Math.min(decimals, 2) : decimals;
  const top = largest(values);

  /** @param {import("./types.js").Cell} value @param {boolean} first */
  const cellOf = (value, first) => {
    const nothing = value === "-inf" || (value !== null && shade === "weight" && value < 0.5 * 0.1 ** places);
    const kind = value === null ? "gone" : nothing ? "none" : null;
    const text = small && shade === "weight" && value === 0 ? "" : fixed(value, places);
    const cell = el("td", { role: "gridcell", class: kind, tabindex: first ? 0 : -1, text });
    if (kind !== null || typeof value !== "number") return cell; // the table's own ground
    if (shade === "weight") colourCell(cell, () => ofWeight(value));
    else if (shade === "signed") colourCell(cell, () => (Math.abs(value) / top < 0.04 ? null : ofSigned(value, top)));
    return cell;
  };
  const cells = values.map((row, i) => row.map((value, j) => cellOf(value, i === 0 && j === 0)));

  const above = columns.map((text) => el("th", { scope: "col", text, title: text }));
  const beside = rows.map((text) => el("th", { scope: "row", text, title: text }));
  const table = el("table", { class: small ? "m small" : "m", role: "grid", "aria-label": name },
    columns.length ? el("thead", {}, el("tr", {}, rows.length ? el("td", { class: "gone" }) : null, ...above)) : null,
    el("tbody", {}, ...cells.map((row, i) => el("tr", {}, beside[i] ?? null, ...row))));

  const at = (/** @type {EventTarget | null} */ from) => {
    const cell = from instanceof Element ? from.closest("td") : null;
    if (cell === null) return null;
    for (let i = 0; i < cells.length; i++) {
      const j = cells[i].indexOf(cell);
      if (j >= 0) return /** @type {At} */ ([i, j]);
    }
    return null;
  };
  letPoint({ table, cells, at }, beside, above);
  letWalk({ table, cells, at });
  return { table, cells, at };
}

/** Whoever comes to a cell, by pointer or by keyboard. @param {Drawn} drawn @param {Element[]} beside @param {Element[]} above */
function letPoint({ table, at }, beside, above) {
  const point = (/** @type {Event} */ event) => {
    const found = at(event.target);
    if (!found) return;
    for (const head of [...beside, ...above]) head.classList.remove("pointed");
    beside[found[0]]?.classList.add("pointed");
    above[found[1]]?.classList.add("pointed");
    table.dispatchEvent(new CustomEvent("point", { detail: found }));
  };
  table.addEventListener("pointerover", point);
  table.addEventListener("focusin", point);
}

/** The arrow keys. @param {Drawn} drawn */
function letWalk({ table, cells, at }) {
  table.addEventListener("keydown", (event) => {
    const found = at(event.target);
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!found || !step || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const next = cells[found[0] + step[0]]?.[found[1] + step[1]];
    if (!next || next.className === "gone") return;
    for (const cell of cells.flat()) cell.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
}

/** What may be wider than the page. @param {...Node} inner */
export function scrolling(...inner) {
  return el("div", { class: "scroll" }, ...inner);
}

/** A matrix under its name, its shape and what to look for. @param {Grid} grid */
export function figure(grid) {
  return el("figure", { class: "grid" },
    el("figcaption", {}, el("b", { text: grid.name }), el("span", { text: grid.shape }), el("span", { text: grid.note })),
    scrolling(matrix(grid).table));
}
