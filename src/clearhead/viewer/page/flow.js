// Running text of any length: lines are laid out once for a width, and only those in sight are elements.

import { el } from "./dom.js";
import { reading } from "./words.js";

const LINE = 34; // pixels
const BEYOND = 5; // lines kept above and below those in sight

/** @typedef {{first: number, end: number, rule: boolean}} Line tokens first to end − 1; a rule stands above what the model wrote */

export class Flow {
  /**
   * @param {{tokens: string[], prompt: number, groups: number[] | null, label: string, chosen: (at: number) => void,
   *   look: (at: number) => {background: string, colour: string, said: string} | null}} given
   */
  constructor(given) {
    this.given = given;
    this.read = given.tokens.map(reading);
    this.at = 0;
    this.inside = el("div", { class: "lines" });
    this.element = el("div", { class: "flow", role: "listbox", tabindex: "0", "aria-label": given.label }, this.inside);
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Map<number, HTMLElement>} */
    this.made = new Map();
    this.width = 0;
    this.watching = new ResizeObserver(() => this.layOut());
    this.watching.observe(this.element);
    this.element.addEventListener("scroll", () => this.fill(), { passive: true });
    this.element.addEventListener("click", (event) => {
      const at = /** @type {HTMLElement} */ (event.target).closest("[data-at]")?.getAttribute("data-at");
      if (at) given.chosen(Number(at));
    });
    this.element.addEventListener("keydown", (event) => this.pressed(event));
  }

  close() {
    this.watching.disconnect();
  }

  /** Break the text into lines. Widths are measured once for every word. */
  layOut() {
    const room = this.element.clientWidth - 24;
    if (room <= 0 || room === this.width) return;
    this.width = room;
    const style = getComputedStyle(this.element);
    const pen = /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
    pen.font = `${style.fontSize} ${style.fontFamily}`;
    /** @type {Map<string, number>} */
    const widths = new Map();
    const measure = (/** @type {string} */ text) => {
      let found = widths.get(text);
      if (found === undefined) widths.set(text, (found = pen.measureText(text).width));
      return found;
    };
    this.lines = [];
    let first = 0, x = 0, gap = 0; // the line's first token, its width so far, the last token before which it may be broken
    const wide = (/** @type {number} */ n) => Math.min(room, measure((n === first ? "" : this.read[n].before) + this.read[n].shown) + 1);
    const end = (/** @type {number} */ n) => {
      this.lines.push({ first, end: n, rule: false });
      [first, gap, x] = [n, n, 0];
    };
    for (let n = 0; n < this.read.length; n++) {
      if (n === this.given.prompt && n > 0) {
        if (n > first) end(n);
        this.lines.push({ first: n, end: n, rule: true });
      }
      const { before, breaks } = this.read[n];
      if (before) gap = n;
      if (x + wide(n) > room && n > first) {
        end(gap > first ? gap : n); // words stay whole where they can
        for (let m = first; m < n; m++) x += wide(m);
      }
      x += wide(n);
      if (breaks) {
        end(n + 1);
        for (let more = 1; more < Math.min(breaks, 2); more++) this.lines.push({ first: n + 1, end: n + 1, rule: false });
      }
    }
    if (first < this.read.length) end(this.read.length);
    this.inside.style.height = `${this.lines.length * LINE}px`;
    this.made.clear();
    this.inside.replaceChildren();
    this.show(this.at);
    this.fill();
  }

  /** Make the lines in sight, and let go of the others. */
  fill() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / LINE) - BEYOND);
    const end = Math.min(this.lines.length, Math.ceil((this.element.scrollTop + this.element.clientHeight) / LINE) + BEYOND);
    for (const [n, line] of this.made)
      if (n < first || n >= end) {
        line.remove();
        this.made.delete(n);
      }
    const fresh = document.createDocumentFragment();
    for (let n = first; n < end; n++) {
      if (this.made.has(n)) continue;
      const line = this.line(this.lines[n], n);
      this.made.set(n, line);
      fresh.append(line);
    }
    this.inside.append(fresh);
  }

  /** @param {Line} given @param {number} n */
  line(given, n) {
    const made = el("div", { class: "line", role: "presentation", style: { top: `${n * LINE}px` } });
    if (given.rule) {
      made.classList.add("rule");
      made.append("written by the model");
    }
    for (let at = given.first; at < given.end; at++) {
      const { before, shown, sign } = this.read[at];
      const token = el("span", { role: "option", "data-at": at, id: `token-${at}`, "aria-setsize": this.read.length, "aria-posinset": at + 1 });
      token.textContent = shown;
      if (at >= this.given.prompt) token.classList.add("wrote");
      if (sign) token.classList.add("sign");
      const group = this.given.groups?.[at] ?? -1;
      if (group >= 0) token.dataset.group = String(group % 8);
      if (group >= 8) token.dataset.again = ""; // there are eight colours: the next eight groups have dotted bands
      this.shade(token, at);
      if (before && at > given.first) made.append(before);
      made.append(token);
    }
    return made;
  }

  /** @param {HTMLElement} token @param {number} at */
  shade(token, at) {
    const look = this.given.look(at);
    token.style.background = look?.background ?? "";
    token.style.color = look?.colour ?? "";
    token.setAttribute("aria-label", `${this.given.tokens[at]}, token ${at}${at >= this.given.prompt ? ", written" : ""}${look?.said ? `, ${look.said}` : ""}`);
    token.setAttribute("aria-selected", String(at === this.at));
  }

  /** The shades have changed. */
  again() {
    for (const line of this.made.values())
      for (const token of line.querySelectorAll("[data-at]")) this.shade(/** @type {HTMLElement} */ (token), Number(token.getAttribute("data-at")));
  }

  /** Choose a token and bring it into sight. @param {number} at */
  show(at) {
    this.at = at;
    const n = this.lineOf(at);
    if (n >= 0) {
      const top = n * LINE, { scrollTop, clientHeight } = this.element;
      if (top < scrollTop + LINE || top > scrollTop + clientHeight - 2 * LINE) this.element.scrollTop = Math.max(0, top - clientHeight / 2);
    }
    this.fill();
    this.again();
    this.element.setAttribute("aria-activedescendant", `token-${at}`);
  }

  /** @param {number} at */
  lineOf(at) {
    let [first, last] = [0, this.lines.length];
    while (first < last) {
      const middle = (first + last) >> 1;
      if (this.lines[middle].end <= at) first = middle + 1;
      else last = middle;
    }
    return first < this.lines.length ? first : -1;
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const last = this.read.length - 1;
    /** @type {Record<string, () => number>} */
    const steps = {
      ArrowLeft: () => this.at - 1, ArrowRight: () => this.at + 1, ArrowUp: () => this.beside(-1), ArrowDown: () => this.beside(1),
      Home: () => 0, End: () => last, PageUp: () => this.beside(-12), PageDown: () => this.beside(12),
    };
    if (!steps[event.key]) return;
    event.preventDefault();
    this.given.chosen(Math.min(last, Math.max(0, steps[event.key]())));
  }

  /** The token as far along a line above or below. @param {number} by */
  beside(by) {
    const here = this.lineOf(this.at);
    let n = Math.min(this.lines.length - 1, Math.max(0, here + by));
    while (n > 0 && n < this.lines.length - 1 && this.lines[n].first === this.lines[n].end) n += Math.sign(by);
    const { first, end } = this.lines[n];
    const along = (this.at - this.lines[here].first) / Math.max(1, this.lines[here].end - this.lines[here].first);
    return Math.min(end - 1, first + Math.round(along * (end - first)));
  }
}
