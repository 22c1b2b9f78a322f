// Two traces side by side: which heads changed, by how much, and where.

import { choice, el, renew } from "./dom.js";
import { css } from "./colour.js";
import { dot } from "./card.js";
import { MapView } from "./map.js";
import { mapsOf } from "./maps.js";
import { measuresOf } from "./quantities.js";
import { pictureButton } from "./save.js";
import { folded } from "./table.js";
import { OneTile } from "./tiles.js";
import { rampBetween, valueGrid } from "./valuegrid.js";
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
  let closed = false; // the view has gone while it waited for an answer
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
  const grid = valueGrid(app, "Heads of both traces, by how much they changed; arrow keys move, Enter opens", () => element.firstElementChild?.clientWidth || 800);
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
  const element = el("div", { class: "beside" }, el("section", { "aria-labelledby": "compare-title" }, el("div", { class: "title" }, title), tools, said, el("div", { class: "changed" }, el("div", {}, grid.element, legend), el("div", {}, where, frame, readout)), list), aside);

  const changes = () => {
    const m = by();
    return doc.heads.filter((head) => other?.heads.some((o) => o.head === head.head)).map((head) => {
      const twin = other?.heads.find((o) => o.head === head.head);
      const here = m ? m.of(head) : null, there = m && twin ? m.of(twin) : null;
      const change = m ? (here === null || there === null ? null : there - here) : size().of(head.head);
      return { head: head.head, here, there, change };
    });
  };

  const load = async () => {
    const asked = number();
    try {
      const [found, compared] = await Promise.all([app.source.ask("trace", { trace: asked }), app.source.ask("compare", { a: app.trace, b: asked })]);
      if (closed || asked !== number()) return;
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
    renew(tools,
      choice("With", app.traces.filter(({ trace }) => trace !== app.trace).map(({ trace, name }) => [String(trace), name]), String(number()), (trace) => app.go({ with: trace })),
      choice("Change of", [...known(), ...measures].map((m) => /** @type {[string, string]} */ ([m.key, m.label])), by()?.key ?? size().key, (key) => app.go({ by: key })));
    said.textContent = common;
    const found = changes();
    const top = Math.max(...found.map(({ change }) => Math.abs(change ?? 0)), 1e-9);
    const m = by();
    grid.draw(({ head }) => {
      const one = found.find((each) => each.head === head);
      return one ? { colour: css(app.diverging, one.change === null ? 0.5 : 0.5 + one.change / top / 2), said: `changed by ${fixed(one.change, 4)}` } : null;
    });
    legend.replaceChildren(m
      ? rampBetween(app.diverging, [`−${mark(top)}`, `+${mark(top)}`], 0, `${m.label}, there minus here`)
      : rampBetween(app.diverging, ["0", mark(top)], 0.5, size().about));
    list.again();
    chosen();
  };

  const chosen = async () => {
    const { head } = app.place;
    grid.choose();
    const here = app.head(head), there = other?.heads.find((o) => o.head === head);
    const [a, b] = await Promise.all([mapsOf(app), mapsOf(app, "mean", number())]).catch((error) => (app.fail(error), []));
    if (closed || app.place.head !== head) return;
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
    readout.hidden = !map;
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

  return {
    element,
    update(place, before) {
      if (place.view !== before.view || place.with !== before.with || !other) load();
      else if (place.by !== before.by) draw();
      else if (place.head !== before.head) chosen();
    },
    redraw: draw,
    close() {
      closed = true;
      map?.close();
    },
  };
}
