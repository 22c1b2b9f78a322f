// A text shaded by weights.

import { css, inkOn } from "./colour.js";
import { percent } from "./words.js";

const LEAST = 0.002; // weights below leave their token unshaded: a ground for every trace of weight would say nothing

/**
 * How a token looks, by its share. @param {import("./app.js").App} app @param {ArrayLike<number>} values by position
 * @param {(at: number) => number} index where a token's value stands, −1 for none @param {string} kind
 * @param {number} [top] the share that is brightest
 */
export function shading(app, values, index, kind, top = 1) {
  return (/** @type {number} */ at) => {
    const value = values[index(at)];
    if (!(value > 0)) return null;
    const said = percent(value);
    if (value < LEAST * top) return { background: "", colour: "", said };
    const t = share(value / top, kind);
    const ramp = app.ramp;
    return { background: css(ramp, t), colour: inkOn(ramp, t), said };
  };
}

/** @param {number} x @param {string} kind */
export function share(x, kind) {
  if (kind === "linear") return Math.min(1, x);
  if (kind === "log") return Math.min(1, Math.max(0, 1 + Math.log10(Math.max(x, 1e-9)) / 3));
  return Math.min(1, Math.sqrt(x));
}
