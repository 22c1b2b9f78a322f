"use strict";
// Pages arrive as data, from the file itself or from the server, and everything in them is set through textContent.
(() => {
  const $ = (id) => document.getElementById(id);
  const embedded = $("data") ? JSON.parse($("data").textContent) : null;
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let facts = embedded, settings = embedded ? { ...embedded.first } : { text: null, time: null, width: null, seed: 1337 };
  let dark, ramp, shown = "", stop = () => {};

  const make = (tag, given = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), given);
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const attributes = (element, given) => {
    for (const [name, value] of Object.entries(given)) element.setAttribute(name, value);
    return element;
  };
  const drawn = (tag, given, text) => {
    const element = attributes(document.createElementNS("http://www.w3.org/2000/svg", tag), given);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const fixed = (x, decimals = 4) => {
    if (x === null || x === undefined) return "";
    if (x === "-inf") return "-inf";
    const text = x.toFixed(decimals);
    return Number(text) === 0 ? text.replace("-", "") : text;
  };
  const say = (text) => { $("said").textContent = text; };

  // Colour. A weight runs along the ramp, a signed number from the ground to orange or blue; on paper both run to dark.
  const mix = (from, to, t) => from.map((c, n) => Math.round(c + (to[n] - c) * t));
  const ofWeight = (w) => {
    const n = 3 * Math.round(255 * (dark ? Math.sqrt(w) : 1 - Math.sqrt(w)));
    return [ramp[n], ramp[n + 1], ramp[n + 2]];
  };
  const ofSigned = (x, top) => {
    const t = Math.min(1, Math.abs(x) / (top || 1));
    return dark ? mix([21, 27, 36], x < 0 ? [92, 182, 236] : [238, 170, 58], t) : mix([255, 254, 251], x < 0 ? [26, 105, 170] : [196, 98, 0], t);
  };
  const inkOn = (rgb) => {
    const [r, g, b] = rgb.map((c) => (c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
  };
  const colours = new WeakMap(); // how each cell was coloured, for when the theme turns
  const paint = (cell, colour) => {
    colours.set(cell, colour);
    const rgb = colour();
    cell.style.backgroundColor = rgb ? `rgb(${rgb.join(" ")})` : "";
    cell.style.color = rgb ? inkOn(rgb) : "";
  };
  const largest = (values) => Math.max(1e-9, ...values.flat().filter((v) => typeof v === "number").map(Math.abs));

  // Matrices: a table of numbers, one stop for Tab, arrows inside.
  function matrix({ name, values, shade = "signed", rows = [], columns = [], decimals = 4 }, wide = 10) {
    const small = values[0].length > wide;
    const places = small && decimals > 2 && shade === "weight" ? 2 : small ? Math.min(decimals, 2) : decimals;
    const table = attributes(make("table", { className: small ? "m small" : "m" }), { role: "grid", "aria-label": name });
    const top = largest(values), cells = [];
    if (columns.length)
      table.append(make("thead", {}, make("tr", {}, ...(rows.length ? [make("td", { className: "gone" })] : []),
        ...columns.map((c) => make("th", { scope: "col", textContent: c, title: c })))));
    const body = make("tbody");
    values.forEach((row, i) => {
      const line = make("tr", {}, ...(rows.length ? [make("th", { scope: "row", textContent: rows[i], title: rows[i] })] : []));
      cells.push(row.map((value, j) => {
        const cell = attributes(make("td", { textContent: fixed(value, places), tabIndex: i || j ? -1 : 0 }), { role: "gridcell" });
        if (value === null) cell.className = "gone";
        else if (value === "-inf" || (shade === "weight" && value < 0.5 * 0.1 ** places)) cell.className = "none";
        if (small && shade === "weight" && value === 0) cell.textContent = "";
        if (cell.className) { /* the table's own ground */ }
        else if (shade === "weight") paint(cell, () => ofWeight(value));
        else if (shade === "signed") paint(cell, () => (Math.abs(value) / top < 0.04 ? null : ofSigned(value, top)));
        line.append(cell);
        return cell;
      }));
      body.append(line);
    });
    table.append(body);
    const heads = { rows: [...body.querySelectorAll("th")], columns: [...table.querySelectorAll("thead th")] };
    const at = (cell) => {
      for (let i = 0; i < cells.length; i++) { const j = cells[i].indexOf(cell); if (j >= 0) return [i, j]; }
      return null;
    };
    const point = (i, j) => {
      for (const head of [...heads.rows, ...heads.columns]) head.classList.remove("pointed");
      heads.rows[i]?.classList.add("pointed");
      heads.columns[j]?.classList.add("pointed");
      table.dispatchEvent(new CustomEvent("point", { detail: [i, j] }));
    };
    table.addEventListener("pointerover", (event) => { const found = at(event.target.closest("td")); if (found) point(...found); });
    table.addEventListener("focusin", (event) => { const found = at(event.target.closest("td")); if (found) point(...found); });
    table.addEventListener("keydown", (event) => {
      const found = at(event.target.closest("td"));
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!found || !step || event.altKey || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      const next = cells[found[0] + step[0]]?.[found[1] + step[1]];
      if (!next || next.className === "gone") return;
      cells.flat().forEach((cell) => { cell.tabIndex = -1; });
      next.tabIndex = 0;
      next.focus();
    });
    return { table, cells, heads, at };
  }
  const scroll = (...inner) => make("div", { className: "scroll" }, ...inner);
  const figure = (item) => make("figure", { className: "grid" },
    make("figcaption", {}, make("b", { textContent: item.name }), make("span", { textContent: item.shape }), make("span", { textContent: item.note })),
    scroll(matrix(item).table));

  // Blocks.
  const code = (pieces) => pieces.map(([kind, text]) => (kind ? make("span", { className: kind, textContent: text }) : text));
  const prose = (text) => text.split(/(`[^`]+`|\*\*.+?\*\*)/).filter(Boolean).map((part) =>
    part.startsWith("`") ? make("code", { textContent: part.slice(1, -1) }) : part.startsWith("**") ? make("b", { textContent: part.slice(2, -2) }) : part);
  const isNumber = (text) => /^(-?[\d,.]+(e-?\d+)?( MiB|%| ms| µs| s)?|-inf|)$/.test(text);
  const blocks = {
    say: (b) => make("p", {}, ...prose(b.text)),
    source: (b) => make("figure", { className: "source" }, make("figcaption", { textContent: b.file }), make("pre", { tabIndex: 0 }, make("code", {}, ...code(b.code)))),
    ran: (b) => make("div", { className: "ran" }, make("pre", {}, make("code", {}, ...code(b.code)))),
    grids: (b) => make("div", { className: "grids" }, ...b.items.map(figure)),
    equal: (b) => make("p", { className: b.holds ? "equal" : "equal not" }, make("strong", { textContent: b.holds ? "equal" : "NOT equal" }), b.what,
      make("span", {}, "largest difference ", make("em", { textContent: b.difference ? b.difference.toExponential(1) : "0" }))),
    table(b) {
      const right = b.head.map((_, n) => !b.wide && b.rows.every((row) => isNumber(row[n])));
      const table = make("table", { className: b.head.length === 1 ? "t mono" : "t" });
      if (b.caption) table.append(make("caption", { textContent: b.caption }));
      if (b.head.some(Boolean)) table.append(make("thead", {}, make("tr", {}, ...b.head.map((h, n) => attributes(make("th", { className: right[n] ? "r" : "", textContent: h }), { scope: "col" })))));
      table.append(make("tbody", {}, ...b.rows.map((row) => make("tr", {}, ...row.map((cell, n) =>
        make("td", { className: right[n] ? "r" : "" }, b.wide && n === 1 ? make("a", { href: "#" + row[0], textContent: cell }) : cell))))));
      return scroll(table);
    },
    cost(b) {
      const here = make("section", { className: "cost" }, make("h2", { textContent: "What it costs as T grows" }),
        make("p", { textContent: `One sequence, measured ${embedded ? "on the machine that wrote this page" : "here and now"}.` }));
      const table = blocks.table({ head: b.head, rows: b.rows, caption: "" });
      here.append(make("div", { className: "pair" }, table, plot(b)), make("p", { className: "note", textContent: b.note }));
      return here;
    },
    try: (b) => tries[b.kind](b),
  };

  // Time over length, both in powers of two, so that a straight line is a power of T.
  function plot(b) {
    const W = 400, H = 240, L = 62, R = 84, top = 12, bottom = 42;
    const times = b.points.flatMap(([, s, beside]) => [s, beside]).filter((s) => s !== null);
    const [low, high] = [Math.log2(Math.min(...times)), Math.log2(Math.max(...times))];
    const [first, last] = [Math.log2(b.points[0][0]), Math.log2(b.points.at(-1)[0])];
    const x = (T) => L + ((Math.log2(T) - first) / (last - first || 1)) * (W - L - R);
    const y = (s) => H - bottom - ((Math.log2(s) - low) / (high - low || 1)) * (H - top - bottom);
    const short = (x) => (x < 10 ? x.toFixed(1) : x.toFixed(0));
    const unit = (s) => (s < 1e-3 ? short(s * 1e6) + " µs" : short(s * 1e3) + " ms");
    const svg = drawn("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Time over T, both in powers of two; the numbers stand in the table.` });
    svg.append(drawn("line", { class: "axis", x1: L, x2: W - R, y1: H - bottom, y2: H - bottom }), drawn("line", { class: "axis", x1: L, x2: L, y1: top, y2: H - bottom }));
    for (const [T] of b.points) svg.append(drawn("text", { x: x(T), y: H - bottom + 17, "text-anchor": "middle" }, T));
    svg.append(drawn("text", { x: L + (W - L - R) / 2, y: H - 1, "text-anchor": "middle" }, "T, tokens"));
    for (const s of [2 ** low, 2 ** ((low + high) / 2), 2 ** high]) svg.append(drawn("text", { x: L - 7, y: y(s) + 4, "text-anchor": "end" }, unit(s)));
    const ends = [];
    for (const [n, kind, name] of [[2, "there", b.beside], [1, "here", "this rung"]]) {
      const points = b.points.filter((p) => p[n] !== null);
      if (!points.length) continue;
      svg.append(drawn("path", { class: kind, d: points.map((p, k) => `${k ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[n]).toFixed(1)}`).join("") }));
      for (const p of points) svg.append(drawn("circle", { class: kind, cx: x(p[0]), cy: y(p[n]), r: 3.5 }));
      ends.push([y(points.at(-1)[n]) + 4, kind, name]);
    }
    ends.sort((a, c) => a[0] - c[0]);
    if (ends.length === 2 && ends[1][0] - ends[0][0] < 15) ends[1][0] = ends[0][0] + 15;
    for (const [at, kind, name] of ends) svg.append(drawn("text", { class: kind, x: W - R + 9, y: at }, name));
    return svg;
  }

  // Things to play with.
  const box = (b, ...inner) => make("section", { className: "try" }, make("h2", { textContent: b.title }), make("p", { textContent: b.text }), ...inner);
  const names = (n) => (settingsLabels.length === n ? settingsLabels : Array.from({ length: n }, (_, t) => String(t)));
  let settingsLabels = [];
  const slider = (label, min, max, value, changed) => {
    const input = make("input", { type: "range", min, max, step: 1, value });
    const output = make("output");
    input.addEventListener("input", () => changed(Number(input.value)));
    return { input, output, label: make("label", {}, label, input, output) };
  };
  const choices = (legend, options, chosen, changed) => {
    const name = "choice" + Math.random().toString(36).slice(2);
    return make("fieldset", {}, make("legend", { textContent: legend }), ...options.map((option) => {
      const input = make("input", { type: "radio", name, checked: option === chosen });
      input.addEventListener("change", () => changed(option));
      return make("label", {}, input, String(option));
    }));
  };
  const bars = (rows) => {
    const top = Math.max(1e-9, ...rows.map((row) => row.value));
    return rows.map(({ name, value, text, leak }) => {
      const bar = make("u");
      bar.style.width = `${(100 * value) / top}%`;
      return make("div", { className: leak ? "leak" : "" }, make("span", { textContent: name, title: name }), make("div", {}, bar), make("span", { textContent: text }));
    });
  };

  const tries = {
    pair(b) {
      const { q, k, scores, weights } = b.data, T = weights.length, D = q[0].length, who = names(T);
      const grid = matrix({ name: "weights", values: weights, shade: "weight", rows: who, columns: who, decimals: T > 8 ? 2 : 3 });
      const out = make("div", { className: "readout" });
      const strip = (values, top) => make("div", { className: "strip" }, ...values.map((v) => { const cell = make("i", { title: fixed(v) }); paint(cell, () => ofSigned(v, top)); return cell; }));
      const show = (i, j) => {
        grid.cells.flat().forEach((cell) => cell.classList.remove("pointed"));
        grid.cells[i][j].classList.add("pointed");
        const products = q[i].map((v, d) => v * k[j][d]), dot = products.reduce((a, v) => a + v, 0);
        const top = Math.max(largest([q[i]]), largest([k[j]])), seen = j <= i;
        const total = scores[i].slice(0, i + 1).reduce((a, z) => a + Math.exp(z), 0);
        const verdict = seen
          ? [`Divided by √${D} = ${fixed(Math.sqrt(D), D === Math.sqrt(D) ** 2 && Number.isInteger(Math.sqrt(D)) ? 0 : 2)}: the score `, make("b", { textContent: fixed(scores[i][j]) }), `. e to that power is ${fixed(Math.exp(scores[i][j]))}; the row's sum is ${fixed(total)}; so the weight is `, make("b", { textContent: fixed(weights[i][j]) }), "."]
          : [`Divided by √${D}: ${fixed(scores[i][j])}. But token ${j} is the future of token ${i}: the mask puts -inf in its place, and the weight is exactly `, make("b", { textContent: "0" }), "."];
        out.replaceChildren(
          make("p", {}, "Token ", make("b", { textContent: who[i] }), " asks, token ", make("b", { textContent: who[j] }), " answers."),
          make("div", { className: "strips" }, make("span", { textContent: `query ${i}` }), strip(q[i], top), make("span", { textContent: `key ${j}` }), strip(k[j], top),
            make("span", { textContent: "product" }), strip(products, largest([products]))),
          make("p", {}, "The products add up to ", make("b", { textContent: fixed(dot) }), "."), make("p", {}, ...verdict));
        return `Query ${who[i]}, key ${who[j]}: product ${fixed(dot)}, score ${fixed(scores[i][j])}, weight ${seen ? fixed(weights[i][j]) : "0, hidden"}`;
      };
      grid.table.addEventListener("point", (event) => { const text = show(...event.detail); if (grid.table.contains(document.activeElement)) say(text); });
      const last = weights.at(-1);
      show(T - 1, last.indexOf(Math.max(...last)));
      return box(b, make("div", { className: "pair" }, scroll(grid.table), out));
    },

    edge(b) {
      const steps = b.data.steps, T = steps[0].weights.length, who = names(T);
      const left = make("div", { className: "scroll" }), right = make("div", { className: "bars" }), words = make("p");
      const range = slider("Edge", -1, T - 1, 0, (edge) => show(edge));
      const off = make("button", { type: "button", textContent: "Mask off" }), causal = make("button", { type: "button", textContent: "Only the past" });
      off.addEventListener("click", () => show(T - 1));
      causal.addEventListener("click", () => show(0));
      let grid = null;
      const text = (edge) => edge < 0 ? "every token sees only what came before it, not itself; the first sees nothing, and gets 0"
        : edge === 0 ? "every token sees itself and its past; only the last token notices the change" : edge === T - 1 ? "no mask: everybody sees everything"
        : `every token sees ${edge} token${edge > 1 ? "s" : ""} of its future`;
      function show(edge) {
        edge = Math.max(-1, Math.min(T - 1, edge));
        const step = steps[edge + 1];
        range.input.value = edge;
        range.output.textContent = edge > 0 ? `+${edge}` : edge;
        range.input.setAttribute("aria-valuetext", `${edge}: ${text(edge)}`);
        const leaks = step.leak.map((move, t) => t < T - 1 && move > 1e-6);
        words.replaceChildren(make("b", { textContent: `Edge ${edge}` }), `: ${text(edge)}. ${leaks.some(Boolean) ? `${leaks.filter(Boolean).length} of ${T - 1} earlier tokens hear the last one: a leak.` : ""}`);
        grid = matrix({ name: "weights", values: step.weights, shade: "weight", rows: who, columns: who, decimals: 2 });
        grid.table.classList.add("drag");
        left.replaceChildren(grid.table);
        right.replaceChildren(...bars(step.leak.map((move, t) => ({ name: who[t], value: move, text: fixed(move), leak: leaks[t] }))));
      }
      const drag = (event) => {
        if (!(event.buttons & 1)) return;
        const cell = document.elementFromPoint(event.clientX, event.clientY)?.closest("td"), found = cell && grid.at(cell);
        if (found && left.contains(cell)) show(found[1] - found[0]);
      };
      left.addEventListener("pointerdown", drag);
      left.addEventListener("pointermove", drag);
      show(0);
      return box(b, make("div", { className: "controls" }, range.label, causal, off), words, make("div", { className: "pair" }, left, right));
    },

    scale(b) {
      const cases = b.data.cases, widths = [...new Set(cases.map((c) => c.D))], scales = [...new Set(cases.map((c) => c.scale))];
      let D = 64, scale = "1/√D";
      const right = make("div", { className: "bars" }), facts = make("div", { className: "readout" });
      const show = () => {
        const found = cases.find((c) => c.D === D && c.scale === scale);
        right.replaceChildren(...bars([...found.weights].map((w, n) => ({ name: `key ${n + 1}`, value: w, text: fixed(w, 3) }))));
        right.querySelectorAll("u").forEach((bar, n) => { bar.style.width = `${100 * found.weights[n]}%`; });
        facts.replaceChildren(
          make("p", {}, "Variance of the scores: measured ", make("b", { textContent: fixed(found.variance, 3) }), ", predicted D·c² = ", make("b", { textContent: fixed(found.predicted, 3) }), "."),
          make("p", {}, "The strongest of 16 keys gets ", make("b", { textContent: `${(100 * found.strongest).toFixed(0)} %` }), " on average; equal shares would be 6 %."),
          make("p", { textContent: scale === "1" ? "Unscaled, softmax is nearly a choice of one." : scale === "1/D" ? "Divided by D, it hardly tells keys apart." : scale === "1/√D" ? "The right one: the same spread at every width." : "The commonest mistake: the root of the width of x, here four heads wide." }));
        say(`Width ${D}, scale ${scale}: variance ${fixed(found.variance, 3)}, strongest ${(100 * found.strongest).toFixed(0)} percent`);
      };
      const controls = make("div", { className: "controls" }, choices("D", widths, D, (v) => { D = v; show(); }), choices("scale c", scales, scale, (v) => { scale = v; show(); }));
      show();
      return box(b, controls, make("div", { className: "pair" }, right, facts));
    },

    tiles(b) {
      const T = b.data.T, who = names(T);
      let size = b.data.sizes["4"] ? 4 : 2, at = 0;
      const left = make("div", { className: "scroll" }), words = make("p");
      const steps = () => b.data.sizes[size];
      const range = slider("Step", 0, 1, 0, (n) => show(n));
      const play = player(() => { if (at + 1 >= steps().length) return false; show(at + 1); return true; }, () => { if (at + 1 >= steps().length) show(0); });
      const controls = make("div", { className: "controls" }, range.label, play, choices("tile", Object.keys(b.data.sizes).map(Number), size, (v) => { size = v; show(0); }));
      function show(n) {
        at = n;
        const all = steps(), now = all[n];
        range.input.max = all.length - 1;
        range.input.value = n;
        range.output.textContent = `${n + 1} of ${all.length}`;
        const values = who.map(() => who.map(() => null)), top = largest(all.map((s) => s.scores).flat());
        const carried = who.map(() => [null, null]);
        for (const step of all.slice(0, n + 1)) {
          step.scores.forEach((row, i) => row.forEach((z, j) => { values[step.row + i][step.column + j] = z === null ? "-inf" : z; }));
          step.top.forEach((m, i) => { carried[step.row + i] = [m, step.total[i]]; });
        }
        const grid = matrix({ name: "scores, tile by tile", values, shade: "plain", rows: who, columns: who, decimals: 2 });
        grid.table.classList.add("even");
        const made = new Set(all.map((s) => `${s.row},${s.column}`)), tileOf = (x) => x - (x % size);
        const current = (i, j) => tileOf(i) === now.row && tileOf(j) === now.column;
        grid.cells.forEach((row, i) => row.forEach((cell, j) => {
          cell.classList.remove("gone");
          if (current(i, j)) {
            cell.classList.add("now");
            if (typeof values[i][j] === "number") paint(cell, () => ofSigned(values[i][j], top));
          } else if (!made.has(`${tileOf(i)},${tileOf(j)}`)) cell.classList.add("never");
          else cell.classList.add("none");
          if (!current(i, j)) cell.textContent = made.has(`${tileOf(i)},${tileOf(j)}`) && values[i][j] !== null ? "·" : "";
        }));
        for (const [k, name] of [[0, "m"], [1, "l"]]) {
          grid.table.tHead.rows[0].append(make("th", { className: "carry", textContent: name }));
          [...grid.table.tBodies[0].rows].forEach((row, i) => row.append(make("td", { className: tileOf(i) === now.row ? "carry" : "carry dim", textContent: fixed(carried[i][k], 3) })));
        }
        left.replaceChildren(grid.table);
        const i = Math.min(T, now.row + size) - 1, last = Math.min(T, now.column + size) - 1;
        const before = all.slice(0, n).filter((s) => s.row === now.row).at(-1), k = i - now.row;
        const rose = before ? now.top[k] > before.top[k] : false;
        words.replaceChildren(make("b", { textContent: `Queries ${now.row} to ${i}, keys ${now.column} to ${last}.` }),
          before ? rose ? ` For query ${i} the largest score rose from ${fixed(before.top[k], 3)} to ${fixed(now.top[k], 3)}: all that was summed shrinks by e^(${fixed(before.top[k] - now.top[k], 3)}) = ${fixed(Math.exp(before.top[k] - now.top[k]), 3)}, then this tile is added.`
            : ` For query ${i} no larger score turned up: the tile is added as it is.` : ` A new row of tiles: m starts at -inf, l at 0.`);
        say(words.textContent);
      }
      show(0);
      return box(b, controls, words, left);
    },

    cache(b) {
      const { keys, rows } = b.data, T = rows.length, who = names(T);
      let at = Math.min(2, T - 1);
      const left = make("div", { className: "grid" }), right = make("div", { className: "grid" }), words = make("p");
      const range = slider("Token", 0, T - 1, at, (t) => show(t));
      const play = player(() => { if (at + 1 >= T) return false; show(at + 1); return true; }, () => { if (at + 1 >= T) show(0); });
      const caption = (name, note) => make("figcaption", {}, make("b", { textContent: name }), make("span", { textContent: note }));
      function show(t) {
        at = t;
        range.input.value = t;
        range.output.textContent = who[t];
        const cached = matrix({ name: "keys in the cache", values: keys.slice(0, t + 1), rows: who.slice(0, t + 1), decimals: 2 });
        const wide = rows.slice(0, t + 1).map((row) => [...row, ...Array(T - row.length).fill(null)]);
        const grid = matrix({ name: "weights", values: wide, shade: "weight", rows: who.slice(0, t + 1), columns: who, decimals: 2 });
        for (const made of [cached, grid]) made.table.tBodies[0].rows[t].classList.add("fresh");
        grid.cells[t].forEach((cell, j) => { if (j <= t) cell.classList.add("now"); });
        cached.cells[t].forEach((cell) => cell.classList.add("now"));
        left.replaceChildren(caption("keys", `${t + 1} × ${keys[0].length}, head 0`), scroll(cached.table));
        right.replaceChildren(caption("weights", "one row a token"), scroll(grid.table));
        words.replaceChildren("Token ", make("b", { textContent: who[t] }), ` arrives: its key joins ${t === 0 ? "an empty cache" : `${t} before it`}, its query meets ${t + 1} key${t ? "s" : ""}. ${t + 1} dot products; without a cache all ${((t + 1) * (t + 2)) / 2} up to here would be computed again.`);
        say(words.textContent);
      }
      show(at);
      return box(b, make("div", { className: "controls" }, range.label, play), words, make("div", { className: "pair" }, left, right));
    },
  };

  // Play and pause; whoever wants less motion steps by hand.
  function player(next, begin) {
    const button = make("button", { type: "button", textContent: "Play", hidden: still.matches });
    let timer = 0;
    const end = () => { clearInterval(timer); timer = 0; button.textContent = "Play"; };
    button.addEventListener("click", () => {
      if (timer) return end();
      begin();
      button.textContent = "Pause";
      timer = setInterval(() => { if (!button.isConnected || !next()) end(); }, 1100);
      stop = end;
    });
    return button;
  }

  // Where pages come from.
  const session = () => { try { return sessionStorage; } catch { return null; } };
  async function ask(path, body, key) {
    const answer = await fetch(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...(key ? { Authorization: `Clearhead ${key}` } : {}) } });
    const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
    if (!answer.ok) throw new Error(found.error ?? `the server answered ${answer.status}`);
    return found;
  }
  let key = null;
  async function enter() {
    const token = /[#&]token=([\w-]+)/.exec(location.hash)?.[1], first = /[#&]page=(\w+)/.exec(location.hash)?.[1];
    key = session()?.getItem("clearhead-key") ?? null;
    if (token) {
      history.replaceState(null, "", location.pathname + location.search + (first ? "#" + first : ""));
      key = (await ask("/api/session", { token })).key;
      session()?.setItem("clearhead-key", key);
    }
    facts = await ask("/api/lesson/facts", {}, key);
    settings = { ...facts.first };
  }
  async function page(name) {
    if (!embedded) return ask("/api/lesson/compute", { key: name, ...settings }, key);
    const of = JSON.stringify([settings.text, settings.text === null ? settings.time : null, settings.width, settings.seed]);
    const [, title, question] = facts.contents.find(([k]) => k === name);
    const numbers = embedded.alike[name] ?? embedded.choices[of][name];
    return { key: name, title, question, blocks: numbers.map((n) => embedded.blocks[n]) };
  }

  const wanted = () => { const name = decodeURIComponent(location.hash.slice(1)); return facts.contents.some(([k]) => k === name) ? name : null; };
  let turn = 0;
  async function show(name, focus = true) {
    const mine = ++turn;
    stop();
    $("page").classList.add("waiting");
    let found;
    try { found = await page(name); } catch (error) {
      if (mine === turn) { trouble(error.message); $("page").classList.remove("waiting"); }
      return;
    }
    if (mine !== turn) return;
    trouble("");
    shown = name;
    settingsLabels = labelsOf(found);
    const number = Number.parseInt(name), aside = /[a-z]$/.test(name);
    const kicker = aside ? found.title : number >= 1 && number <= 8 ? `Rung ${name} of 8 · ${found.title}` : found.title;
    const heading = attributes(make("h1", { id: "question", textContent: found.question, tabIndex: -1 }), {});
    $("page").replaceChildren(make("div", {}, make("p", { className: "kicker", textContent: kicker }), heading), ...found.blocks.map((b) => blocks[b.is](b)));
    $("page").classList.remove("waiting");
    for (const link of document.querySelectorAll("nav a")) {
      if (link.hash === "#" + name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
    }
    document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    const at = facts.contents.findIndex(([k]) => k === name), [before, after] = [facts.contents[at - 1], facts.contents[at + 1]];
    for (const [id, entry, arrow] of [["back", before, "← "], ["next", after, ""]]) {
      $(id).hidden = !entry;
      if (entry) $(id).textContent = id === "back" ? `← ${entry[1]}` : `${entry[1]} →`;
    }
    document.title = `${found.title} · clearhead`;
    if (focus) { heading.focus({ preventScroll: true }); scrollTo(0, 0); }
  }
  // The tokens' names: those of the first matrix that has as many rows as columns.
  const labelsOf = (found) => {
    for (const b of found.blocks) for (const item of b.items ?? []) if (item.rows.length && item.columns.length === item.rows.length) return item.rows;
    return [];
  };
  const trouble = (text) => { $("trouble").textContent = text; $("trouble").hidden = !text; };
  const go = (by) => {
    const at = facts.contents.findIndex(([k]) => k === shown) + by;
    if (facts.contents[at]) location.hash = facts.contents[at][0];
  };

  // Settings: choices in a file, free where a server computes.
  function form() {
    const field = (label, control) => make("label", {}, label, control);
    const option = (value, text) => make("option", { value: JSON.stringify(value), textContent: text });
    const again = () => { show(shown, false).then(() => say("computed again")); };
    if (embedded) {
      const { options } = embedded;
      const select = (name, label, written) => {
        const box = make("select", { id: name }, ...options[name].map((value) => option(value, written(value))));
        box.value = JSON.stringify(settings[name]);
        box.addEventListener("change", () => {
          settings[name] = JSON.parse(box.value);
          if (name === "text") { settings.time = settings.text === null ? 8 : null; $("time").value = "8"; $("time").disabled = settings.text !== null; }
          again();
        });
        return field(label, box);
      };
      $("settings").append(select("text", "text", (t) => t ?? "random numbers"), select("time", "tokens T", String), select("width", "numbers a token C", (w) => (w === null ? "2, then 32" : String(w))), select("seed", "seed", String));
      $("time").disabled = settings.text !== null;
      return;
    }
    const text = make("input", { type: "text", id: "text", placeholder: "none: random numbers", maxLength: 1000 });
    const number = (id, min, max, placeholder) => make("input", { type: "number", id, min, max, placeholder });
    const time = number("time", 1, facts.most, "8"), width = number("width", 1, facts.most, "2, 32"), seed = number("seed", 0, 2 ** 32 - 1, "1337");
    $("settings").append(field("text of your own", text), field("tokens T", time), field("numbers a token C", width), field("seed", seed), make("button", { type: "submit", className: "main", textContent: "Compute" }));
    [text.value, time.value, width.value, seed.value] = [settings.text, settings.time, settings.width, settings.seed].map((value) => value ?? "");
    time.disabled = settings.text !== null;
    text.addEventListener("input", () => { time.disabled = text.value.trim() !== ""; });
    $("settings").addEventListener("submit", (event) => {
      event.preventDefault();
      const whole = (box) => (box.value === "" || box.disabled ? null : Number(box.value));
      settings = { text: text.value.trim() === "" ? null : text.value, time: whole(time), width: whole(width), seed: whole(seed) ?? 1337 };
      again();
    });
  }

  function theme(wish) {
    dark = wish === "dark";
    document.documentElement.dataset.theme = wish;
    $("theme").textContent = dark ? "Light" : "Dark";
    $("theme").setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
  }
  $("theme").addEventListener("click", () => {
    theme(dark ? "light" : "dark");
    for (const cell of $("page").querySelectorAll("td, i")) if (colours.has(cell)) paint(cell, colours.get(cell));
  });

  theme(matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
  (embedded ? Promise.resolve() : enter()).then(() => {
    ramp = Uint8Array.from(atob(facts.ramp), (c) => c.charCodeAt(0));
    $("contents").append(...facts.contents.map(([name, title]) => make("li", {}, make("a", { href: "#" + name, className: /[a-z]$/.test(name) ? "aside" : "", title }, make("b", { textContent: name }), make("span", { textContent: title.replace("Aside: ", "") })))));
    form();
    $("back").addEventListener("click", () => go(-1));
    $("next").addEventListener("click", () => go(1));
    addEventListener("hashchange", () => { if (wanted() && wanted() !== shown) show(wanted()); });
    addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || event.target.closest("input, select, textarea, pre, [role=grid]")) return;
      if (event.key === "ArrowRight") go(1);
      if (event.key === "ArrowLeft") go(-1);
    });
    return show(wanted() ?? "0", false);
  }).catch((error) => trouble(error.message));
})();
