// What one head does: its role scores and its measured quantities beside what uniform attention has, errors where they are known.

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
function gauge(x, none, colour) {
  const share = (/** @type {number | null} */ y) => `${100 * Math.min(1, Math.max(0, y ?? 0))}%`;
  const made = el("span", { class: "gauge", "aria-hidden": "true" }, el("b", { style: { width: share(x), background: colour } }));
  if (none !== null) made.append(el("i", { style: { left: `calc(${share(none)} - 1px)` } }));
  return made;
}

/**
 * A table of what is known of a head, a line a thing. @param {string} kind @param {string} caption @param {string[]} titles
 * @param {{is?: boolean, name: (Node | string | null)[], about?: string, numbers: string[]}[]} lines the first number stands out
 */
function lined(kind, caption, titles, lines) {
  return el("table", { class: kind },
    el("caption", { text: caption }),
    el("thead", {}, el("tr", {}, ...titles.map((text, n) => el("th", { scope: "col", class: n ? "n" : null, text })))),
    el("tbody", {}, ...lines.map(({ is, name, about, numbers }) => el("tr", { class: is ? "is" : null },
      el("th", { scope: "row", title: about ?? null }, ...name),
      ...numbers.map((text, n) => el("td", { class: n ? "n soft" : "n", text }))))));
}

/** Roles with their nulls; over a corpus with errors. @param {Head} head @param {boolean} [corpus] */
export function roleTable(head, corpus = false) {
  if (corpus && !head.roles.length) return el("p", { class: "soft", text: "No role was measured: --observables left out what roles are told by." });
  return lined("roles", corpus ? "Roles over the corpus: mean over documents ± standard error" : "Roles on this text",
    ["role", "score", ...(corpus ? ["± error"] : []), "uniform"],
    head.roles.map((r) => {
      const said = (/** @type {number | null | undefined} */ x) => fixed(x, corpus ? 3 : 2);
      return {
        is: r.labelled, name: [r.role, r.labelled ? " ✓" : null, gauge(r.score, r.null, roleColour(r.role))],
        numbers: [said(r.score), ...(corpus ? [said(r.error)] : []), said(r.null)],
      };
    }));
}

/** Quantities with their nulls, where uniform attention's is known. @param {import("./app.js").App} app @param {Head} head @param {boolean} [corpus] */
export function quantityTable(app, head, corpus = false) {
  const measures = measuresOf(app.doc).filter(({ key }) => app.doc.quantities.some((q) => q.key === key));
  return lined("quantities", corpus ? "Measured: mean over documents ± standard error" : "Measured",
    ["quantity", ...(corpus ? ["mean", "± error"] : ["this head"]), "uniform"],
    measures.map((m) => ({
      name: [m.unit ? `${m.label}, ${m.unit}` : m.label], about: m.about,
      numbers: [fixed(m.of(head)), ...(corpus ? [fixed(head.errors?.[m.key])] : []), m.null(head) === null ? "" : fixed(m.null(head))],
    })));
}
