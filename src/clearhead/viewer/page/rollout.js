// Rollout: what one token has been given by every token, layer by layer from the last down (Abnar and Zuidema 2020).

import { button, el, labelled, settled, sharp } from "./dom.js";
import { css } from "./colour.js";
import { Flow } from "./flow.js";
import { pictureButton } from "./save.js";
import { shading } from "./shading.js";
import { Latest } from "./source.js";
import { folded, table } from "./table.js";
import { counted, percent, quoted, weight } from "./words.js";

const AT_REST = 150; // milliseconds without a step
const LONG = 2000; // tokens from which on the wait is explained

/** @param {import("./app.js").App} app @returns {import("./app.js").View} */
export function rolloutView(app) {
  const { doc } = app;
  if (!doc.rollout) {
    const why = "Rollout needs the queries and keys of every layer, and as many queries as keys: watch with keep=\"qk\". In a single file it is left out.";
    return { element: el("section", {}, el("h2", { text: "Rollout" }), el("p", { text: why })), update() {}, close() {}, redraw() {} };
  }
  /** @type {import("./types.js").Arr | null} */
  let shares = null;
  /** @type {number[]} */
  let layers = [];
  const asking = new Latest();
  let closed = false;
  let top = 1; // the largest share, which is brightest
  /** How many layers down from the last: all of them unless said otherwise. */
  const depth = () => Math.min(layers.length, Math.max(1, Number(app.place.down ?? layers.length) || layers.length));
  const at = () => {
    const T = doc.tokens.length;
    return shares ? shares.data.subarray((depth() - 1) * T, depth() * T) : new Float64Array(0);
  };
  const flow = new Flow({
    tokens: doc.tokens, prompt: doc.prompt, groups: null, label: "The text, shaded by what the chosen token was given; arrow keys choose another",
    chosen: (token) => app.go({ at: String(token) }), look: (n) => shading(app, at(), (m) => m, "sqrt", top)(n),
  });
  const canvas = el("canvas", { class: "bands-map", role: "img" });
  const said = el("p", { class: "said", "aria-live": "polite" });
  const list = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What it was given" });
  const slider = el("input", { type: "range", min: "1", max: String(doc.layers.length), oninput: () => app.go({ down: slider.value }) });
  const number = el("input", { type: "number", min: "0", max: String(doc.tokens.length - 1), onchange: () => app.go({ at: number.value }) });
  const bright = el("p", { class: "soft" });
  const where = el("output", { class: "soft" });
  const whole = folded("Every layer as a table", () => ({
    name: "rollout", caption: `Shares after each layer, of the 200 tokens that were given most at the input`,
    columns: [{ title: "at", number: true }, { title: "token", show: quoted }, ...layers.map((layer) => ({ title: `L${layer}`, number: true, show: weight }))],
    rows: best(200).map(([n]) => [n, doc.tokens[n], ...layers.map((_, down) => shares?.data[down * doc.tokens.length + n] ?? 0)]),
  }));
  const element = el("div", { class: "beside" },
    el("section", { "aria-labelledby": "rollout-title" },
      el("div", { class: "title" }, el("h2", { id: "rollout-title", text: "Rollout" }), el("p", { class: "soft", text: "What the chosen token was given by every token, through all layers: half of each layer's output is taken to come past its attention. A convention, not a measurement." })),
      el("div", { class: "tools" }, labelled("From token", number), labelled("Layers down", slider), where,
        button("‹", () => app.go({ at: String(Number(app.place.at) - 1) }), { "aria-label": "Token before" }), button("›", () => app.go({ at: String(Math.min(doc.tokens.length - 1, Number(app.place.at) + 1)) }), { "aria-label": "Token after" })),
      canvas, el("p", { class: "soft", text: "A row a layer, the last on top, each with colours up to its own largest share; a column a token." }), bright, flow.element, whole, el("p", { class: "tools" }, pictureButton(() => canvas, "rollout"))),
    el("aside", { "aria-label": "What it was given" }, said, list));

  /** @param {number} most @returns {[number, number][]} */
  const best = (most) => Array.from(at(), (value, n) => /** @type {[number, number]} */ ([n, value])).filter(([, v]) => v > 0).sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, most);

  const largest = (/** @type {number} */ row) => {
    const T = doc.tokens.length;
    let most = 1e-9;
    for (let n = row * T; n < (row + 1) * T; n++) most = Math.max(most, shares?.data[n] ?? 0);
    return most;
  };

  const draw = () => {
    if (!shares || !canvas.clientWidth) return;
    const [L, T] = shares.shape, high = Math.max(4, Math.min(14, 240 / L)), left = 34, wide = canvas.clientWidth - left;
    canvas.style.height = `${L * high}px`;
    const pen = sharp(canvas, canvas.clientWidth, L * high);
    const { ground, soft, accent } = app.ink();
    pen.fillStyle = ground;
    pen.fillRect(left, 0, wide, L * high);
    const columns = Math.min(T, Math.floor(wide));
    const tops = Array.from({ length: L }, (_, row) => largest(row));
    for (let row = 0; row < L; row++)
      for (let x = 0; x < columns; x++) {
        let most = 0;
        for (let n = Math.floor((x * T) / columns); n < ((x + 1) * T) / columns; n++) most = Math.max(most, shares.data[row * T + n]);
        if (most < 1e-5) continue;
        pen.fillStyle = css(app.ramp, Math.sqrt(most / tops[row]));
        pen.fillRect(left + (x * wide) / columns, row * high, Math.ceil(wide / columns), high);
      }
    pen.fillStyle = soft;
    pen.font = "10px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let row = 0; row < L; row += Math.ceil(12 / high)) pen.fillText(`L${layers[row]}`, 2, (row + 0.5) * high);
    pen.strokeStyle = accent;
    pen.lineWidth = 2;
    pen.strokeRect(left + 1, (depth() - 1) * high + 1, wide - 2, high - 2);
    canvas.setAttribute("aria-label", `Shares of ${T} tokens after each of ${L} layers; the table below holds the numbers`);
  };

  const fill = () => {
    const token = Number(app.place.at);
    slider.value = String(depth());
    where.textContent = `${depth()} of ${layers.length}: down to layer ${layers[depth() - 1] ?? ""}`;
    const rows = best(15);
    top = Math.max(rows[0]?.[1] ?? 1, 1e-9);
    bright.textContent = `The brightest token has ${percent(top)}.`;
    said.textContent = `Token ${token} ${quoted(doc.tokens[token])}, ${depth()} layers down, was given most by ${rows.slice(0, 3).map(([n, v]) => `${quoted(doc.tokens[n])} (${percent(v)})`).join(", ")}.`;
    list.replaceChildren(table({ name: "rollout-tokens", caption: "What it was given", columns: [{ title: "token", show: quoted }, { title: "at", number: true }, { title: "share", number: true, show: percent }],
      rows: rows.map(([n, v]) => [doc.tokens[n], n, v]), pick: ([, n]) => app.go({ at: String(n) }), picks: ([piece, n]) => `${quoted(piece)}: roll out from token ${n}` }));
    flow.show(token);
    draw();
    whole.again();
  };

  /** The token moves at once; it is rolled out when it has come to rest, for that takes as long as the text is. */
  const load = () => {
    asking.stop();
    number.value = app.place.at;
    element.setAttribute("aria-busy", "true");
    said.textContent = `Rolling out through all layers…${doc.tokens.length < LONG ? "" : ` Of ${counted(doc.tokens.length)} tokens that takes a while, and other views wait for it.`}`;
    flow.show(Number(app.place.at));
    ask();
  };
  const ask = settled(async () => {
    if (closed) return;
    const signal = asking.next();
    try {
      const found = await app.source.ask("rollout", { trace: app.trace, position: Number(app.place.at) }, signal);
      if (signal.aborted) return;
      shares = found.arrays.shares;
      layers = found.facts.layers;
      fill();
    } catch (error) {
      app.fail(error);
    }
    if (!signal.aborted) element.removeAttribute("aria-busy");
  }, AT_REST);
  const watching = new ResizeObserver(draw);
  watching.observe(canvas);
  return {
    element,
    update(place, before) {
      if (place.at !== before.at || place.view !== before.view || !shares) load();
      else if (place.down !== before.down) fill();
    },
    redraw() {
      draw();
      flow.again();
    },
    close() {
      closed = true;
      asking.stop();
      watching.disconnect();
      flow.close();
    },
  };
}
