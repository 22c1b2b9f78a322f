// The text itself: where a token looks, or who looks at it, through a head, some heads, a layer's mean.

import { button, choice, el, labelled, renew } from "./dom.js";
import { css } from "./colour.js";
import { dot } from "./card.js";
import { Flow } from "./flow.js";
import { share, shading } from "./shading.js";
import { Latest } from "./source.js";
import { folded, table } from "./table.js";
import { fixed, many, percent, quoted, weight } from "./words.js";

/** @param {import("./app.js").App} app @returns {import("./app.js").View} */
export function textView(app) {
  const { doc } = app;
  /** @type {ArrayLike<number>} */
  let shades = [];
  let offset = 0;
  const asking = new Latest();
  const heads = () => app.place.heads || app.place.head;
  const from = () => app.place.side === "from";
  const layer = () => app.layer(app.head(app.place.head).layer);
  const flow = new Flow({
    tokens: doc.tokens, prompt: doc.prompt, groups: doc.groups?.ids ?? null, label: "The text, token by token; arrow keys move, and what is chosen is shown",
    chosen: (at) => app.go({ at: String(at), key: "" }),
    look: (at) => shading(app, shades, (n) => (from() ? n - offset : n), app.place.scale || "sqrt")(at),
  });
  const input = el("input", { type: "text", size: "14", spellcheck: "false", list: "all-heads", onchange: () => app.go({ heads: input.value.trim() === app.place.head ? "" : input.value.trim() }) });
  const field = labelled("Heads", input, "Heads with commas between them: L2H3, a layer L2, or all");
  const title = el("h2", { id: "text-title" });
  const said = el("p", { class: "said", "aria-live": "polite" });
  const looks = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Where it looks" });
  const copies = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Heads that looked it up" });
  const looked = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Who looks at it" });
  const bar = el("div", { class: "swatches", "aria-hidden": "true" });
  const groups = el("div");
  /** @type {any[][]} */
  let all = [];
  const whole = folded("Every weight as a table", () => ({
    name: "weights", caption: said.textContent ?? "", columns: [{ title: "at", number: true }, { title: "token", show: quoted }, { title: "weight", number: true, show: weight }],
    rows: all, pick: ([at]) => app.go({ at: String(at) }), picks: ([at]) => `Go to token ${at}`,
  }));
  const tools = el("div", { class: "tools" });
  const switches = el("div", { class: "switch", role: "group", "aria-label": "What the shading shows" });
  const element = el("div", { class: "beside" },
    el("section", { "aria-labelledby": "text-title" }, el("div", { class: "title" }, title, switches), tools, flow.element, bar, whole, groups),
    el("aside", { "aria-label": "The chosen token" }, said, copies, looks, looked));

  const chrome = () => {
    const head = app.head(app.place.head);
    title.replaceChildren(...(app.place.heads ? [] : [dot(head.role)]), `Text through ${app.place.heads || head.head}${head.role && !app.place.heads ? ` · ${head.role}` : ""}`);
    input.value = heads();
    renew(switches,
      button("where it looks", () => app.go({ side: "" }), { "aria-pressed": String(!from()) }),
      button("who looks at it", () => app.go({ side: "from" }), { "aria-pressed": String(from()) }));
    const one = doc.heads.map(({ head: name, role }) => /** @type {[string, string]} */ ([name, role ? `${name} · ${role}` : name]));
    renew(tools,
      choice("Head", one, app.place.head, (name) => app.go({ head: name, heads: "" })),
      button("Its layer, mean", () => app.go({ heads: `L${head.layer}` }), { "aria-pressed": String(app.place.heads === `L${head.layer}`) }),
      button("All heads, mean", () => app.go({ heads: "all" }), { "aria-pressed": String(app.place.heads === "all") }),
      field,
      el("datalist", { id: "all-heads" }, ...doc.layers.map(({ layer: n }) => el("option", { value: `L${n}` })), el("option", { value: "all" })),
      choice("Scale", [["", "square root"], ["linear", "linear"], ["log", "logarithm"]], ["linear", "log"].includes(app.place.scale) ? app.place.scale : "", (scale) => app.go({ scale })),
    );
    const ramp = app.ramp;
    bar.replaceChildren(...[0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1].map((w) => el("span", {}, el("i", { style: { background: css(ramp, share(w, app.place.scale || "sqrt")) } }), `${100 * w} %`)));
  };

  /** Heads that, while a token was written, looked most at that very token; each leads to the query that wrote it. */
  const showCopies = (/** @type {number} */ token) => {
    const found = (doc.lookups ?? []).filter(([at]) => at === token);
    copies.hidden = found.length === 0;
    const group = (/** @type {number} */ key) => doc.groups?.names[doc.groups.ids[key]] ?? "";
    const columns = [{ title: "head" }, ...(doc.groups ? [{ title: "in" }] : []), { title: "at", number: true }, { title: "weight", number: true, show: percent }];
    copies.replaceChildren(...(found.length === 0 ? [] : [table({
      name: "", caption: `Looked up while it was written, by ${many(found.length, "head")}`, columns,
      rows: found.map(([, head, key, value]) => [head, ...(doc.groups ? [group(key)] : []), key, value]),
      pick: ([head]) => app.go({ head, heads: "", at: String(token - 1), key: "" }), picks: ([head]) => `${head}: see where it looked`,
    })]));
  };

  const load = async () => {
    const token = Number(app.place.at);
    const signal = asking.next();
    flow.show(token);
    showCopies(token);
    const { queries, keys, offset: first, crosses } = layer();
    const ask = (/** @type {string} */ axis) => app.source.ask("line", { trace: app.trace, heads: heads(), axis, at: token }, signal);
    const none = { facts: { exact: true, kept: 0 }, arrays: { values: { data: new Float64Array(0), shape: [0] } } };
    element.setAttribute("aria-busy", "true");
    try {
      const [to, by] = await Promise.all([token >= first && token < first + queries ? ask("query") : none, token < keys && !crosses ? ask("key") : none]);
      if (signal.aborted) return;
      offset = first;
      const pairs = (/** @type {import("./types.js").Answer} */ { arrays }, /** @type {number} */ shift) =>
        Array.from(arrays.values.data, (value, n) => /** @type {[number, string, number]} */ ([n + shift, shift || !crosses ? doc.tokens[n + shift] ?? "" : `key ${n}`, value])).filter(([, , value]) => value > 0).sort((a, b) => b[2] - a[2] || a[0] - b[0]);
      const at = pairs(to, 0), back = pairs(by, first);
      shades = (from() ? by : to).arrays.values.data;
      flow.again();
      all = from() ? back : at;
      const sum = at.reduce((total, [, , value]) => total + value, 0), given = back.reduce((total, [, , value]) => total + value, 0);
      const exact = to.facts.exact;
      said.textContent = `Token ${token} ${quoted(doc.tokens[token])} through ${heads()} looks most at ${at.slice(0, 3).map(([, piece, value]) => `${quoted(piece)} (${percent(value)})`).join(", ") || "nothing"}.`;
      if (!exact && at.length === 0) said.textContent = `Token ${token} ${quoted(doc.tokens[token])}: what it looks at through ${heads()} is not known here; its weights were left out.`;
      const list = (/** @type {[number, string, number][]} */ rows, /** @type {string} */ caption) => table({
        name: "", caption, columns: [{ title: "token", show: quoted }, { title: "at", number: true }, { title: "weight", number: true, show: percent }],
        rows: rows.slice(0, 12).map(([n, piece, value]) => [piece, n, value]), pick: ([, n]) => app.go({ at: String(n), key: "" }), picks: ([piece, n]) => `${quoted(piece)}: go to token ${n}`,
      });
      looks.hidden = looked.hidden = !exact && at.length === 0 && back.length === 0;
      looks.replaceChildren(list(at, exact ? `Looks at ${many(at.length, "token")}` : `Looks at: the ${at.length} keys kept, ${percent(sum)} of its weight`));
      looked.replaceChildren(list(back, exact ? `Looked at by ${many(back.length, "token")}, ${fixed(given)} received in all` : `Looked at by: ${back.length} tokens of which it is among the largest`));
      whole.again();
    } catch (error) {
      app.fail(error);
    }
    if (!signal.aborted) element.removeAttribute("aria-busy");
  };

  const showGroups = async () => {
    if (!doc.groups) return;
    const names = doc.groups.names;
    groups.replaceChildren(el("ul", { class: "bands", "aria-label": "Groups" }, ...names.map((name, n) => el("li", {}, el("i", { class: "band", "data-group": n % 8, "data-again": n < 8 ? null : "", "aria-hidden": "true" }), name))));
    const { arrays } = await app.source.ask("strips", { trace: app.trace, head: app.place.head });
    if (!arrays.group_mean) return;
    const values = arrays.group_mean;
    const G = values.shape[0];
    const columns = [{ title: "from \\ to" }, ...names.slice(0, G).map((title) => ({ title, number: true, show: percent }))];
    groups.append(el("div", { class: "scroll groups", tabindex: "0", role: "region", "aria-label": "Weight between groups" }, table({ name: "groups", caption: `Through ${app.place.head}: the mean weight that tokens of each group (rows) put on each group (columns)`, columns,
      rows: Array.from({ length: G }, (_, g) => [names[g] ?? String(g), ...Array.from(values.data.slice(g * G, (g + 1) * G))]) })));
  };

  return {
    element,
    update(place, before) {
      const changed = (/** @type {string[]} */ ...names) => names.some((name) => place[name] !== before[name]);
      if (changed("view", "head", "heads", "side", "scale", "trace")) chrome();
      load();
      if (changed("view", "head", "trace")) showGroups().catch((error) => app.fail(error));
    },
    redraw() {
      chrome();
      flow.again();
    },
    close() {
      asking.stop();
      flow.close();
    },
  };
}
