// Two traces side by side: which heads changed, by how much, and where.

import { choice, el } from "./dom.js";
import { css } from "./colour.js";
import { dot } from "./card.js";
import { MapView } from "./map.js";
import { mapsOf } from "./maps.js";
import { measuresOf } from "./quantities.js";
import { pictureButton } from "./save.js";
import { folded } from "./table.js";
import { OneTile } from "./tiles.js";
import { fixed, mark, weight } from "./words.js";

/** @param {import("./app.js").App} app @returns {import("./app.js").View} */
export function compareView(app) {
  if (app.traces.length < 2) {
    const why = "Comparing takes two traces: clearhead view one.trace other.trace";
    return { element: el("section", {}, el("h2", { text: "Compare" }), el("p", { text: why })), update() {}, close() {}, redraw() {} };
  }
  const { doc } = app;
  /** @type {import("./types.js").Doc | null} */
  let other = null;
  /** @type {Record<string, number | null>} */
  let moved = {};
  /** @type {Record<string, Record<string, number | null>>} */
  let aligned = {};
  let common = "";
  /** @type {MapView | null} */
  let map = null;
  const number = () => {
    const wanted = Number(app.place.with ?? -1);
    return wanted >= 0 && wanted < app.traces.length && wanted !== app.trace ? wanted : app.traces.find(({ trace }) => trace !== app.trace)?.trace ?? 0;
  };
  const measures = measuresOf(doc);
  /** What is compared without a sign, pair by pair: the maps, or the tokens that both texts have, as `Trace.compare` does. */
  const sizes = [
    { key: "map", label: "the map (mean over cells)", about: "mean difference of a map's cells, without sign", of: (/** @type {string} */ head) => moved[head] ?? null },
    ...[["received", "who receives the weight", "half the sum of differences between the shares that tokens receive: 0 the same, 1 nothing in common"],
      ["entropy", "entropy, token by token", "mean difference in nats, without sign"], ["first_weight", "weight on the first token, token by token", "mean difference, without sign"],
      ["previous_weight", "weight on the token before, token by token", "mean difference, without sign"], ["self_weight", "weight on itself, token by token", "mean difference, without sign"]]
      .map(([key, label, about]) => ({ key: `each-${key}`, label, about, of: (/** @type {string} */ head) => aligned[head]?.[key] ?? null })),
  ];
  const known = () => sizes.filter(({ of }) => doc.heads.some(({ head }) => of(head) !== null));
  /** The mean of a quantity is compared with its sign; null where something else is. */
  const by = () => (sizes.some(({ key }) => key === app.place.by) ? null : measures.find(({ key }) => key === (app.place.by || (known().length ? "" : "entropy"))) ?? null);
  const size = () => known().find(({ key }) => key === app.place.by) ?? known()[0] ?? sizes[0];
  const title = el("h2", { id: "compare-title", text: "Compare" });
  const tools = el("div", { class: "tools" });
  const grid = el("div", { class: "heads values", role: "listbox", "aria-label": "Heads of both traces, by how much they changed; arrow keys move" });
  const legend = el("div", { class: "legend" });
  const said = el("p", { class: "soft" });
  const aside = el("aside", { "aria-label": "The chosen head in both traces" });
  const where = el("h2");
  const frame = el("div", { class: "map-frame small" });
  const readout = el("p", { class: "readout" });
  const list = folded("Heads sorted by change, as a table", () => ({
    name: "changes", caption: "Here, there, and the change, sorted by the largest change",
    columns: [{ title: "head" }, { title: "here", number: true, show: (x) => fixed(x, 4) }, { title: "there", number: true, show: (x) => fixed(x, 4) }, { title: "change", number: true, show: (x) => fixed(x, 4) }],
    rows: changes().sort((a, b) => Math.abs(b.change ?? 0) - Math.abs(a.change ?? 0)).map(({ head, here, there, change }) => [head, here, there, change]),
    pick: ([head]) => app.go({ head }), picks: ([head]) => `Show ${head}`,
  }));
  const element = el("div", { class: "beside" }, el("section", { "aria-labelledby": "compare-title" }, el("div", { class: "title" }, title), tools, said, el("div", { class: "changed" }, el("div", {}, grid, legend), el("div", {}, where, frame, readout)), list), aside);

  const changes = () => {
    const m = by();
    return doc.heads.filter((head) => other?.heads.some((o) => o.head === head.head)).map((head) => {
      const twin = other?.heads.find((o) => o.head === head.head);
      const here = m ? m.of(head) : null, there = m && twin ? m.of(twin) : null;
      const change = m ? (here === null || there === null ? null : there - here) : size().of(head.head);
      return { head: head.head, here, there, change };
    });
  };

  let across = false;

  const load = async () => {
    try {
      const [found, compared] = await Promise.all([app.source.ask("trace", { trace: number() }), app.source.ask("compare", { a: app.trace, b: number() })]);
      other = found.facts;
      moved = compared.facts.moved;
      aligned = compared.facts.changes;
      common = compared.facts.why ?? `${compared.facts.aligned} tokens are the same in both texts, of ${compared.facts.tokens[0]} here and ${compared.facts.tokens[1]} there.`;
      title.textContent = `${doc.name} and ${other?.name}`;
      draw();
    } catch (error) {
      app.fail(error);
    }
  };

  const draw = () => {
    tools.replaceChildren(
      choice("With", app.traces.filter(({ trace }) => trace !== app.trace).map(({ trace, name }) => [String(trace), name]), String(number()), (trace) => app.go({ with: trace })),
      choice("Change of", [...known(), ...measures].map((m) => /** @type {[string, string]} */ ([m.key, m.label])), by()?.key ?? size().key, (key) => app.go({ by: key })));
    said.textContent = common;
    const found = changes();
    const top = Math.max(...found.map(({ change }) => Math.abs(change ?? 0)), 1e-9);
    const m = by();
    const layers = doc.layers.map(({ layer }) => layer);
    const most = Math.max(...doc.heads.map(({ index }) => index)) + 1;
    // Layers run across where that shows all in one window, as in the overview.
    across = layers.length > most && ((element.firstElementChild?.clientWidth || 800) - 70) / layers.length >= 18;
    const columns = across ? layers.length : most;
    grid.style.setProperty("--columns", String(columns));
    const ramp = app.diverging;
    const cell = (/** @type {number} */ layer, /** @type {number} */ index) => {
      const one = found.find(({ head }) => head === `L${layer}H${index}`);
      if (!one) return el("i", { "aria-hidden": "true" });
      const t = one.change === null ? 0.5 : 0.5 + one.change / top / 2;
      return el("div", { role: "option", class: "thumb", "data-head": one.head, tabindex: one.head === app.place.head ? "0" : "-1", "aria-selected": String(one.head === app.place.head),
        "aria-label": `${one.head}, changed by ${fixed(one.change, 4)}`, title: `${one.head}: ${fixed(one.change, 4)}`, style: { background: css(ramp, t) } });
    };
    const name = (/** @type {string} */ text, /** @type {string | null} */ kind = null) => el("b", { class: kind, text, "aria-hidden": "true" });
    const heads = Array.from({ length: most }, (_, h) => h);
    grid.replaceChildren(el("b"), ...(across
      ? [...layers.map((layer) => name(`L${layer}`, "top")), ...heads.flatMap((h) => [name(`H${h}`), ...layers.map((layer) => cell(layer, h))])]
      : [...heads.map((h) => name(`H${h}`, "top")), ...layers.flatMap((layer) => [name(`L${layer}`), ...heads.map((h) => cell(layer, h))])]));
    const bar = el("span", { class: "ramp", role: "img", "aria-label": `Change from ${m ? `−${mark(top)}` : "0"} to ${mark(top)}` });
    bar.style.background = `linear-gradient(90deg, ${Array.from({ length: 13 }, (_, n) => css(ramp, (m ? 0 : 0.5) + ((m ? 1 : 0.5) * n) / 12)).join(",")})`;
    legend.replaceChildren(el("p", { class: "scale" }, el("span", { text: m ? `−${mark(top)}` : "0" }), bar, el("span", { text: m ? `+${mark(top)}` : mark(top) }), el("span", { class: "soft", text: m ? `${m.label}, there minus here` : size().about })));
    list.again();
    chosen();
  };

  const chosen = async () => {
    const { head } = app.place;
    for (const cell of grid.querySelectorAll("[data-head]")) {
      cell.setAttribute("aria-selected", String(cell.getAttribute("data-head") === head));
      /** @type {HTMLElement} */ (cell).tabIndex = cell.getAttribute("data-head") === head ? 0 : -1;
    }
    const here = app.head(head), there = other?.heads.find((o) => o.head === head);
    const [a, b] = await Promise.all([mapsOf(app), mapsOf(app, "mean", number())]).catch((error) => (app.fail(error), []));
    if (app.place.head !== head) return;
    map?.close();
    map = null;
    const one = a?.get(head), two = b?.get(head);
    frame.replaceChildren();
    if (one && two && one.rows === two.rows && one.columns === two.columns) {
      const layer = app.layer(here.layer);
      const cells = one.cells.map((value, n) => two.cells[n] - value);
      map = new MapView({
        cells: new OneTile({ cells, rows: one.rows, columns: one.columns }, layer.queries, layer.keys), queries: layer.queries, keys: layer.keys, offset: layer.offset, signed: true,
        queryName: (n) => doc.tokens[n + layer.offset] ?? "", keyName: (n) => app.keyName(layer, n), ramp: () => app.diverging, ink: () => app.ink(),
        chosen() {}, hovered: (cell) => (readout.textContent = cell ? `queries ${cell.query}–${cell.queryEnd - 1}, keys ${cell.key}–${cell.keyEnd - 1}: ${cell.value !== null && cell.value > 0 ? "+" : ""}${weight(cell.value).replace("-", "−")}` : ""), drawn() {},
        label: `Difference of ${head}'s maps, there minus here`,
      });
      frame.append(map.canvas);
    } else frame.append(el("p", { class: "soft", text: "The texts have other lengths, so their maps cannot be subtracted." }));
    readout.textContent = !map ? "" : `${head}, ${other?.name} minus ${doc.name}. Orange: more there; blue: less there.`;
    where.replaceChildren(dot(here.role), `Where ${head} changed`);
    aside.replaceChildren(el("h2", {}, dot(here.role), head),
      el("table", {}, el("caption", { text: "Here and there" }),
        el("thead", {}, el("tr", {}, ...["", "here", "there", "change"].map((text, n) => el("th", { scope: "col", class: n ? "n" : null, text })))),
        el("tbody", {}, ...measures.map((m) => {
          const x = m.of(here), y = there ? m.of(there) : null;
          return el("tr", {}, el("th", { scope: "row", text: m.label }), ...[x, y, x === null || y === null ? null : y - x].map((v) => el("td", { class: "n", text: fixed(v) })));
        }))),
      el("p", { class: "tools" }, ...(map ? [pictureButton(() => /** @type {MapView} */ (map).canvas, "difference")] : [])));
  };

  grid.addEventListener("click", (event) => {
    const head = /** @type {HTMLElement} */ (event.target).closest("[data-head]")?.getAttribute("data-head");
    if (head) app.go({ head });
  });
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = app.head(app.place.head);
    const next = doc.heads.find(({ layer, index }) => layer === at.layer + step[across ? 1 : 0] && index === at.index + step[across ? 0 : 1]);
    if (!next) return;
    app.go({ head: next.head });
    /** @type {HTMLElement | null} */ (grid.querySelector(`[data-head="${next.head}"]`))?.focus();
  });
  return {
    element,
    update(place, before) {
      if (place.view !== before.view || place.with !== before.with || !other) load();
      else if (place.by !== before.by) draw();
      else if (place.head !== before.head) chosen();
    },
    redraw: draw,
    close: () => map?.close(),
  };
}
