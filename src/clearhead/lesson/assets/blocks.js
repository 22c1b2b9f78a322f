// What a page is made of, each kind drawn in its way.

import { el } from "../dom.js";
import { figure, scrolling } from "./matrix.js";
import { plot } from "./plot.js";
import { tryCache } from "./try-cache.js";
import { tryEdge } from "./try-edge.js";
import { tryPair } from "./try-pair.js";
import { tryScale } from "./try-scale.js";
import { tryTiles } from "./try-tiles.js";

/** @typedef {import("./types.js").Around} Around */

/** @type {Record<string, (given: import("./types.js").Try, around: Around) => HTMLElement>} */
const TRIES = { pair: tryPair, edge: tryEdge, scale: tryScale, tiles: tryTiles, cache: tryCache };

/** @param {import("./types.js").Code} pieces */
function coloured(pieces) {
  return el("code", {}, ...pieces.map(([kind, text]) => (kind ? el("span", { class: kind, text }) : text)));
}

/** Words with `code` and **terms** among them. @param {string} text */
function prose(text) {
  return text.split(/(`[^`]+`|\*\*.+?\*\*)/).filter(Boolean).map((part) => {
    if (part.startsWith("`")) return el("code", { text: part.slice(1, -1) });
    return part.startsWith("**") ? el("b", { text: part.slice(2, -2) }) : part;
  });
}

/** @param {string} text */
function isNumber(text) {
  return /^(-?[\d,.]+(e-?\d+)?( MiB|%| ms| µs| s)?|-inf|)$/.test(text);
}

/** Numbers stand at the right; in a table with prose, the second column links to the page the first one names. @param {import("./types.js").Table} given */
function tableOf({ head, rows, caption, wide }) {
  const right = head.map((_, n) => (!wide && rows.every((row) => isNumber(row[n])) ? "r" : null));
  const cell = (/** @type {string[]} */ row, /** @type {number} */ n) => (wide && n === 1 ? el("a", { href: `#${row[0]}`, text: row[n] }) : row[n]);
  return scrolling(el("table", { class: head.length === 1 ? "t mono" : "t" },
    caption ? el("caption", { text: caption }) : null,
    head.some(Boolean) ? el("thead", {}, el("tr", {}, ...head.map((text, n) => el("th", { class: right[n], scope: "col", text })))) : null,
    el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map((_, n) => el("td", { class: right[n] }, cell(row, n))))))));
}

/** @param {import("./types.js").Block} block @param {Around} around */
export function draw(block, around) {
  switch (block.is) {
    case "say":
      return el("p", {}, ...prose(block.text));
    case "source":
      return el("figure", { class: "source" }, el("figcaption", { text: block.file }), el("pre", { tabindex: 0 }, coloured(block.code)));
    case "ran":
      return el("div", { class: "ran" }, el("pre", {}, coloured(block.code)));
    case "grids":
      return el("div", { class: "grids" }, ...block.items.map(figure));
    case "equal":
      return el("p", { class: block.holds ? "equal" : "equal not" }, el("strong", { text: block.holds ? "equal" : "NOT equal" }), block.what,
        el("span", {}, "largest difference ", el("em", { text: block.difference ? block.difference.toExponential(1) : "0" })));
    case "table":
      return tableOf(block);
    case "cost":
      return el("section", { class: "cost" }, el("h2", { text: "What it costs as T grows" }), el("p", { text: `One sequence, measured ${around.measured}.` }),
        el("div", { class: "pair" }, tableOf({ head: block.head, rows: block.rows }), plot(block)), el("p", { class: "note", text: block.note }));
    case "try":
      return TRIES[block.kind](block, around);
  }
}
