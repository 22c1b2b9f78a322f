// What the lesson is computed on: choices in a file, free where a server computes.

import { choice, el, labelled } from "../dom.js";
import { byId } from "./frame.js";

/** @typedef {import("./types.js").Settings} Settings */
/** @typedef {(settings: Settings) => void} Then */

/** @param {import("./types.js").Source} source @param {import("./types.js").Facts} facts @param {Then} then */
export function settingsForm(source, facts, then) {
  byId("settings").append(...(source.options ? chosen(source.options, facts.first, then) : written(facts, then)));
}

/** @param {import("./types.js").Options} options @param {Settings} first @param {Then} then */
function chosen(options, first, then) {
  const settings = { ...first };
  /**
   * @template {keyof Settings} N @param {N} name @param {string} label @param {Settings[N][]} values
   * @param {(value: Settings[N]) => string} said @param {() => void} [after]
   */
  const field = (name, label, values, said, after) => {
    const made = choice(label, values.map((value) => [JSON.stringify(value), said(value)]), JSON.stringify(first[name]), (value) => {
      settings[name] = JSON.parse(value);
      after?.();
      then(settings);
    });
    const select = /** @type {HTMLSelectElement} */ (made.querySelector("select"));
    select.id = name;
    return { made, select };
  };
  const time = field("time", "tokens T", /** @type {(number | null)[]} */ (options.time), String);
  const text = field("text", "text", options.text, (value) => value ?? "random numbers", () => {
    settings.time = settings.text === null ? 8 : null; // a text has the length it has
    time.select.value = "8";
    time.select.disabled = settings.text !== null;
  });
  const width = field("width", "numbers a token C", options.width, (value) => (value === null ? "2, then 32" : String(value)));
  const seed = field("seed", "seed", options.seed, String);
  time.select.disabled = first.text !== null;
  return [text, time, width, seed].map(({ made }) => made);
}

/** @param {import("./types.js").Facts} facts @param {Then} then */
function written({ first, most }, then) {
  const number = (/** @type {"time" | "width" | "seed"} */ id, /** @type {number} */ min, /** @type {number} */ max, /** @type {string} */ placeholder) =>
    el("input", { type: "number", id, min, max, placeholder, value: first[id] });
  const text = el("input", { type: "text", id: "text", placeholder: "none: random numbers", maxlength: 1000, value: first.text });
  const [time, width, seed] = [number("time", 1, most, "8"), number("width", 1, most, "2, 32"), number("seed", 0, 2 ** 32 - 1, "1337")];
  const empty = () => text.value.trim() === "";
  time.disabled = first.text !== null;
  text.addEventListener("input", () => (time.disabled = !empty()));
  const whole = (/** @type {HTMLInputElement} */ field) => (field.value === "" || field.disabled ? null : Number(field.value));
  byId("settings").addEventListener("submit", (event) => {
    event.preventDefault();
    then({ text: empty() ? null : text.value, time: whole(time), width: whole(width), seed: whole(seed) ?? 1337 });
  });
  return [
    labelled("text of your own", text), labelled("tokens T", time), labelled("numbers a token C", width), labelled("seed", seed),
    el("button", { type: "submit", class: "main", text: "Compute" }),
  ];
}
