// The page: its head, the view that is open, and what all views share.

import { button, choice, el, renew } from "./dom.js";
import { divergingOf, rampOf } from "./colour.js";
import { Remembering } from "./source.js";
import { counted, size } from "./words.js";
import { compareView } from "./compare.js";
import { headView } from "./head.js";
import { overviewView } from "./overview.js";
import { rolloutView } from "./rollout.js";
import { textView } from "./text.js";

/** @typedef {import("./types.js").Doc} Doc */
/** @typedef {import("./types.js").Place} Place */
/** @typedef {{element: HTMLElement, update: (place: Place, before: Place) => void, close: () => void, redraw: () => void}} View */

/**
 * What is shown: traces here, surveys of a corpus in survey.js.
 * @typedef {{one: string, many: string, said: string, views: [string, string, (app: App) => View][], foot: string,
 *   facts: (doc: any) => [string, string][], notices: (doc: any) => (string | null)[]}} Kind
 */

/** @type {Kind} */
const TRACES = {
  one: "trace", many: "traces", said: "Trace",
  views: [
    ["overview", "Overview", overviewView],
    ["head", "Head", headView],
    ["text", "Text", textView],
    ["rollout", "Rollout", rolloutView],
    ["compare", "Compare", compareView],
  ],
  foot: "Attention weights show where information can flow, not why the model answers as it does. A role is named when its score is well above that of uniform attention on the same tokens; both are shown.",
  facts(/** @type {Doc} */ doc) {
    const T = doc.tokens.length;
    return [
      [doc.model ? "model" : "trace", doc.model || doc.name],
      ["layers × heads", `${doc.layers.length} × ${Math.round(doc.heads.length / Math.max(1, doc.layers.length))}`],
      ["tokens", T > doc.prompt ? `${counted(doc.prompt)} + ${counted(T - doc.prompt)} written` : counted(T)],
      ["all T×T weights", size(doc.bytes.pattern)],
      ["measured", size(doc.bytes.observed)],
    ];
  },
  notices: (doc) => [doc.gone ? "The file of this trace has gone or was replaced; what is shown is what was read from it." : null, doc.part, ...(doc.left_out ?? [])],
};

export class App {
  /**
   * @param {HTMLElement} box where the page goes @param {import("./types.js").Source} source
   * @param {{read: () => Place, write: (place: Place, step: boolean) => void, listen: (moved: () => void) => void}} places
   * @param {Kind} [kind]
   */
  constructor(box, source, places, kind = TRACES) {
    this.kind = kind;
    this.box = box;
    this.source = new Remembering(source);
    this.places = places;
    /** @type {{trace: number, name: string}[]} what is shown, by its number */
    this.traces = [];
    this.trace = -1;
    /** @type {Doc} */
    this.doc = /** @type {any} */ (null);
    /** @type {Place} */
    this.place = {};
    /** @type {View | null} */
    this.view = null;
    this.viewName = "";
    this.ramp = rampOf(true);
    this.diverging = divergingOf(true);
    this.dark = !globalThis.matchMedia?.("(prefers-color-scheme: light)").matches;
    this.live = el("p", { class: "unseen", "aria-live": "polite", role: "status" });
    this.notice = el("div", { class: "notices", role: "alert" });
    this.main = el("main", { id: "main", tabindex: "-1" });
    this.top = el("header");
    this.foot = el("footer");
    box.classList.add("clearhead");
    box.replaceChildren(
      el("a", { class: "skip", href: "#main", text: "Skip to the view", onclick: (/** @type {Event} */ event) => {
        event.preventDefault(); // the address belongs to the place one is at
        this.main.focus();
      } }),
      this.top, this.notice, this.main, this.foot, this.live,
    );
    this.paint();
  }

  async start() {
    this.places.listen(() => this.arrive());
    await this.attempt(async () => {
      const { one, many } = this.kind;
      this.traces = (await this.source.ask(many)).facts[many].map((/** @type {any} */ each) => ({ trace: each[one], name: each.name }));
      await this.arrive();
    });
  }

  /** Do something that may be refused; say so if it is. @param {() => Promise<void>} work */
  async attempt(work) {
    this.main.setAttribute("aria-busy", "true");
    try {
      await work();
      this.notice.replaceChildren();
    } catch (error) {
      this.fail(error, () => this.attempt(work));
    }
    this.main.removeAttribute("aria-busy");
  }

  /** @param {any} error @param {() => void} [again] */
  fail(error, again) {
    if (error?.name === "AbortError") return;
    if (error?.status === undefined) console.error(error);
    const retry = again ?? (() => {
      this.notice.replaceChildren();
      this.source.kept.clear();
      this.viewName = "";
      this.arrive();
    });
    this.notice.replaceChildren(el("p", { class: "notice" }, el("span", { text: String(error?.message ?? error) }), button("Try again", retry)));
  }

  /** Something to know while one waits, until there is an answer. @param {string} what */
  tell(what) {
    this.notice.replaceChildren(el("p", { class: "notice", text: what }));
  }

  /** Go where the address says. */
  async arrive() {
    const before = this.place;
    const place = this.places.read();
    const trace = Math.min(this.traces.length - 1, Math.max(0, Number(place[this.kind.one]) || 0));
    await this.attempt(async () => {
      if (trace !== this.trace) {
        this.doc = (await this.source.ask(this.kind.one, { [this.kind.one]: trace })).facts;
        this.trace = trace;
        this.viewName = "";
      }
      this.place = this.complete(place);
      this.show(before);
    });
  }

  /** What is not said is the default; what cannot be is put right. @param {Place} place @returns {Place} */
  complete(place) {
    const heads = this.doc.heads.map(({ head }) => head);
    /** @type {Place} */
    const found = { ...place, view: this.kind.views.some(([name]) => name === place.view) ? place.view : "overview" };
    if (!heads.includes(found.head)) found.head = this.doc.notable;
    const token = Number(found.at);
    const last = this.doc.tokens.length - 1;
    if (last >= 0) found.at = found.at !== undefined && Number.isInteger(token) && token >= 0 && token <= last ? String(token) : String(this.doc.token ?? last);
    return found;
  }

  /** @param {Place} change @param {boolean} [step] whether going back should undo it */
  go(change, step = false) {
    const before = this.place;
    const place = { ...before, ...change };
    for (const [name, value] of Object.entries(place)) if (value === "") delete place[name];
    const trace = Number(place[this.kind.one]) || 0;
    this.places.write(place, step || place.view !== before.view);
    if (trace !== this.trace) {
      this.arrive();
      return;
    }
    this.place = this.complete(place);
    this.show(before);
  }

  /** @param {Place} before */
  show(before) {
    const { view } = this.place;
    if (view !== this.viewName) {
      this.view?.close();
      this.viewName = view;
      const made = /** @type {(app: App) => View} */ (this.kind.views.find(([name]) => name === view)?.[2]);
      this.header();
      this.view = made(this);
      this.main.replaceChildren(this.view.element);
      this.main.className = view;
      if (this.box.getRootNode() === document) document.title = `${this.kind.views.find(([n]) => n === view)?.[1]} · ${this.doc.name} · clearhead`;
    }
    this.view?.update(this.place, before);
  }

  header() {
    const { doc, kind } = this;
    const traces = this.traces.length > 1
      ? choice(kind.said, this.traces.map(({ trace, name }) => [String(trace), name]), String(this.trace), (trace) => this.go({ [kind.one]: trace, at: "" }, true))
      : null;
    const tabs = kind.views.map(([name, said]) =>
      button(said, () => this.go({ view: name }), { "aria-current": name === this.viewName ? "page" : null, class: "tab" }));
    renew(this.top,
      el("div", { class: "brand" }, el("h1", { text: "clearhead" }), el("p", { text: "what every head looks at" })),
      el("dl", { class: "facts" }, ...kind.facts(doc).map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: value })))),
      el("div", { class: "controls" }, traces, button(this.dark ? "Light" : "Dark", () => this.turn(), { "aria-label": this.dark ? "Light colours" : "Dark colours" })),
      el("nav", { "aria-label": "Views" }, ...tabs),
      ...kind.notices(doc).filter(Boolean).map((said) => el("p", { class: "notice", text: String(said) })),
    );
    this.foot.replaceChildren(el("p", { text: kind.foot }));
  }

  turn() {
    this.dark = !this.dark;
    this.paint();
    if (this.doc) this.header();
    this.view?.redraw();
  }

  paint() {
    this.box.dataset.theme = this.dark ? "dark" : "light";
    this.ramp = rampOf(this.dark);
    this.diverging = divergingOf(this.dark);
  }

  /** The colours that canvases draw with, from the style sheet. */
  ink() {
    const style = getComputedStyle(this.box);
    const of = (/** @type {string} */ name) => style.getPropertyValue(`--${name}`).trim();
    return { ink: of("ink"), soft: of("soft"), line: of("line"), accent: of("accent"), ground: of("sunk") };
  }

  /** Said to who listens instead of looking. @param {string} text */
  say(text) {
    this.live.textContent = text;
  }

  /** @param {string} name */
  head(name) {
    return this.doc.heads.find(({ head }) => head === name) ?? this.doc.heads[0];
  }

  /** @param {number} layer */
  layer(layer) {
    return this.doc.layers.find((each) => each.layer === layer) ?? this.doc.layers[0];
  }

  /** What stands at a position of a layer's keys. @param {import("./types.js").Layer} layer @param {number} key */
  keyName(layer, key) {
    return layer.crosses ? `key ${key}` : this.doc.tokens[key] ?? `key ${key}`;
  }
}
