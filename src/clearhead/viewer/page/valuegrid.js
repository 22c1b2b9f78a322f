// All heads as coloured cells, a value each: one is chosen by a click or the arrow keys.

import { css } from "./colour.js";
import { el } from "./dom.js";

const NARROWEST = 18; // pixels of a cell

/** @typedef {import("./types.js").Head} Head */
/** @typedef {{colour: string, said: string}} Look how a head's cell is coloured, and what it says of itself */

/**
 * @param {import("./app.js").App} app @param {string} label @param {() => number} room pixels that a line of cells may have
 * @returns {{element: HTMLElement, draw: (look: (head: Head) => Look | null) => void, choose: () => void}} `choose` shows which is chosen
 */
export function valueGrid(app, label, room) {
  const element = el("div", { class: "heads values", role: "listbox", "aria-label": label });
  const layers = app.doc.layers.map(({ layer }) => layer);
  const most = Math.max(...app.doc.heads.map(({ index }) => index)) + 1;
  const indices = Array.from({ length: most }, (_, index) => index);
  let across = false; // layers run across where that shows all in one window, as in the overview

  const choose = () => {
    for (const cell of /** @type {NodeListOf<HTMLElement>} */ (element.querySelectorAll("[data-head]"))) {
      const is = cell.dataset.head === app.place.head;
      cell.setAttribute("aria-selected", String(is));
      cell.tabIndex = is ? 0 : -1;
    }
  };
  /** @param {(head: Head) => Look | null} look null where there is nothing to say of a head */
  const draw = (look) => {
    across = layers.length > most && (room() - 70) / layers.length >= NARROWEST;
    element.style.setProperty("--columns", String(across ? layers.length : most));
    const name = (/** @type {string} */ text, /** @type {string | null} */ kind = null) => el("b", { class: kind, text, "aria-hidden": "true" });
    const cell = (/** @type {number} */ layer, /** @type {number} */ index) => {
      const head = app.doc.heads.find((each) => each.layer === layer && each.index === index);
      const seen = head ? look(head) : null;
      if (!head || !seen) return el("i", { "aria-hidden": "true" });
      return el("div", { role: "option", class: "thumb", "data-head": head.head, "aria-label": `${head.head}, ${seen.said}`, title: `${head.head}: ${seen.said}`, style: { background: seen.colour } });
    };
    element.replaceChildren(el("b"), ...(across
      ? [...layers.map((layer) => name(`L${layer}`, "top")), ...indices.flatMap((index) => [name(`H${index}`), ...layers.map((layer) => cell(layer, index))])]
      : [...indices.map((index) => name(`H${index}`, "top")), ...layers.flatMap((layer) => [name(`L${layer}`), ...indices.map((index) => cell(layer, index))])]));
    choose();
  };

  element.addEventListener("click", (event) => {
    const head = /** @type {HTMLElement} */ (event.target).closest("[data-head]")?.getAttribute("data-head");
    if (head) app.go({ head });
  });
  element.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Enter") app.go({ view: "head" });
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = app.head(app.place.head);
    const next = app.doc.heads.find(({ layer, index }) => layer === at.layer + step[across ? 1 : 0] && index === at.index + step[across ? 0 : 1]);
    const cell = next && /** @type {HTMLElement | null} */ (element.querySelector(`[data-head="${next.head}"]`));
    if (!next || !cell) return;
    app.go({ head: next.head });
    cell.focus();
    app.say(cell.getAttribute("aria-label") ?? "");
  });
  return { element, draw, choose };
}

/**
 * A ramp between what its ends stand for. @param {Uint8ClampedArray} ramp @param {[string, string]} ends
 * @param {number} from where on the ramp it begins, 0 to 1 @param {string} [said]
 */
export function rampBetween(ramp, ends, from, said) {
  const bar = el("span", { class: "ramp", role: "img", "aria-label": `From ${ends[0]} to ${ends[1]}` });
  bar.style.background = `linear-gradient(90deg, ${Array.from({ length: 13 }, (_, n) => css(ramp, from + ((1 - from) * n) / 12)).join(",")})`;
  return el("p", { class: "scale" }, el("span", { text: ends[0] }), bar, el("span", { text: ends[1] }), said ? el("span", { class: "soft", text: said }) : null);
}
