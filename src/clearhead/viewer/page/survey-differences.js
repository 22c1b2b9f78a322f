// Two surveys side by side: which heads do otherwise, by how much, and how sure that is.

import { choice, el, renew } from "./dom.js";
import { css } from "./colour.js";
import { dot } from "./card.js";
import { folded, table } from "./table.js";
import { rampBetween, valueGrid } from "./valuegrid.js";
import { fixed, counted, mark } from "./words.js";

const SUREST = 25; // of the surest differences; all are in the folded table

/** @param {import("./app.js").App} app @returns {import("./app.js").View} */
export function differencesView(app) {
  if (app.traces.length < 2) {
    const why = "Comparing takes two surveys of models of the same shape: clearhead view base tuned";
    return { element: el("section", {}, el("h2", { text: "Differences" }), el("p", { text: why })), update() {}, close() {}, redraw() {} };
  }
  const { doc } = app;
  /** head, observable, base, other, difference, standard error, z @type {any[][]} */
  let rows = [];
  /** @type {[string, string | null, string | null][]} */
  let roles = [];
  /** @type {[string, string][]} */
  let observables = [];
  let there = "";
  const number = () => {
    const wanted = Number(app.place.with ?? -1);
    return wanted >= 0 && wanted < app.traces.length && wanted !== app.trace ? wanted : app.traces.find(({ trace }) => trace !== app.trace)?.trace ?? 0;
  };
  const title = el("h2", { id: "differences-title", text: "Differences" });
  const tools = el("div", { class: "tools" });
  const grid = valueGrid(app, "Heads by how much they differ; arrow keys move, Enter opens", () => grid.element.clientWidth || 360);
  const legend = el("div", { class: "legend" });
  const list = el("div", { class: "scroll surest", tabindex: "0", role: "region", "aria-label": "The surest differences" });
  const turned = el("div");
  const aside = el("aside", { "aria-label": "The chosen head in both surveys" });
  const numbers = (/** @type {string[]} */ titles) => titles.map((title) => ({ title, number: true, show: (/** @type {number | null} */ x) => (title === "z" ? sure(x) : fixed(x, 3)) }));
  const columns = [{ title: "head" }, { title: "observable" }, ...numbers(["here", "there", "change", "± error", "z"])];
  const few = columns.filter(({ title: said }) => said !== "± error");
  const named = (/** @type {any[]} */ row) => [row[0], observables.find(([key]) => key === row[1])?.[1] ?? row[1], ...row.slice(2)];
  const all = folded("All differences as a table", () => ({
    name: "differences", caption: "z is the change divided by its standard error; the surest first", columns,
    rows: rows.map(named), pick: ([head]) => app.go({ head }), picks: ([head, what]) => `${head}, ${what}: show ${head}`,
  }));
  const element = el("div", { class: "beside" },
    el("section", { "aria-labelledby": "differences-title" }, el("div", { class: "title" }, title), tools,
      el("div", { class: "changed apart" }, el("div", {}, grid.element, legend, turned), list), all), aside);
  const by = () => (observables.some(([key]) => key === app.place.by) ? app.place.by : "");

  const load = async () => {
    const asked = number();
    element.setAttribute("aria-busy", "true");
    try {
      const { facts } = await app.source.ask("differences", { a: app.trace, b: asked });
      if (asked !== number()) return;
      ({ roles, observables } = facts);
      // JSON has no infinity: a change that has no error at all.
      rows = facts.rows.map((/** @type {any[]} */ row) => (row[6] === null && row[5] === 0 && row[4] ? [...row.slice(0, 6), Math.sign(row[4]) * Infinity] : row));
      there = app.traces.find(({ trace }) => trace === number())?.name ?? "";
      title.textContent = `${app.traces[app.trace].name} (here) and ${there} (there)`;
      draw();
    } catch (error) {
      app.fail(error);
    }
    element.removeAttribute("aria-busy");
  };

  /** What colours each head: the change of one observable, or the surest of its changes. */
  const shown = () => {
    /** @type {Map<string, any[]>} */
    const found = new Map();
    for (const row of rows) if ((!by() || row[1] === by()) && !found.has(row[0])) found.set(row[0], row); // rows come the surest first
    return found;
  };

  const draw = () => {
    renew(tools,
      ...(app.traces.length > 2 ? [choice("With", app.traces.filter(({ trace }) => trace !== app.trace).map(({ trace, name }) => [String(trace), name]), String(number()), (other) => app.go({ with: other }))] : []),
      choice("Change of", [["", "the surest change (z)"], ...observables], by(), (key) => app.go({ by: key })));
    const found = shown();
    const size = (/** @type {any[] | undefined} */ row) => (row === undefined ? null : by() ? row[4] : row[6]);
    const sizes = [...found.values()].map((row) => Math.abs(size(row) ?? 0)).filter(Number.isFinite);
    const top = Math.max(...sizes, 1e-9);
    // One head's z may be a thousand times all others'.
    const share = (/** @type {number} */ x) => (by() ? x / top : (Math.sign(x) * Math.log1p(Math.min(Math.abs(x), top))) / Math.log1p(top));
    grid.draw(({ head }) => {
      const row = found.get(head), x = size(row);
      const said = !row ? "not measured" : by() ? `changed by ${fixed(row[4], 4)}` : `${named(row)[1]} changed by ${fixed(row[4], 4)}, z ${sure(row[6])}`;
      return { colour: css(app.diverging, x === null ? 0.5 : 0.5 + Math.max(-0.5, Math.min(0.5, share(x) / 2))), said };
    });
    legend.replaceChildren(rampBetween(app.diverging, [`−${mark(top)}`, `+${mark(top)}`], 0),
      el("p", { class: "soft", text: by() ? `${named(["", by()])[1]}: ${there} minus ${app.traces[app.trace].name}, means over documents` : `z, the change divided by its standard error, of what changed most surely, on a logarithmic scale; with ${counted(rows.length)} numbers some z of 3 or 4 come by chance` }));
    const such = rows.filter((row) => !by() || row[1] === by());
    const some = such.slice(0, SUREST).map((row) => named(row).filter((_, n) => n !== 5));
    list.replaceChildren(table({ name: "", caption: `The ${some.length} surest of ${counted(such.length)} changes; a change is there minus here`, columns: few, rows: some, pick: ([head]) => app.go({ head }), picks: ([head, what]) => `${head}, ${what}: show ${head}` }));
    turned.replaceChildren(roles.length
      ? table({ name: "", caption: "Heads of another role", columns: [{ title: "head" }, { title: "here" }, { title: "there" }], rows: roles.map(([head, one, other]) => [head, one ?? "none", other ?? "none"]), pick: ([head]) => app.go({ head }), picks: ([head]) => `Show ${head}` })
      : el("p", { class: "soft", text: "Every head has the same role in both." }));
    all.again();
    chosen();
  };

  const chosen = () => {
    const { head } = app.place;
    grid.choose();
    const { role } = app.head(head);
    const moved = roles.find(([name]) => name === head);
    aside.replaceChildren(
      el("h2", {}, dot(role), `${head}${moved ? ` · ${moved[1] ?? "no role"} → ${moved[2] ?? "no role"}` : role ? ` · ${role}` : ""}`),
      table({ name: "", caption: "Means over documents, here and there, the surest change first", 
        columns: [{ title: "observable" }, ...numbers(["here", "there", "z"])],
        rows: rows.filter((row) => row[0] === head).map(named).map(([, what, here, there_, , , z]) => [what, here, there_, z]) }));
  };

  return {
    element,
    update(place, before) {
      if (!rows.length || place.view !== before.view || place.with !== before.with) load();
      else if (place.by !== before.by) draw();
      else if (place.head !== before.head) chosen();
    },
    redraw: draw,
    close() {},
  };
}

/** How sure a difference is. @param {number | null} z */
function sure(z) {
  return z === null || Number.isFinite(z) ? fixed(z, 1) : z > 0 ? "∞" : "−∞";
}
