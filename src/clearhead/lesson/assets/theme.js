// Dark or light. A weight runs along the ramp, a signed number from the ground to orange or blue; on paper both run to dark.

import { css, inkFor, inkOn, rampOf } from "../colour.js";
import { byId } from "./frame.js";

/** @typedef {import("../colour.js").RGB} RGB */
/** @typedef {{ground: string, ink: string}} Shown */

/** @type {{ground: RGB, less: RGB, more: RGB}} */
const DARK = { ground: [21, 27, 36], less: [92, 182, 236], more: [238, 170, 58] };
/** @type {{ground: RGB, less: RGB, more: RGB}} */
const LIGHT = { ground: [255, 254, 251], less: [26, 105, 170], more: [196, 98, 0] };

let dark = true;
let ramp = rampOf(dark);

/** How each cell was coloured, for when the theme turns. @type {WeakMap<Element, () => Shown | null>} */
const colours = new WeakMap();

/** @param {number} w 0 to 1 @returns {Shown} */
export function ofWeight(w) {
  return { ground: css(ramp, Math.sqrt(w)), ink: inkOn(ramp, Math.sqrt(w)) };
}

/** @param {number} x @param {number} top the size that is coloured most @returns {Shown} */
export function ofSigned(x, top) {
  const { ground, less, more } = dark ? DARK : LIGHT;
  const to = x < 0 ? less : more;
  const t = Math.min(1, Math.abs(x) / (top || 1));
  const [r, g, b] = ground.map((c, n) => Math.round(c + (to[n] - c) * t));
  return { ground: `rgb(${r} ${g} ${b})`, ink: inkFor([r, g, b]) };
}

/** Colour a cell, now and whenever the theme turns. @param {HTMLElement} cell @param {() => Shown | null} colour null for the page's own ground */
export function colourCell(cell, colour) {
  colours.set(cell, colour);
  const shown = colour();
  cell.style.backgroundColor = shown?.ground ?? "";
  cell.style.color = shown?.ink ?? "";
}

/** @param {boolean} wish whether dark */
function turn(wish) {
  dark = wish;
  ramp = rampOf(dark);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").textContent = dark ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", dark ? "Light colours" : "Dark colours");
}

/** Begin as the system wishes, and turn with the button. */
export function startTheme() {
  turn(!matchMedia("(prefers-color-scheme: light)").matches);
  byId("theme").addEventListener("click", () => {
    turn(!dark);
    for (const cell of /** @type {NodeListOf<HTMLElement>} */ (byId("page").querySelectorAll("td, i"))) {
      const colour = colours.get(cell);
      if (colour) colourCell(cell, colour);
    }
  });
}
