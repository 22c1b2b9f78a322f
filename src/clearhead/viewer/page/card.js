// What one head does: its role scores beside their nulls, its measured quantities, its small map.

import { el } from "./dom.js";
import { roleColour } from "./colour.js";
import { measuresOf } from "./quantities.js";
import { fixed } from "./words.js";

/** @typedef {import("./types.js").Head} Head */

/** @param {string | null} role */
export function dot(role) {
  return el("i", { class: "dot", "aria-hidden": "true", style: { background: roleColour(role) } });
}

/** A bar from 0 to 1 with the null as a line across it. @param {number | null} x @param {number | null} none @param {string} colour */
export function gauge(x, none, colour) {
  const share = (/** @type {number | null} */ y) => `${100 * Math.min(1, Math.max(0, y ?? 0))}%`;
  const made = el("span", { class: "gauge", "aria-hidden": "true" }, el("b", { style: { width: share(x), background: colour } }));
  if (none !== null) made.append(el("i", { style: { left: `calc(${share(none)} - 1px)` } }));
  return made;
}

/** Roles with their nulls. @param {Head} head */
export function roleTable(head) {
  return el("table", { class: "roles" },
    el("caption", { text: "Roles on this text" }),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "role" }), el("th", { scope: "col", class: "n", text: "score" }), el("th", { scope: "col", class: "n", text: "uniform" }))),
    el("tbody", {}, ...head.roles.map((r) => el("tr", { class: r.labelled ? "is" : null },
      el("th", { scope: "row" }, r.role, r.labelled ? " ✓" : null, gauge(r.score, r.null, roleColour(r.role))),
      el("td", { class: "n", text: fixed(r.score) }),
      el("td", { class: "n soft", text: fixed(r.null) })))));
}

/** Quantities with their nulls, where uniform attention's value is known. @param {import("./app.js").App} app @param {Head} head */
export function quantityTable(app, head) {
  const measures = measuresOf(app.doc).filter(({ key }) => app.doc.quantities.some((q) => q.key === key));
  return el("table", { class: "quantities" },
    el("caption", { text: "Measured" }),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "quantity" }), el("th", { scope: "col", class: "n", text: "this head" }), el("th", { scope: "col", class: "n", text: "uniform" }))),
    el("tbody", {}, ...measures.map((m) => el("tr", {},
      el("th", { scope: "row", title: m.about, text: m.unit ? `${m.label}, ${m.unit}` : m.label }),
      el("td", { class: "n", text: fixed(m.of(head)) }),
      el("td", { class: "n soft", text: m.null(head) === null ? "" : fixed(m.null(head)) })))));
}
