// All heads in one window: a small map each, in the colours of a role or of anything measured; sorted, filtered, walked through.

import { button, choice, el, labelled, renew } from "./dom.js";
import { css, roleColour } from "./colour.js";
import { dot, quantityTable, roleTable } from "./card.js";
import { drawThumb, mapsOf } from "./maps.js";
import { filterOf, meanNull, measuresOf } from "./quantities.js";
import { folded } from "./table.js";
import { pictureButton } from "./save.js";
import { fixed } from "./words.js";

/** @typedef {import("./types.js").Head} Head */

/**
 * What differs between what is shown: one trace, or a survey of many texts.
 * @typedef {{map: string, pools: boolean, none: string, firstColumn: boolean, maps: (app: import("./app.js").App, pool: string) => Promise<Map<string, import("./tiles.js").Tile>>,
 *   card: (app: import("./app.js").App, head: Head) => Node[]}} Overview
 */

/** @type {Overview} */
const OF_TRACE = {
  map: "the looking token down, the token looked at across", pools: true, none: "No map was measured: watch with map=64 or more.", firstColumn: false,
  maps: (app, pool) => mapsOf(app, pool),
  card: (app, head) => [
    el("p", { class: "tools" }, button(`Zoom into ${head.head}`, () => app.go({ view: "head" }), { class: "main" }), button("Read the text", () => app.go({ view: "text" }))),
    roleTable(head), quantityTable(app, head),
  ],
};

/** @param {import("./app.js").App} app @param {Overview} [given] @returns {import("./app.js").View} */
export function overviewView(app, given = OF_TRACE) {
  const { doc } = app;
  const measures = measuresOf(doc);
  /** @type {Map<string, import("./tiles.js").Tile>} */
  let maps = new Map();
  /** @type {Map<string, {button: HTMLElement, canvas: HTMLCanvasElement, bar: HTMLElement}>} */
  const thumbs = new Map();
  const grid = el("div", { class: "heads", role: "listbox", "aria-label": "All heads; arrow keys move, Enter opens" });
  const legend = el("div", { class: "legend" });
  const count = el("p", { class: "soft", role: "status" });
  const problem = el("p", { class: "error", role: "alert" });
  const aside = el("aside", { "aria-label": "The chosen head" });
  const filter = el("input", { type: "text", spellcheck: "false", placeholder: "induction > 0.5", size: "18", value: app.place.filter ?? "",
    onchange: () => app.go({ filter: filter.value }) });
  const by = () => measures.find(({ key }) => key === app.place.by) ?? null;
  const element = el("div", { class: "beside" },
    el("section", { "aria-labelledby": "heads-title" },
      el("div", { class: "title" }, el("h2", { id: "heads-title", text: "All heads" }), count),
      el("div", { class: "tools" },
        choice("Colour", [["role", "role"], ...measures.map((m) => /** @type {[string, string]} */ ([m.key, m.label]))], app.place.by ?? "role", (key) => app.go({ by: key === "role" ? "" : key })),
        choice("Sort", [["", "as in the model"], ["value", "by the colour's value"], ["role", "by role"]], app.place.sort ?? "", (sort) => app.go({ sort })),
        given.pools ? choice("Cells", [["", "mean"], ["max", "largest"]], app.place.pool ?? "", (pool) => app.go({ pool })) : null,
        choice("Scale", [["", "square root"], ["linear", "linear"], ["log", "logarithm"], ["rank", "rank"]], app.place.scale ?? "", (scale) => app.go({ scale })),
        choice("Size", [["", "all in the window"], ["large", "large"]], app.place.size ?? "", (size) => app.go({ size })),
        labelled("Only", filter, "For example: induction > 0.5, layer >= 10"),
      ),
      problem, grid, legend,
      folded("All heads as a table", () => ({
        name: "heads", caption: "Scores and measurements of all heads",
        columns: [{ title: "head" }, { title: "role" }, ...measures.map((m) => ({ title: m.key, number: true, show: (/** @type {number | null} */ x) => fixed(x, 4) }))],
        rows: doc.heads.map((head) => [head.head, head.role ?? "", ...measures.map((m) => m.of(head))]),
        pick: ([head]) => app.go({ head, view: "head" }), picks: ([head]) => `Open ${head}`,
      })),
      el("p", { class: "tools" }, pictureButton(() => picture(), "heads")),
    ),
    aside,
  );

  /** @returns {Head[]} */
  const ordered = () => {
    const passes = filterOf(app.place.filter ?? "", measures);
    problem.textContent = passes.error ?? "";
    const heads = doc.heads.filter(passes.passes);
    const m = by();
    if (app.place.sort === "role") heads.sort((a, b) => (a.role ?? "~").localeCompare(b.role ?? "~") || best(b) - best(a));
    if (app.place.sort === "value") heads.sort((a, b) => (m ? (m.of(b) ?? -1) - (m.of(a) ?? -1) : best(b) - best(a)));
    return heads;
  };
  const best = (/** @type {Head} */ head) => head.roles.find(({ role }) => role === head.role)?.score ?? -1;

  /** How a quantity runs over its range, 0 to 1. @param {import("./quantities.js").Measure} m */
  const range = (m) => {
    const known = doc.heads.map(m.of).filter((x) => x !== null);
    const [low, high] = m.unit || known.some((x) => x > 1) ? [Math.min(...known), Math.max(...known)] : [0, 1];
    return { low, high, share: (/** @type {number} */ x) => (high > low ? (x - low) / (high - low) : 0.5) };
  };

  const said = (/** @type {Head} */ head) => {
    const m = by();
    if (m) return `${head.head}, ${m.label} ${fixed(m.of(head))}`;
    return `${head.head}, ${head.role ? `${head.role} ${fixed(best(head))}` : "no role"}`;
  };

  const build = () => {
    thumbs.clear();
    const heads = ordered();
    count.textContent = heads.length === doc.heads.length ? `${heads.length} heads; each map: ${given.map}` : `${heads.length} of ${doc.heads.length} heads`;
    const inModel = !app.place.sort && !app.place.filter;
    const layers = doc.layers.map(({ layer }) => layer);
    const most = Math.max(...doc.heads.map(({ index }) => index)) + 1;
    const width = grid.clientWidth || 900;
    // Layers run across where that shows all in one window, else down.
    const across = inModel && app.place.size !== "large" && layers.length > most && (width - 34) / layers.length >= 24;
    const columns = !inModel ? Math.max(3, Math.floor(width / 66)) : across ? layers.length : most;
    grid.style.setProperty("--columns", String(columns));
    grid.classList.toggle("sorted", !inModel);
    grid.classList.toggle("small", (width - 34) / columns < 54);
    grid.dataset.columns = String(columns);
    /** @type {Node[]} */
    const made = [];
    const name = (/** @type {string} */ text, /** @type {string} */ kind = "") => el("b", { text, class: kind, "aria-hidden": "true" });
    if (!inModel) made.push(...heads.map(thumb));
    else {
      const [lines, line] = across ? [most, (/** @type {number} */ n) => layers.map((layer) => doc.heads.find((h) => h.layer === layer && h.index === n))] : [layers.length, (/** @type {number} */ n) => Array.from({ length: most }, (_, h) => doc.heads.find((x) => x.layer === layers[n] && x.index === h))];
      made.push(name(""), ...Array.from({ length: columns }, (_, n) => name(across ? `L${layers[n]}` : `H${n}`, "top")));
      for (let n = 0; n < lines; n++) made.push(name(across ? `H${n}` : `L${layers[n]}`), ...line(n).map((head) => (head ? thumb(head) : el("i", { "aria-hidden": "true" }))));
    }
    grid.replaceChildren(...made);
    if (!heads.length) grid.replaceChildren(el("p", { class: "soft", text: "No head passes the filter." }));
    paintAll();
    choose();
  };

  /** @param {Head} head */
  const thumb = (head) => {
    const canvas = el("canvas", { "aria-hidden": "true" });
    const bar = el("span", { class: "bar", "aria-hidden": "true" });
    const made = el("div", { role: "option", class: "thumb", tabindex: "-1", "aria-label": said(head), title: said(head), "data-head": head.head },
      canvas, bar, el("span", { class: "name", "aria-hidden": "true", text: head.head }));
    thumbs.set(head.head, { button: made, canvas, bar });
    return made;
  };

  const paintAll = () => {
    const m = by();
    const scope = m ? range(m) : null;
    for (const [name, { canvas, bar }] of thumbs) {
      const head = app.head(name);
      const tile = maps.get(name);
      if (tile) drawThumb(canvas, tile, app.ramp, app.place.scale || "sqrt", given.firstColumn);
      const x = m?.of(head);
      bar.style.background = scope ? (x === null || x === undefined ? "transparent" : css(app.ramp, 0.12 + 0.88 * scope.share(x))) : roleColour(head.role);
      bar.classList.toggle("none", scope ? x === null : head.role === null);
    }
    drawLegend();
  };

  const drawLegend = () => {
    const m = by();
    if (!m) {
      const roles = [...new Set(doc.heads.flatMap((head) => head.roles.map(({ role }) => role)))];
      const only = (/** @type {string} */ role) => app.go({ filter: app.place.filter === `role = ${role}` ? "" : `role = ${role}` });
      renew(legend, el("ul", { "aria-label": "Roles" }, ...roles.map((role) => {
        const n = doc.heads.filter((head) => head.role === role).length;
        const made = button("", () => only(role), { class: "plain", disabled: !n, "aria-pressed": String(app.place.filter === `role = ${role}`), title: "Show only these" });
        made.append(dot(role), `${role} × ${n}`);
        return el("li", {}, made);
      }), el("li", {}, el("span", { class: "soft", text: `no role × ${doc.heads.filter((head) => head.role === null).length}` }))));
      return;
    }
    const { low, high, share } = range(m);
    const none = meanNull(doc, m);
    const bar = el("span", { class: "ramp", role: "img", "aria-label": `${m.label} from ${fixed(low)} to ${fixed(high)}${none === null ? "" : `, uniform attention ${fixed(none)}`}` });
    bar.style.background = `linear-gradient(90deg, ${Array.from({ length: 12 }, (_, n) => css(app.ramp, 0.12 + (0.88 * n) / 11)).join(",")})`;
    if (none !== null && share(none) >= 0 && share(none) <= 1) bar.append(el("i", { style: { left: `${100 * share(none)}%` } }));
    legend.replaceChildren(el("p", {}, el("strong", { text: m.label }), ` ${m.about}`),
      el("p", { class: "scale" }, el("span", { text: fixed(low) }), bar, el("span", { text: `${fixed(high)} ${m.unit}` }),
        el("span", { class: "soft", text: none === null ? "" : `│ uniform attention: ${fixed(none)}` })));
  };

  const choose = () => {
    const { head: name } = app.place;
    const there = thumbs.has(name);
    let first = true;
    for (const [other, { button: made }] of thumbs) {
      made.setAttribute("aria-selected", String(other === name));
      made.tabIndex = other === name || (!there && first) ? 0 : -1;
      first = false;
    }
    const head = app.head(name);
    const canvas = el("canvas", { class: "preview", role: "img", "aria-label": `Map of ${name}` });
    const tile = maps.get(name);
    if (tile) drawThumb(canvas, tile, app.ramp, app.place.scale || "sqrt", given.firstColumn);
    aside.replaceChildren(
      el("h2", {}, dot(head.role), `${head.head}${head.role ? ` · ${head.role}` : ""}`),
      tile ? canvas : el("p", { class: "soft", text: given.none }),
      ...given.card(app, head),
    );
  };

  grid.addEventListener("click", (event) => {
    const name = /** @type {HTMLElement} */ (event.target).closest("[data-head]")?.getAttribute("data-head");
    if (!name) return;
    app.go({ head: name });
    thumbs.get(name)?.button.focus();
  });
  grid.addEventListener("dblclick", () => app.go({ view: "head" }));
  grid.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      app.go({ view: "head" });
      return;
    }
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const names = [...thumbs.keys()];
    const next = !step ? names.at(event.key === "Home" ? 0 : -1) : neighbour(step);
    if (!next) return;
    app.go({ head: next });
    thumbs.get(next)?.button.focus();
    app.say(said(app.head(next)));
  });

  /** The head that stands next to the chosen one on the screen. @param {number[]} step */
  const neighbour = ([dx, dy]) => {
    const here = thumbs.get(app.place.head)?.button.getBoundingClientRect();
    if (!here) return thumbs.keys().next().value;
    let found, near = Infinity;
    for (const [name, { button: made }] of thumbs) {
      const there = made.getBoundingClientRect();
      const [x, y] = [there.left - here.left, there.top - here.top];
      const along = x * dx + y * dy, beside = Math.abs(x * dy) + Math.abs(y * dx);
      if (along < 4 || beside > 8) continue;
      if (along < near) [found, near] = [name, along];
    }
    return found;
  };

  const picture = () => {
    const side = 96, columns = Math.min(thumbs.size, Number(grid.dataset.columns) || 9);
    const canvas = el("canvas");
    canvas.width = columns * (side + 8) + 8;
    canvas.height = Math.ceil(thumbs.size / columns) * (side + 26) + 8;
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const ink = app.ink();
    pen.fillStyle = ink.ground;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.imageSmoothingEnabled = false;
    pen.font = "12px system-ui, sans-serif";
    const inColumns = !app.place.sort && !app.place.filter && Number(grid.dataset.columns) === doc.layers.length && doc.layers.length > 1;
    [...thumbs].forEach(([name, one], n) => {
      const [row, column] = inColumns ? [app.head(name).index, doc.layers.findIndex(({ layer }) => layer === app.head(name).layer)] : [Math.floor(n / columns), n % columns];
      const [x, y] = [8 + column * (side + 8), 8 + row * (side + 26)];
      pen.drawImage(one.canvas, x, y, side, side);
      pen.fillStyle = one.bar.style.background;
      pen.fillRect(x, y + side + 1, side, 3);
      pen.fillStyle = ink.ink;
      pen.fillText(name, x, y + side + 16);
    });
    return canvas;
  };

  /** @param {string} pool */
  const load = (pool) => {
    given.maps(app, pool).then((found) => {
      maps = found;
      paintAll();
      choose();
      grid.dataset.drawn = "true";
    }, (error) => app.fail(error));
  };
  load(app.place.pool || "mean");
  let width = 0;
  const watching = new ResizeObserver(() => {
    if (grid.clientWidth === width) return;
    width = grid.clientWidth;
    build();
  });
  watching.observe(grid);
  return {
    element,
    update(place, before) {
      const changed = (/** @type {string[]} */ ...names) => names.some((name) => place[name] !== before[name]);
      if (changed("pool")) load(place.pool || "mean");
      if (changed("filter")) filter.value = place.filter ?? "";
      if (changed("by", "sort", "filter", "size", "view", "trace")) build();
      else if (changed("scale", "pool")) paintAll();
      if (changed("head", "scale")) choose();
    },
    redraw: () => { paintAll(); choose(); },
    close: () => watching.disconnect(),
  };
}
