// What one plays with: a box around it, sliders, choices, bars, and a button that plays by itself.

import { button, el } from "../dom.js";

const PACE = 1100; // milliseconds of a step

/** @param {import("./types.js").Try} given @param {...Node} inner */
export function box(given, ...inner) {
  return el("section", { class: "try" }, el("h2", { text: given.title }), el("p", { text: given.text }), ...inner);
}

/**
 * A slider over whole numbers. @param {string} label @param {number} min @param {number} max @param {number} value
 * @param {(value: number) => void} then
 */
export function slider(label, min, max, value, then) {
  const input = el("input", { type: "range", min, max, step: 1, value, oninput: () => then(Number(input.value)) });
  const output = el("output");
  return { input, output, label: el("label", {}, label, input, output) };
}

/**
 * One of a few, all of them seen. @template {string | number} T
 * @param {string} legend @param {T[]} options @param {T} chosen @param {(option: T) => void} then
 */
export function oneOf(legend, options, chosen, then) {
  const name = "choice" + Math.random().toString(36).slice(2);
  return el("fieldset", {}, el("legend", { text: legend }), ...options.map((option) =>
    el("label", {}, el("input", { type: "radio", name, checked: option === chosen, onchange: () => then(option) }), String(option))));
}

/** @param {{name: string, value: number, text: string, leak?: boolean}[]} rows @param {number} [full] the value of a whole bar; else the largest */
export function bars(rows, full = Math.max(1e-9, ...rows.map((row) => row.value))) {
  return rows.map(({ name, value, text, leak }) => el("div", { class: leak ? "leak" : null },
    el("span", { text: name, title: name }), el("div", {}, el("u", { style: { width: `${(100 * value) / full}%` } })), el("span", { text })));
}

/** Ends whatever plays. */
export let stopPlaying = () => {};

/**
 * Play and pause; whoever wants less motion steps by hand.
 * @param {() => boolean} next one step; false when there is none @param {() => void} begin called before the first
 */
export function player(next, begin) {
  /** @type {ReturnType<typeof setInterval> | 0} */
  let timer = 0;
  const end = () => {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  };
  const play = button("Play", () => {
    if (timer) return end();
    begin();
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (!play.isConnected || !next()) end();
    }, PACE);
    stopPlaying = end;
  }, { hidden: matchMedia("(prefers-reduced-motion: reduce)").matches });
  return play;
}
