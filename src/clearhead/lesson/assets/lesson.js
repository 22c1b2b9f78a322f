// The lesson: its contents, the page one is on, and turning pages. Everything in them is set as text.

import { el } from "../dom.js";
import { draw } from "./blocks.js";
import { stopPlaying } from "./controls.js";
import { byId, say, trouble } from "./frame.js";
import { settingsForm } from "./settings.js";
import { startTheme } from "./theme.js";

/** @typedef {import("./types.js").Page} Page */

/** Between the rungs there are asides: 4a, 4b. @param {string} key */
function isAside(key) {
  return /[a-z]$/.test(key);
}

/** The tokens' names: those of the first matrix that has as many rows as columns. @param {Page} page */
function labelsOf({ blocks }) {
  for (const block of blocks) {
    for (const { rows, columns } of block.is === "grids" ? block.items : []) if (rows.length && columns.length === rows.length) return rows;
  }
  return [];
}

/** @param {Page} page */
function kicker({ key, title }) {
  const number = Number.parseInt(key);
  return !isAside(key) && number >= 1 && number <= 8 ? `Rung ${key} of 8 · ${title}` : title;
}

export class Lesson {
  /** @param {import("./types.js").Source} source */
  constructor(source) {
    this.source = source;
    /** @type {import("./types.js").Facts["contents"]} */
    this.contents = [];
    /** @type {import("./types.js").Settings} */
    this.settings = { text: null, time: null, width: null, seed: 1337 };
    this.shown = ""; // the key of the page that is there
    this.turns = 0; // of pages asked for, only the last is shown
  }

  async start() {
    startTheme();
    try {
      const facts = await this.source.facts();
      this.contents = facts.contents;
      this.settings = facts.first;
      this.list();
      settingsForm(this.source, facts, (settings) => {
        this.settings = settings;
        this.show(this.shown, false).then(() => say("computed again"));
      });
      this.listen();
      await this.show(this.wanted() ?? "0", false);
    } catch (error) {
      trouble(/** @type {Error} */ (error).message);
    }
  }

  list() {
    byId("contents").append(...this.contents.map(([key, title]) => el("li", {},
      el("a", { href: `#${key}`, class: isAside(key) ? "aside" : null, title }, el("b", { text: key }), el("span", { text: title.replace("Aside: ", "") })))));
  }

  listen() {
    byId("back").addEventListener("click", () => this.go(-1));
    byId("next").addEventListener("click", () => this.go(1));
    addEventListener("hashchange", () => {
      const wanted = this.wanted();
      if (wanted && wanted !== this.shown) this.show(wanted);
    });
    addEventListener("keydown", (event) => {
      const busy = event.altKey || event.ctrlKey || event.metaKey || event.shiftKey;
      if (busy || /** @type {Element} */ (event.target).closest("input, select, textarea, pre, [role=grid]")) return;
      if (event.key === "ArrowRight") this.go(1);
      if (event.key === "ArrowLeft") this.go(-1);
    });
  }

  /** The page the address asks for, if there is one. */
  wanted() {
    const key = decodeURIComponent(location.hash.slice(1));
    return this.contents.some(([each]) => each === key) ? key : null;
  }

  /** The page before or after another. @param {string} key @param {number} by */
  beside(key, by) {
    return this.contents[this.contents.findIndex(([each]) => each === key) + by];
  }

  /** @param {number} by */
  go(by) {
    const entry = this.beside(this.shown, by);
    if (entry) location.hash = entry[0];
  }

  /** @param {string} key @param {boolean} focus whether one comes to read it from its beginning */
  async show(key, focus = true) {
    const mine = ++this.turns;
    stopPlaying();
    byId("page").classList.add("waiting");
    try {
      const page = await this.source.page(key, this.settings);
      if (mine !== this.turns) return;
      trouble("");
      this.shown = key;
      this.draw(page, focus);
    } catch (error) {
      if (mine === this.turns) trouble(/** @type {Error} */ (error).message);
    }
    if (mine === this.turns) byId("page").classList.remove("waiting");
  }

  /** @param {Page} page @param {boolean} focus */
  draw(page, focus) {
    const labels = labelsOf(page);
    const names = (/** @type {number} */ n) => (labels.length === n ? labels : Array.from({ length: n }, (_, t) => String(t)));
    const around = { names, measured: this.source.measured };
    const heading = el("h1", { id: "question", text: page.question, tabindex: -1 });
    byId("page").replaceChildren(el("div", {}, el("p", { class: "kicker", text: kicker(page) }), heading), ...page.blocks.map((block) => draw(block, around)));
    this.mark(page.key);
    document.title = `${page.title} · clearhead`;
    if (!focus) return;
    heading.focus({ preventScroll: true });
    scrollTo(0, 0);
  }

  /** Where one is, in the contents and on the two buttons. @param {string} key */
  mark(key) {
    for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll("nav a"))) {
      if (link.hash === `#${key}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    const [before, after] = [this.beside(key, -1), this.beside(key, 1)];
    byId("back").hidden = !before;
    byId("next").hidden = !after;
    if (before) byId("back").textContent = `← ${before[1]}`;
    if (after) byId("next").textContent = `${after[1]} →`;
  }
}
