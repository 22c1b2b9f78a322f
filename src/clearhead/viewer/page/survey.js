// A survey of a corpus: what every head did over many texts. Its views, and what its page says of the whole.

import { button, el } from "./dom.js";
import { quantityTable, roleTable } from "./card.js";
import { tilesOf } from "./maps.js";
import { overviewView } from "./overview.js";
import { differencesView } from "./survey-differences.js";
import { surveyHeadView } from "./survey-head.js";
import { counted } from "./words.js";

/** @type {import("./overview.js").Overview} */
const OF_SURVEY = {
  map: "the looking token's position down, how far back it looks across (0, 1, 2–3, 4–7, … tokens); the stronger the contrast with the ground, the more weight", pools: false, none: "No map.", firstColumn: true,
  maps: async (app) => tilesOf(await app.source.ask("maps", { survey: app.trace })),
  card: (app, head) => [
    el("p", { class: "tools" }, button(`What ${head.head} does`, () => app.go({ view: "head" }), { class: "main" })),
    roleTable(head, true), quantityTable(app, head, true),
  ],
};

/** @type {import("./app.js").Kind} */
export const SURVEYS = {
  one: "survey", many: "surveys", said: "Survey",
  views: [
    ["overview", "Overview", (app) => overviewView(app, OF_SURVEY)],
    ["head", "Head", surveyHeadView],
    ["differences", "Differences", differencesView],
  ],
  foot: "Means are over documents, and so are errors: tokens of one document are not independent. A role is named when its score is well above that of uniform attention on the same tokens. Attention weights show where information can flow, not why the model answers as it does.",
  facts: (doc) => [
    ["model", doc.model],
    ["layers × heads", `${doc.layers.length} × ${Math.round(doc.heads.length / Math.max(1, doc.layers.length))}`],
    ["documents", counted(doc.documents)],
    ["tokens", counted(doc.read)],
    ["longest sequence", `${counted(doc.length)} tokens`],
  ],
  notices: (doc) => Object.keys(doc.bad).length
    ? [`Not read: ${Object.entries(doc.bad).map(([why, count]) => `${counted(count)} (${why})`).join(", ")}. bad.parquet in the survey's folder lists ${Object.values(doc.bad).reduce((a, b) => a + b, 0) === 1 ? "it" : "them"}.`]
    : [],
};
