"use strict";
// Everything the text or the model said is set through textContent, never as markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer;
  const T = data.tokens.length, K = data.kept, NONE = data.wide ? 0xffffffff : 0xffff;
  const LEAST = 0.002; // weights below leave their token unshaded; the tables still list them
  const ramp = new Uint8Array(bytes(data.ramp));
  for (const head of data.heads) {
    head.map = new Uint16Array(bytes(head.map));
    head.keys = new (data.wide ? Uint32Array : Uint16Array)(bytes(head.keys));
    head.weights = new Float32Array(bytes(head.weights));
    head.received = new Float32Array(bytes(head.received));
  }
  const byName = new Map(data.heads.map((head) => [head.name, head]));
  const state = { head: byName.get(data.head), token: data.query, from: false, scale: "sqrt", noFirst: false };
  let dark = !matchMedia("(prefers-color-scheme: light)").matches;

  const make = (tag, given = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), given);
    element.append(...children);
    return element;
  };
  const percent = (x) => (x >= 0.9995 ? "100 %" : x >= 0.1 ? (100 * x).toFixed(1) + " %" : (100 * x).toFixed(2) + " %");
  const fixed = (x) => (x === null ? "none" : x.toFixed(2));
  const size = (n) => {
    for (const unit of ["B", "kB", "MB", "GB", "TB"]) {
      if (n < 1000 || unit === "TB") return (unit === "B" ? n : n.toFixed(1)) + " " + unit;
      n /= 1000;
    }
  };

  // Colour: a weight's share of the scale, then the ramp; on a light ground the ramp runs the other way, from paper to ink.
  const share = (x) => {
    x = Math.min(1, Math.max(0, x));
    if (state.scale === "sqrt") return Math.sqrt(x);
    return state.scale === "linear" ? x : Math.log1p(999 * x) / Math.log(1000);
  };
  const colour = (t) => {
    const n = 3 * Math.round(255 * (dark ? t : 1 - t));
    return [ramp[n], ramp[n + 1], ramp[n + 2]];
  };
  const inkOn = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  };
  const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

  // Maps. White is not the largest cell but the 99.5th of a hundred outside the first token's column, which would drown the rest.
  const draw = (canvas, head) => {
    const [rows, columns] = head.shape;
    canvas.width = columns;
    canvas.height = rows;
    const value = (n) => (head.map[n] / 0xffff) ** 2;
    const others = [];
    for (let n = 0; n < head.map.length; n++) if (head.map[n] && (n % columns || columns < 2)) others.push(value(n));
    others.sort((a, b) => a - b);
    const top = others.length ? Math.max(others[Math.floor(0.995 * (others.length - 1))], 1e-6) : 1;
    const image = new ImageData(columns, rows);
    for (let n = 0; n < head.map.length; n++) {
      if (!head.map[n] || (state.noFirst && columns > 1 && n % columns === 0)) continue;
      image.data.set([...colour(share(value(n) / top)), 255], 4 * n);
    }
    canvas.getContext("2d").putImageData(image, 0, 0);
  };

  // Where token i looks, and who looks at it, through the chosen head: among the keys kept for every token.
  const looksAt = (i) => {
    const found = [];
    for (let n = i * K; n < (i + 1) * K; n++)
      if (state.head.keys[n] !== NONE && state.head.weights[n] > 0) found.push([state.head.keys[n], state.head.weights[n]]);
    return found;
  };
  const lookedAtBy = (j) => {
    const found = [];
    for (let n = 0; n < T * K; n++)
      if (state.head.keys[n] === j && state.head.weights[n] > 0) found.push([Math.floor(n / K), state.head.weights[n]]);
    return found.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  };

  // The text: one option a token; a leading space stands between options, line ends end lines.
  const options = data.tokens.map((piece, n) => {
    const spaces = /^·*/.exec(piece)[0].length;
    const rest = piece.slice(spaces);
    const option = make("span", { tabIndex: -1 });
    option.setAttribute("role", "option");
    option.dataset.at = n;
    if (n >= data.prompt) option.classList.add("wrote");
    if (!rest || /^(↵|<\|.*\|>$)/.test(rest)) option.classList.add("sign");
    option.textContent = rest ? rest.replaceAll("·", " ") : piece;
    if (n === data.prompt && n < T)
      $("text").append(Object.assign(make("span", { className: "mark", textContent: "written by the model" }), { role: "presentation" }));
    if (rest && spaces) $("text").append(" ".repeat(spaces));
    $("text").append(option, "\n".repeat([...piece].filter((c) => c === "↵").length));
    return option;
  });

  const grid = $("heads");
  const columns = Math.max(...data.heads.map((head) => head.head)) + 1;
  grid.style.setProperty("--columns", columns);
  grid.append(make("b", { textContent: "" }));
  for (let h = 0; h < columns; h++) grid.append(make("b", { className: "top", textContent: "H" + h }));
  for (const { layer, module } of data.layers) {
    grid.append(make("b", { textContent: "L" + layer, title: module }));
    for (let h = 0; h < columns; h++) {
      const head = byName.get(`L${layer}H${h}`);
      if (!head) { grid.append(make("i")); continue; }
      const score = head.roles.find((r) => r.role === head.role);
      const caption = make("span", {}, ...(head.role ? [dot(head.role)] : []),
        make("em", { textContent: head.role ?? "no role", className: head.role ? "" : "none" }));
      head.canvas = make("canvas");
      head.button = make("button", { type: "button", className: "thumb", tabIndex: -1, title: head.name }, head.canvas, caption);
      head.button.setAttribute("aria-label", `${head.name}, ${head.role ? `${head.role} ${fixed(score.score)}` : "no role labelled"}`);
      head.button.addEventListener("click", () => choose({ head }));
      grid.append(head.button);
    }
  }
  function dot(role) {
    const mark = make("i", { className: "dot" });
    mark.style.background = data.colours[role];
    return mark;
  }
  for (const role of Object.keys(data.colours)) {
    const count = data.heads.filter((head) => head.role === role).length;
    if (count) $("legend").append(make("li", {}, dot(role), `${role} × ${count}`));
  }

  const fact = (name, value) => $("facts").append(make("div", {}, make("dt", { textContent: name }), make("dd", { textContent: value })));
  fact("model", data.model);
  fact("layers, heads", `${data.layers.length}, ${data.heads.length}`);
  fact("tokens", T > data.prompt ? `${data.prompt} + ${T - data.prompt} written` : `${T}`);
  fact("all T×T weights", size(data.bytes.pattern));
  fact("observed", size(data.bytes.observed));
  if (data.part) { $("part").textContent = data.part; $("part").hidden = false; }
  $("kept").textContent = `For every token the ${K} keys with the largest weights are on this page, exact; smaller ones are not. Maps are exact means over all pairs of a cell; totals received are over all tokens.`;

  const paint = () => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").textContent = dark ? "Light" : "Dark";
    for (const head of data.heads) draw(head.canvas, head);
    $("bar").replaceChildren(...[0.002, 0.01, 0.05, 0.1, 0.25, 0.5, 1].map((w) => {
      const swatch = make("i");
      swatch.style.background = css(colour(share(w)));
      return make("span", {}, swatch, `${100 * w} %`);
    }));
    show();
  };

  const show = () => {
    const { head, token, from } = state;
    for (const other of data.heads) {
      other.button.setAttribute("aria-pressed", String(other === head));
      other.button.tabIndex = other === head ? 0 : -1;
    }
    $("head-title").textContent = head.name + (head.role ? ` · ${head.role}` : "");
    $("head-facts").textContent = `entropy ${head.entropy.toFixed(2)} nats, ${percent(head.share)} of uniform; looks ${head.distance.toFixed(1)} tokens back on average`;
    draw($("big"), head);
    $("big").setAttribute("aria-label", `Map of ${head.name}: ${T} looking tokens down, ${T} tokens looked at across. The tables hold the same weights as numbers.`);
    $("row").style.top = $("column").style.left = `${(100 * (token + 0.5)) / T}%`;
    for (const id of ["wrote-row", "wrote-column"]) $(id).hidden = data.prompt >= T;
    $("wrote-row").style.top = $("wrote-column").style.left = `${(100 * data.prompt) / T}%`;
    $("roles").tBodies[0].replaceChildren(...head.roles.map((r) => {
      const gauge = make("span", { className: "gauge" }), fill = make("b"), null_ = make("i");
      fill.style.width = `${100 * Math.min(1, r.score ?? 0)}%`;
      fill.style.background = data.colours[r.role];
      null_.style.left = `calc(${100 * Math.min(1, r.null ?? 0)}% - 1px)`;
      gauge.append(fill, ...(r.null === null ? [] : [null_]));
      gauge.setAttribute("aria-hidden", "true");
      const name = make("th", { scope: "row" }, r.role, ...(r.labelled ? [" ✓"] : []), gauge);
      return make("tr", { className: r.labelled ? "is" : "" }, name, make("td", { className: "n", textContent: fixed(r.score) }),
        make("td", { className: "n null", textContent: fixed(r.null) }));
    }));

    const at = looksAt(token), by = lookedAtBy(token);
    const shaded = new Map(from ? by : at);
    options.forEach((option, n) => {
      const weight = state.noFirst && n === 0 ? 0 : shaded.get(n) ?? 0;
      const rgb = weight >= LEAST ? colour(share(weight)) : null;
      option.style.background = rgb ? css(rgb) : "";
      option.style.color = rgb ? inkOn(rgb) : "";
      option.setAttribute("aria-selected", String(n === token));
      option.tabIndex = n === token ? 0 : -1;
      option.setAttribute("aria-label", `${data.tokens[n]}, token ${n}${n >= data.prompt ? ", written" : ""}${weight > 0 ? ", " + percent(weight) : ""}`);
    });
    $("to").setAttribute("aria-pressed", String(!from));
    $("from").setAttribute("aria-pressed", String(from));
    const held = at.reduce((sum, [, w]) => sum + w, 0);
    fill($("looks"), at, `Looks at: ${at.length} keys with ${percent(held)} of its weight`);
    fill($("looked"), by, `Looked at by: ${by.length} tokens; ${head.received[token].toFixed(2)} received in all`);
    $("said").textContent = `Token ${token}, “${data.tokens[token]}”, through ${head.name} looks most at ${at.slice(0, 3).map(([j, w]) => `“${data.tokens[j]}” (${percent(w)})`).join(", ") || "nothing"}.`;
  };

  const fill = (table, rows, caption) => {
    table.caption.textContent = caption;
    table.tHead.hidden = !rows.length;
    table.tBodies[0].replaceChildren(...rows.slice(0, 10).map(([n, weight]) => {
      const button = make("button", { type: "button", textContent: data.tokens[n] });
      button.setAttribute("aria-label", `${data.tokens[n]}: go to token ${n}`);
      button.addEventListener("click", () => choose({ token: n }));
      const gauge = make("span", { className: "gauge" }), bar = make("b");
      bar.style.width = `${(100 * weight) / rows[0][1]}%`;
      bar.style.background = "var(--accent)";
      gauge.append(bar);
      gauge.setAttribute("aria-hidden", "true");
      return make("tr", {}, make("td", {}, button, gauge), make("td", { className: "n null", textContent: n }), make("td", { className: "n", textContent: percent(weight) }));
    }));
  };

  const choose = (change, focus = false) => {
    Object.assign(state, change);
    show();
    if (focus) (change.head ? state.head.button : options[state.token]).focus();
    try { history.replaceState(null, "", `#${state.head.name}/${state.token}`); } catch { /* a page without an address */ }
  };

  $("text").addEventListener("click", (event) => {
    const option = event.target.closest("[role=option]");
    if (option) choose({ token: Number(option.dataset.at) }, true);
  });
  $("text").addEventListener("keydown", (event) => {
    const to = { ArrowLeft: state.token - 1, ArrowRight: state.token + 1, Home: 0, End: T - 1 }[event.key] ?? line(event.key);
    if (to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    choose({ token: Math.min(T - 1, Math.max(0, to)) }, true);
  });
  // Up and down: the option nearest in the line above or below.
  const line = (key) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (!step) return undefined;
    const here = options[state.token].getBoundingClientRect();
    let best, y;
    for (let n = state.token + step; n >= 0 && n < T; n += step) {
      const there = options[n].getBoundingClientRect();
      if (Math.abs(there.top - here.top) < here.height / 2) continue;
      y ??= there.top;
      if (Math.abs(there.top - y) > here.height / 2) break;
      const far = Math.abs(there.left - here.left);
      if (best === undefined || far < best.far) best = { n, far };
    }
    return best ? best.n : state.token;
  };
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const row = data.layers.findIndex(({ layer }) => layer === state.head.layer) + step[0];
    const next = data.layers[row] && byName.get(`L${data.layers[row].layer}H${state.head.head + step[1]}`);
    if (next) choose({ head: next }, true);
  });
  const cellOf = (event) => {
    const box = $("big").getBoundingClientRect(), [rows, columns] = state.head.shape;
    const row = Math.min(rows - 1, Math.max(0, Math.floor((rows * (event.clientY - box.top)) / box.height)));
    const column = Math.min(columns - 1, Math.max(0, Math.floor((columns * (event.clientX - box.left)) / box.width)));
    return { row, column, rows, columns };
  };
  const span = (cell, cells) => {
    const first = Math.floor((cell * T) / cells), last = Math.floor(((cell + 1) * T) / cells) - 1;
    const words = data.tokens.slice(first, last + 1).join("");
    return last > first ? `tokens ${first} to ${last} “${words}”` : `token ${first} “${words}”`;
  };
  $("map").addEventListener("pointermove", (event) => {
    const { row, column, rows, columns } = cellOf(event);
    const weight = (state.head.map[row * columns + column] / 0xffff) ** 2;
    $("readout").textContent = `${span(row, rows)} at ${span(column, columns)}: ${percent(weight)}${rows < T ? " on average" : ""}`;
  });
  $("map").addEventListener("click", (event) => {
    const { row, rows } = cellOf(event);
    choose({ token: Math.floor((row * T) / rows) });
  });
  $("to").addEventListener("click", () => choose({ from: false }));
  $("from").addEventListener("click", () => choose({ from: true }));
  $("scale").addEventListener("change", (event) => { state.scale = event.target.value; paint(); });
  $("nofirst").addEventListener("change", (event) => { state.noFirst = event.target.checked; paint(); });
  $("theme").addEventListener("click", () => { dark = !dark; paint(); });

  const asked = /^#(L\d+H\d+)\/(\d+)$/.exec(location.hash);
  if (asked && byName.has(asked[1]) && Number(asked[2]) < T) Object.assign(state, { head: byName.get(asked[1]), token: Number(asked[2]) });
  paint();
})();
