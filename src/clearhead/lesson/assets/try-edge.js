// The edge of what may be seen, moved: weights, and who hears a change of the last token.

import { button, el } from "../dom.js";
import { bars, box, slider } from "./controls.js";
import { matrix, scrolling } from "./matrix.js";
import { fixed } from "./numbers.js";

/** @param {number} edge @param {number} T */
function meaning(edge, T) {
  if (edge < 0) return "every token sees only what came before it, not itself; the first sees nothing, and gets 0";
  if (edge === 0) return "every token sees itself and its past; only the last token notices the change";
  if (edge === T - 1) return "no mask: everybody sees everything";
  return `every token sees ${edge} token${edge > 1 ? "s" : ""} of its future`;
}

/** @param {import("./types.js").Try} given @param {import("./types.js").Around} around */
export function tryEdge(given, around) {
  /** @type {{weights: number[][], leak: number[]}[]} */
  const steps = given.data.steps;
  const T = steps[0].weights.length;
  const who = around.names(T);
  const [left, right, words] = [scrolling(), el("div", { class: "bars" }), el("p")];
  const range = slider("Edge", -1, T - 1, 0, (edge) => show(edge));
  /** @type {import("./matrix.js").Drawn} */
  let grid;

  /** @param {number} wished */
  function show(wished) {
    const edge = Math.max(-1, Math.min(T - 1, wished));
    const step = steps[edge + 1];
    range.input.value = String(edge);
    range.output.textContent = edge > 0 ? `+${edge}` : String(edge);
    range.input.setAttribute("aria-valuetext", `${edge}: ${meaning(edge, T)}`);
    const leaks = step.leak.map((move, t) => t < T - 1 && move > 1e-6);
    const hear = leaks.filter(Boolean).length;
    words.replaceChildren(el("b", { text: `Edge ${edge}` }), `: ${meaning(edge, T)}. ${hear ? `${hear} of ${T - 1} earlier tokens hear the last one: a leak.` : ""}`);
    grid = matrix({ name: "weights", values: step.weights, shade: "weight", rows: who, columns: who, decimals: 2 });
    grid.table.classList.add("drag");
    left.replaceChildren(grid.table);
    right.replaceChildren(...bars(step.leak.map((move, t) => ({ name: who[t], value: move, text: fixed(move), leak: leaks[t] }))));
  }
  /** On the matrix itself: the edge goes where the pointer is. @param {PointerEvent} event */
  const drag = (event) => {
    if (!(event.buttons & 1)) return;
    const found = grid.at(document.elementFromPoint(event.clientX, event.clientY));
    if (found) show(found[1] - found[0]);
  };
  left.addEventListener("pointerdown", drag);
  left.addEventListener("pointermove", drag);
  show(0);
  const controls = el("div", { class: "controls" }, range.label, button("Only the past", () => show(0)), button("Mask off", () => show(T - 1)));
  return box(given, controls, words, el("div", { class: "pair" }, left, right));
}
