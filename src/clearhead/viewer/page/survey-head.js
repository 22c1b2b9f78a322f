// One head over a whole corpus: its strongest looks in their texts, how far it looks, who receives, and how what is measured spreads.

import { el } from "./dom.js";
import { dot, roleTable } from "./card.js";
import { bins, histogram } from "./histogram.js";
import { drawThumb, tilesOf } from "./maps.js";
import { headPicker } from "./picker.js";
import { strip } from "./strip.js";
import { folded, table } from "./table.js";
import { fixed, counted, percent, quoted } from "./words.js";

const TOKENS_BESIDE = 12; // tokens beside the picture; all that were kept are in the folded table

/** @param {import("./app.js").App} app @returns {import("./app.js").View} */
export function surveyHeadView(app) {
  const { doc } = app;
  let current = "";
  const title = el("h2", { id: "head-title" });
  const picker = el("div", { class: "tools" });
  const inside = el("div", { class: "parts" });
  const aside = el("aside", { "aria-label": "What this head does" });
  const element = el("div", { class: "beside" },
    el("section", { "aria-labelledby": "head-title" }, el("div", { class: "title" }, title, picker), inside), aside);
  const pick = headPicker(app, picker);

  const open = async () => {
    const { head: name } = app.place;
    current = name;
    const head = app.head(name);
    title.replaceChildren(dot(head.role), `${name}${head.role ? ` · ${head.role}` : ""}`);
    pick();
    aside.replaceChildren(roleTable(head, true));
    element.setAttribute("aria-busy", "true");
    try {
      const [found, maps] = await Promise.all([app.source.ask("head", { survey: app.trace, head: name }), app.source.ask("maps", { survey: app.trace })]);
      if (current !== name) return;
      inside.replaceChildren(
        looks(found.facts.examples),
        distances(found.arrays, tilesOf(maps).get(name)),
        received(name, found.facts.tokens, found.arrays),
        spread(name, found.facts.measured),
      );
    } catch (error) {
      app.fail(error);
    }
    element.removeAttribute("aria-busy");
  };

  /** @param {any[]} examples */
  const looks = (examples) => part("Its strongest looks",
    "One a document and no text twice, at anything but the text's first token. Framed: the token that looks; filled: the one it looks at. ↵ is a line's end.",
    examples.length ? el("ol", { class: "looks" }, ...examples.map((x) => el("li", {},
      el("p", { class: "look" }, el("b", { text: percent(x.weight) }), el("span", { class: "soft", text: `${x.name}, token ${counted(x.query)} → ${x.query === x.key ? "itself" : `${counted(x.key)}, ${counted(Math.abs(x.query - x.key))} ${x.key < x.query ? "back" : "ahead"}`}` })),
      ...excerpts(x))))
      : el("p", { class: "soft", text: "None was kept: survey with --examples 8." }),
    folded("Strongest looks as a table", () => ({
      name: `${app.place.head}-looks`, caption: "The strongest weights of this head, one a document",
      columns: [{ title: "weight", number: true, show: (x) => fixed(x, 4) }, { title: "document" }, { title: "looking at", number: true }, { title: "token", show: quoted }, { title: "looked at", number: true }, { title: "token", show: quoted }],
      rows: examples.map((x) => [x.weight, x.name, x.query, x.query_token, x.key, x.key_token]),
    })));

  /** @param {Record<string, import("./types.js").Arr>} arrays @param {import("./tiles.js").Tile} [tile] */
  const distances = (arrays, tile) => {
    const canvas = el("canvas", { class: "preview", role: "img", "aria-label": "Mean weight by the looking token's position, down, and by distance, across; the table below holds the numbers" });
    if (tile) drawThumb(canvas, tile, app.ramp, app.place.scale || "sqrt", true);
    const { data, shape } = arrays.map;
    const queries = arrays.map_queries.data;
    return part("How far back it looks", "",
      el("div", { class: "side" },
        histogram(arrays.distance.data, arrays.distance_null?.data ?? null),
        el("figure", {}, el("figcaption", { text: "The same by the looking token's position: early ones above, late ones below; near at the left, far at the right" }), canvas)),
      folded("Mean weight by position and distance, as a table", () => ({
        name: `${app.place.head}-map`, caption: "Rows: the looking token's position in its text; columns: tokens back",
        columns: [{ title: "position" }, { title: "tokens", number: true, show: counted }, ...Array.from({ length: shape[1] }, (_, n) => ({ title: bins(n), number: true, show: percent }))],
        rows: Array.from({ length: shape[0] }, (_, r) => [bins(r), queries[r], ...Array.from(data.slice(r * shape[1], (r + 1) * shape[1]))]),
      })));
  };

  /** @param {string} name @param {any[][]} tokens @param {Record<string, import("./types.js").Arr>} arrays */
  const received = (name, tokens, arrays) => {
    const shares = sharesOf(arrays.received.data);
    const nulls = arrays.received_null ? sharesOf(arrays.received_null.data) : null;
    const columns = [{ title: "token", show: quoted }, { title: "times", number: true, show: counted }, { title: "each time", number: true, show: (/** @type {number} */ x) => fixed(x, 2) }, { title: "of all", number: true, show: percent }];
    return part("Who receives its weight", "Each time a token stands in a text it receives 1 on average, whatever the head.",
      el("div", { class: "side" },
        histogram(shares, nulls, {
          name: "positions", caption: `Share of all weight, by the position of the token looked at${nulls ? "; lines: uniform attention" : ""}`, table: "Weight by position as a table", what: "position",
          title: (n) => `position ${bins(n)}`,
        }),
        table({ name: "", caption: "Tokens that receive most", columns, rows: tokens.slice(0, TOKENS_BESIDE) })),
      folded("More tokens: those that receive most of all weight, and those that receive most each time", () => ({
        name: `${name}-tokens`, caption: "“each time” needs at least five occurrences to be listed for it", columns, rows: tokens,
      })));
  };

  /** @param {string} name @param {any[]} measured */
  const spread = (name, measured) => part("How what is measured spreads over the tokens",
    "Line: 5 to 95 of 100 tokens; box: 25 to 75; mark: the median, all within 1.6% of true ones; dashed: what uniform attention has on average.",
    table({
      name: "", caption: "Pictures of one quantity run over the same range for every head, so that heads can be compared",
      columns: [{ title: "observable" }, { title: "spread", show: (row) => strip(row, doc.ranges?.[row.observable]) }, { title: "median", number: true, show: fixed }, { title: "mean", number: true, show: fixed }, { title: "uniform", number: true, show: (x) => (x === null ? "" : fixed(x)) }],
      rows: measured.map((row) => [row.label, row, row.q50, row.document_mean, row.uniform]),
    }),
    folded("All quantiles as a table", () => {
      const number = (/** @type {string} */ title) => ({ title, number: true, show: (/** @type {number | null} */ x) => fixed(x, 3) });
      const keys = ["least", "q01", "q05", "q25", "q50", "q75", "q95", "q99", "most", "mean", "variance"];
      const said = ["least", "1%", "5%", "25%", "50%", "75%", "95%", "99%", "most", "mean over tokens", "variance"];
      return {
        name: `${name}-observables`, caption: "Over all tokens; the last three over documents",
        columns: [{ title: "observable" }, { title: "tokens", number: true, show: counted }, ...said.map(number), number("mean over documents"), number("± error"), number("uniform")],
        rows: measured.map((row) => [row.observable, row.count, ...keys.map((key) => row[key]), row.document_mean, row.document_error, row.uniform]),
      };
    }));

  return {
    element,
    update(place) {
      if (place.head !== current) open();
    },
    redraw: open,
    close() {},
  };
}

/** What each is of all. @param {ArrayLike<number>} values */
function sharesOf(values) {
  const total = Array.from(values).reduce((a, b) => a + b, 0) || 1;
  return Float64Array.from(values, (x) => x / total);
}

/** @param {string} title @param {string} said @param {...Node} inside */
function part(title, said, ...inside) {
  return el("div", { class: "part" }, el("h3", { text: title }), said ? el("p", { class: "soft", text: said }) : null, ...inside);
}

/** The texts around the two tokens of a look, in one where they stand close together. @param {any} x */
function excerpts(x) {
  const from = marked(x.query_token, "looking"), to = marked(x.key_token, "seen");
  const between = x.key < x.query ? textBetween(x) : null;
  if (between !== null) return [quotation("", plain(x.key_before), ...to, plain(between), ...from, plain(x.query_after))];
  if (x.key === x.query) return [quotation("", plain(x.query_before), ...marked(x.key_token, "looking seen"), plain(x.query_after))];
  return [quotation("from", plain(x.query_before), ...from, plain(x.query_after)), quotation("to", plain(x.key_before), ...to, plain(x.key_after))];
}

/** What stands between the token looked at and the looking one, if the text around both shows it. @param {any} x @returns {string | null} */
function textBetween(x) {
  for (let n = 0; n <= x.key_after.length - x.query_token.length; n++) {
    const between = x.key_after.slice(0, n);
    const rest = x.key_after.slice(n);
    // Both excerpts must fit into one text.
    if (rest.startsWith(x.query_token) && fits(rest.slice(x.query_token.length), x.query_after)
      && fits([...(x.key_before + x.key_token + between)].reverse().join(""), [...x.query_before].reverse().join(""))) return between;
  }
  return null;
}

/** Whether one text goes on as the other does, as far as both are known. @param {string} one @param {string} other */
function fits(one, other) {
  return one.startsWith(other) || other.startsWith(one);
}

/** @param {string} text */
function plain(text) {
  return text.replaceAll("·", " ");
}

/** A token, marked, the spaces it begins with before the mark. @param {string} token @param {string} kind @returns {(string | HTMLElement)[]} */
function marked(token, kind) {
  const said = plain(token).trimStart();
  return said ? [plain(token).slice(0, -said.length), el("mark", { class: kind, text: said })] : [el("mark", { class: kind, text: token })];
}

/** Text with tokens marked in it; what is text keeps its direction to itself. @param {string} which @param {...(string | HTMLElement)} parts */
function quotation(which, ...parts) {
  const inside = parts.map((each) => (typeof each === "string" ? el("bdi", { text: each }) : each));
  return el("p", { class: "quotation" }, which ? el("span", { class: "which", text: which }) : null, el("q", {}, ...inside));
}
