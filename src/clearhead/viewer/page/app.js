// The page: its head, the view that is open, and what all views share.

import { button, choice, el } from "./dom.js";
import { divergingOf, rampOf } from "./colour.js";
import { Remembering } from "./source.js";
import { size } from "./words.js";
import { compareView } from "./compare.js";
import { headView } from "./head.js";
import { overviewView } from "./overview.js";
import { rolloutView } from "./rollout.js";
import { textView } from "./text.js";

/** @typedef {import("./types.js").Doc} Doc */
/** @typedef {import("./types.js").Place} Place */
/** @typedef {{element: HTMLElement, update: (place: Place, before: Place) => void, close: () => void, redraw: () => void}} View */

/** @type {[string, string, (app: App) => View][]} */
const VIEWS = [
  ["overview", "Overview", overviewView],
  ["head", "Head", headView],
  ["text", "Text", textView],
  ["rollout", "Rollout", rolloutView],
  ["compare", "Compare", compareView],
];

export class App {
  /**
   * @param {HTMLElement} box where the page goes @param {import("./types.js").Source} source
   * @param {{read: () => Place, write: (place: Place, step: boolean) => void, listen: (moved: () => void) => void}} places
   */
  constructor(box, source, places) {
    this.box = box;
    this.source = new Remembering(source);
    this.places = places;
    /** @type {{trace: number, name: string}[]} */
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
      this.traces = (await this.source.ask("traces")).facts.traces;
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

  /** Go where the address says. */
  async arrive() {
    const before = this.place;
    const place = this.places.read();
    const trace = Math.min(this.traces.length - 1, Math.max(0, Number(place.trace) || 0));
    await this.attempt(async () => {
      if (trace !== this.trace) {
        this.doc = (await this.source.ask("trace", { trace })).facts;
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
    const found = { ...place, view: VIEWS.some(([name]) => name === place.view) ? place.view : "overview" };
    if (!heads.includes(found.head)) found.head = this.doc.notable;
    const token = Number(found.at);
    const last = this.doc.tokens.length - 1;
    found.at = found.at !== undefined && Number.isInteger(token) && token >= 0 && token <= last ? String(token) : String(this.doc.token ?? last);
    return found;
  }

  /** @param {Place} change @param {boolean} [step] whether going back should undo it */
  go(change, step = false) {
    const before = this.place;
    const place = { ...before, ...change };
    for (const [name, value] of Object.entries(place)) if (value === "") delete place[name];
    const trace = Number(place.trace) || 0;
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
      const made = /** @type {(app: App) => View} */ (VIEWS.find(([name]) => name === view)?.[2]);
      this.header();
      this.view = made(this);
      this.main.replaceChildren(this.view.element);
      this.main.className = view;
      document.title = this.box.isConnected && this.box.getRootNode() === document ? `${VIEWS.find(([n]) => n === view)?.[1]} · ${this.doc.name} · clearhead` : document.title;
    }
    this.view?.update(this.place, before);
  }

  header() {
    const { doc } = this;
    const heads = doc.heads.length, T = doc.tokens.length;
    const fact = (/** @type {string} */ name, /** @type {string} */ value) => el("div", {}, el("dt", { text: name }), el("dd", { text: value }));
    const traces = this.traces.length > 1
      ? choice("Trace", this.traces.map(({ trace, name }) => [String(trace), name]), String(this.trace), (trace) => this.go({ trace, at: "" }, true))
      : null;
    const tabs = VIEWS.map(([name, said]) =>
      button(said, () => this.go({ view: name }), { "aria-current": name === this.viewName ? "page" : null, class: "tab" }));
    this.top.replaceChildren(
      el("div", { class: "brand" }, el("h1", { text: "clearhead" }), el("p", { text: "what every head looks at" })),
      el("dl", { class: "facts" },
        fact("model", doc.model || doc.name),
        fact("layers × heads", `${doc.layers.length} × ${Math.round(heads / Math.max(1, doc.layers.length))}`),
        fact("tokens", T > doc.prompt ? `${doc.prompt} + ${T - doc.prompt} written` : String(T)),
        fact("all T×T weights", size(doc.bytes.pattern)),
        fact("measured", size(doc.bytes.observed))),
      el("div", { class: "controls" }, traces, button(this.dark ? "Light" : "Dark", () => this.turn(), { "aria-label": this.dark ? "Light colours" : "Dark colours" })),
      el("nav", { "aria-label": "Views" }, ...tabs),
      ...[doc.gone ? "The file of this trace has gone or was replaced; what is shown is what was read from it." : null, doc.part, ...(doc.left_out ?? [])].filter(Boolean).map((said) => el("p", { class: "notice", text: String(said) })),
    );
    this.foot.replaceChildren(
      el("p", { text: "Attention weights show where information can flow, not why the model answers as it does. A role is named when its score is well above that of uniform attention on the same tokens, its null; both are shown." }),
    );
  }

  turn() {
    this.dark = !this.dark;
    this.paint();
    this.header();
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
