// What one head does over a corpus: its roles and measured quantities, with errors over documents and nulls.

import { el } from "./dom.js";
import { gauge } from "./card.js";
import { roleColour } from "./colour.js";
import { measuresOf } from "./quantities.js";
import { fixed } from "./words.js";

/** @typedef {import("./types.js").Head} Head */

/** Roles, each with its standard error over documents and its null. @param {Head} head */
export function rolesOverTexts(head) {
  if (!head.roles.length) return el("p", { class: "soft", text: "No role was measured: --observables left out what roles are told by." });
  return el("table", { class: "roles" },
    el("caption", { text: "Roles over the corpus: mean over documents ± standard error" }),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "role" }), el("th", { scope: "col", class: "n", text: "score" }), el("th", { scope: "col", class: "n", text: "± error" }), el("th", { scope: "col", class: "n", text: "uniform" }))),
    el("tbody", {}, ...head.roles.map((r) => el("tr", { class: r.labelled ? "is" : null },
      el("th", { scope: "row" }, r.role, r.labelled ? " ✓" : null, gauge(r.score, r.null, roleColour(r.role))),
      el("td", { class: "n", text: fixed(r.score, 3) }),
      el("td", { class: "n soft", text: fixed(r.error, 3) }),
      el("td", { class: "n soft", text: fixed(r.null, 3) })))));
}

/** Measured quantities with errors and nulls. @param {import("./app.js").App} app @param {Head} head */
export function quantitiesOverTexts(app, head) {
  const measures = measuresOf(app.doc).filter(({ key }) => app.doc.quantities.some((q) => q.key === key));
  return el("table", { class: "quantities" },
    el("caption", { text: "Measured: mean over documents ± standard error" }),
    el("thead", {}, el("tr", {}, ...["quantity", "mean", "± error", "uniform"].map((text, n) => el("th", { scope: "col", class: n ? "n" : null, text })))),
    el("tbody", {}, ...measures.map((m) => el("tr", {},
      el("th", { scope: "row", title: m.about, text: m.unit ? `${m.label}, ${m.unit}` : m.label }),
      el("td", { class: "n", text: fixed(m.of(head)) }),
      el("td", { class: "n soft", text: fixed(head.errors?.[m.key]) }),
      el("td", { class: "n soft", text: m.null(head) === null ? "" : fixed(m.null(head)) })))));
}
