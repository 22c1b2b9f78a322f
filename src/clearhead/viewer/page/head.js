// One head, as deep as it goes: the zoomable map with its strips, the exact numbers of a pair, histogram, roles.

import { button, check, choice, el, renew, settled } from "./dom.js";
import { css } from "./colour.js";
import { dot, quantityTable, roleTable } from "./card.js";
import { histogram } from "./histogram.js";
import { MapView } from "./map.js";
import { mapsOf } from "./maps.js";
import { headPicker } from "./picker.js";
import { pictureButton } from "./save.js";
import { valueAt } from "./scale.js";
import { folded } from "./table.js";
import { OneTile, TILE, Tiles } from "./tiles.js";
import { fixed, mark, percent, quoted, span, weight } from "./words.js";

/** @type {[string, string][]} */
const STRIPS = [
  ["entropy", "entropy"], ["first_weight", "on the first token"], ["previous_weight", "on the previous token"], ["self_weight", "on itself"], ["sink", "learned sink"], ["distance", "distance"],
];

/** @param {import("./app.js").App} app @returns {import("./app.js").View} */
export function headView(app) {
  const { doc } = app;
  /** @type {MapView | null} */
  let map = null;
  /** @type {import("./types.js").Layer} */
  let layer = doc.layers[0];
  let current = "";
  /** @type {import("./types.js").Answer | null} */
  let strips = null;
  const title = el("h2", { id: "head-title" });
  const frame = el("div", { class: "map-frame" });
  const legend = el("div", { class: "legend" });
  const readout = el("p", { class: "readout", text: "Point at the map to read it, click to choose a pair. Scroll, pinch or + and − zoom; 0 shows all." });
  const pairBox = el("div", { class: "pair", "aria-live": "polite" });
  const lower = el("div", { class: "lower" });
  const aside = el("aside", { "aria-label": "What this head does" });
  const picker = el("div", { class: "tools" });
  const pick = headPicker(app, picker);
  const tools = el("div", { class: "tools" });
  const strongest = folded("The strongest cells in view, as a table", () => ({
    name: `${app.place.head}-cells`, caption: "The 40 largest cells of the map as it is shown now",
    columns: [{ title: "query", number: true }, { title: "queries" }, { title: "key", number: true }, { title: "keys" }, { title: "weight", number: true, show: weight }],
    rows: strongestCells(),
    pick: ([query, , key]) => choose(query - layer.offset, key), picks: ([query, , key]) => `Choose query ${query}, key ${key}`,
  }));
  const row = folded("Where the chosen token looks, as a table", () => ({
    name: `${app.place.head}-row`, caption: rowCaption, columns: [{ title: "key", number: true }, { title: "token", show: quoted }, { title: what(), number: true, show: weight }],
    rows: rowValues, pick: ([key]) => choose(Number(app.place.at) - layer.offset, key), picks: ([key]) => `Choose key ${key}`,
  }));
  /** @type {any[][]} */
  let rowValues = [];
  let rowCaption = "";
  const element = el("div", { class: "beside" },
    el("section", { "aria-labelledby": "head-title" },
      el("div", { class: "title" }, title, picker), tools, frame, readout, legend,
      el("p", { class: "tools" },
        button("+", () => map?.zoomBy(2), { "aria-label": "Zoom in" }), button("−", () => map?.zoomBy(0.5), { "aria-label": "Zoom out" }),
        button("Show all", () => map?.fit()), button("To the chosen pair", () => map?.pair && map.show(map.pair, 26)),
        pictureButton(() => /** @type {MapView} */ (map).canvas, "map")),
      pairBox, strongest, row, lower),
    aside);

  const what = () => app.place.what || "weight";
  /** The chosen key; where none was chosen, the one that gets most. */
  const key = () => (app.place.key === undefined ? -1 : Math.min(layer.keys - 1, Math.max(0, Number(app.place.key) || 0)));

  const makeTools = () => {
    pick();
    const strip = STRIPS.filter(([name]) => strips?.arrays[name]);
    renew(tools,
      choice("Cells", [["", "mean"], ["max", "largest"]], app.place.pool ?? "", (pool) => app.go({ pool })),
      choice("Scale", [["", "square root"], ["linear", "linear"], ["log", "logarithm"], ["rank", "rank"]], app.place.scale ?? "", (scale) => app.go({ scale })),
      check("First token in the scale", app.place.first === "1", (on) => app.go({ first: on ? "1" : "" }), "Most heads put so much on the first token that the rest would be dark"),
      check("Diagonal in the scale", app.place.diagonal !== "0", (on) => app.go({ diagonal: on ? "" : "0" })),
      ...(strip.length ? [choice("Strip", strip, app.place.strip ?? strip[0][0], (name) => app.go({ strip: name }))] : []),
    );
  };

  const open = async () => {
    const { head: name } = app.place;
    const opened = (current = `${name} ${app.place.pool ?? ""}`);
    const head = app.head(name);
    layer = app.layer(head.layer);
    title.replaceChildren(dot(head.role), `${name}${head.role ? ` · ${head.role}` : ""}`);
    element.setAttribute("aria-busy", "true");
    map?.close();
    map = null;
    makeTools();
    try {
      const exact = layer.exact && (doc.exact_heads?.includes(name) ?? true);
      const [found, maps] = await Promise.all([app.source.ask("strips", { trace: app.trace, head: name }), exact ? null : mapsOf(app, app.place.pool || "mean")]);
      if (opened !== current) return;
      strips = found;
      makeTools();
      openMap(head, exact, maps?.get(name));
      showStrips();
      drawLower();
      aside.replaceChildren(roleTable(head), quantityTable(app, head), el("p", { class: "soft module", text: layer.module }));
      await choosePair();
    } catch (error) {
      app.fail(error);
    }
    element.removeAttribute("aria-busy");
  };

  /** @param {import("./types.js").Head} head @param {boolean} exact @param {import("./tiles.js").Tile} [tile] */
  const openMap = (head, exact, tile) => {
    const drawn = () => map?.draw();
    const cells = exact
      ? new Tiles(async (level, x, y, signal) => {
          const { arrays } = await app.source.ask("tile", { trace: app.trace, head: head.head, level, x, y, pool: app.place.pool || "mean" }, signal);
          return { cells: /** @type {Float32Array} */ (arrays.cells.data), rows: arrays.cells.shape[0], columns: arrays.cells.shape[1] };
        }, layer.levels, drawn, (error) => app.fail(error))
      : new OneTile(tile ?? { cells: new Float32Array(0), rows: 0, columns: 0 }, layer.queries, layer.keys);
    map = new MapView({
      cells, queries: layer.queries, keys: layer.keys, offset: layer.offset,
      queryName: (n) => doc.tokens[n + layer.offset] ?? String(n), keyName: (n) => app.keyName(layer, n),
      ramp: () => app.ramp, ink: () => app.ink(), chosen: (query, k) => app.go({ at: String(query + layer.offset), key: String(k) }), hovered, drawn: drawLegend,
      label: `Map of ${head.head}: ${layer.queries} looking tokens down, ${layer.keys} tokens looked at across. Arrow keys choose a pair, plus and minus zoom. The tables below hold the numbers.`,
    });
    settings();
    frame.replaceChildren(map.canvas, ...(exact || tile ? [] : [el("p", { class: "soft", text: "No map was measured: watch with map=64 or more." })]));
    if (!exact) frame.append(el("p", { class: "soft", text: doc.exact_heads ? "Deep tiles of this head are not in this file; the map is exact, of means over cells." : "Queries and keys were not kept, so this is as deep as it goes: exact means over cells. Watch with keep=\"qk\" to zoom to single pairs." }));
    frame.dataset.exact = String(exact);
  };

  const settings = () => {
    if (!map) return;
    map.kind = app.place.scale || "sqrt";
    map.without = { first: app.place.first !== "1", diagonal: app.place.diagonal === "0" };
    map.draw();
  };

  const showStrips = () => {
    if (!map || !strips) return;
    const { accent, soft } = app.ink();
    const chosen = STRIPS.find(([name]) => name === (app.place.strip ?? STRIPS.find(([n]) => strips?.arrays[n])?.[0]));
    const values = chosen && strips.arrays[chosen[0]];
    map.strips.query = values ? { label: chosen[1], values: values.data, colour: accent } : null;
    map.strips.key = strips.arrays.received ? { label: "received", values: strips.arrays.received.data, colour: soft } : null;
    map.resized();
  };

  const drawLegend = settled(() => {
    if (!map) return;
    const ramp = app.ramp;
    const scale = map.scale;
    const marks = [0, 0.25, 0.5, 0.75, 1].map((t) => el("span", { text: `${t === 1 ? "≥ " : ""}${mark(valueAt(scale, t))}` }));
    const bar = el("span", { class: "ramp", role: "img", "aria-label": `Colours from 0 to ${mark(scale.high)}` });
    bar.style.background = `linear-gradient(90deg, ${Array.from({ length: 12 }, (_, n) => css(ramp, n / 11)).join(",")})`;
    const [, wide] = map.side(map.level());
    const cell = wide <= 1 ? "A cell is one pair of tokens: its exact weight." : `A cell is ${Math.round(wide * 10) / 10} × ${Math.round(map.side(map.level())[0] * 10) / 10} pairs: ${app.place.pool === "max" ? "their largest weight" : "their mean weight"}.`;
    legend.replaceChildren(el("p", { class: "scale marks" }, bar, el("span", { class: "between" }, ...marks)), el("p", { class: "soft", text: cell }));
    frame.dataset.level = String(map.level());
    frame.dataset.cell = String(wide);
    strongest.again();
  }, 120);

  /** @param {import("./map.js").Cell | null} cell */
  const hovered = (cell) => {
    if (!cell) return;
    const one = cell.queryEnd - cell.query <= 1 && cell.keyEnd - cell.key <= 1;
    const by = span(doc.tokens, cell.query + layer.offset, cell.queryEnd + layer.offset, "query");
    const to = layer.crosses ? `keys ${cell.key}–${cell.keyEnd - 1}` : span(doc.tokens, cell.key, cell.keyEnd, "key");
    const value = cell.value === null ? "…" : weight(cell.value);
    readout.textContent = `${by} → ${to}: ${value}${one ? "" : app.place.pool === "max" ? ", the largest" : ", on average"}`;
  };

  /** @param {number} query @param {number} k */
  const choose = (query, k) => {
    app.go({ at: String(query + layer.offset), key: String(k) });
    map?.show({ query, key: k }, Math.max(map.zoom, 26));
  };

  const choosePair = async () => {
    const query = Number(app.place.at) - layer.offset;
    if (query < 0 || query >= layer.queries || !map) return;
    let k = key();
    if (k < 0) {
      const { data } = (await app.source.ask("line", { trace: app.trace, heads: app.place.head, axis: "query", at: Number(app.place.at) })).arrays.values;
      k = 0;
      for (let n = 0; n < data.length; n++) if (data[n] > (data[k] || 0)) k = n;
      if (!map || key() >= 0) return;
    }
    map.pair = { query, key: k };
    map.draw();
    await pairNumbers(query, k);
  };

  const pairNumbers = settled(async (/** @type {number} */ query, /** @type {number} */ k) => {
    const name = app.place.head;
    const exact = frame.dataset.exact === "true";
    const ask = (/** @type {string} */ kind) => app.source.ask("crop", { trace: app.trace, head: name, queries: `${query}:${query + 1}`, keys: `${k}:${k + 1}`, what: kind });
    const kinds = ["weight", ...(exact && !doc.exact_heads ? ["logit"] : []), ...(layer.contribution ? ["contribution"] : [])];
    try {
      const line = await app.source.ask("line", { trace: app.trace, heads: name, axis: "query", at: query + layer.offset, what: exact ? what() : "weight" });
      const answers = exact ? await Promise.all(kinds.map(ask)) : [];
      if (app.place.head !== name || Number(app.place.at) - layer.offset !== query || (key() >= 0 && key() !== k)) return;
      const numbers = exact ? answers.map(({ arrays }) => arrays.values.data[0]) : [line.arrays.values.data[k]];
      const label = { weight: "weight p", logit: "logit z", contribution: "contribution p·‖v‖" };
      const looker = doc.tokens[query + layer.offset] ?? "", seen = app.keyName(layer, k);
      pairBox.replaceChildren(
        el("p", {}, "Query ", el("strong", { text: String(query + layer.offset) }), ` ${quoted(looker)} → key `, el("strong", { text: String(k) }), ` ${quoted(seen)}`),
        el("dl", { class: "facts" }, ...kinds.map((kind, n) => el("div", {}, el("dt", { text: label[/** @type {"weight"} */ (kind)] }), el("dd", { class: `exact-${kind}`, text: weight(numbers[n]) })))),
        el("p", { class: "tools" },
          ...(layer.contribution ? [choice("Rank by", [["", "weight"], ["contribution", "contribution"]], app.place.what ?? "", (value) => app.go({ what: value }))] : []),
          button("Read the text from here", () => app.go({ view: "text" }))),
      );
      const known = Array.from(line.arrays.values.data, (value, n) => /** @type {[number, number]} */ ([n, value])).filter(([, value]) => value > 0);
      known.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
      rowValues = known.slice(0, 100).map(([n, value]) => [n, app.keyName(layer, n), value]);
      const sum = known.reduce((total, [, value]) => total + value, 0);
      rowCaption = line.facts.exact
        ? `Query ${query + layer.offset} ${quoted(looker)}: the ${rowValues.length} keys with the largest ${what()}s, of ${known.length}`
        : `Query ${query + layer.offset} ${quoted(looker)}: the ${known.length} keys that were kept, with ${percent(sum)} of its weight`;
      row.again();
    } catch (error) {
      app.fail(error);
    }
  }, 60);

  const strongestCells = () => {
    if (!map) return [];
    const m = map, level = m.level(), [high, wide] = m.side(level);
    /** @type {[number, number, number][]} */
    const found = [];
    for (const { x, y } of m.tiles(level)) {
      const tile = m.cells.get(level, x, y);
      if (!tile) continue;
      for (let n = 0; n < tile.cells.length; n++) {
        const value = tile.cells[n];
        if (found.length >= 40 && value <= found[found.length - 1][2]) continue;
        if (!value) continue;
        found.push([y * TILE + Math.floor(n / tile.columns), x * TILE + (n % tile.columns), value]);
        found.sort((a, b) => b[2] - a[2] || a[0] - b[0] || a[1] - b[1]);
        if (found.length > 40) found.pop();
      }
    }
    return found.map(([r, c, value]) => {
      const [q0, q1, k0, k1] = [Math.floor(r * high), Math.min(layer.queries, Math.ceil((r + 1) * high)), Math.floor(c * wide), Math.min(layer.keys, Math.ceil((c + 1) * wide))];
      return [q0 + layer.offset, span(doc.tokens, q0 + layer.offset, q1 + layer.offset, "token"), k0, layer.crosses ? `keys ${k0}–${k1 - 1}` : span(doc.tokens, k0, k1, "token"), value];
    });
  };

  const drawLower = () => {
    const values = strips?.arrays.histogram;
    lower.replaceChildren(values
      ? histogram(values.data, strips?.arrays.histogram_null?.data ?? null)
      : el("p", { class: "soft", text: "The distance histogram was not measured: watch with Observables(distance_histogram=True)." }));
  };

  return {
    element,
    update(place, before) {
      if (`${place.head} ${place.pool ?? ""}` !== current) {
        open();
        return;
      }
      const changed = (/** @type {string[]} */ ...keys) => keys.some((name) => place[name] !== before[name]);
      if (changed("scale", "first", "diagonal")) settings();
      if (changed("strip")) showStrips();
      if (changed("at", "key", "what")) {
        choosePair();
        if (map?.pair && !map.inSight(map.pair)) map.show(map.pair);
      }
    },
    redraw() {
      if (map) map.seen = "";
      showStrips();
      drawLower();
    },
    close() {
      current = ""; // what is still waited for comes too late
      map?.close();
    },
  };
}
