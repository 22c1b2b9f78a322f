// Numbers as they are written in matrices and sentences.

/** @typedef {import("./types.js").Cell} Cell */

/** @param {Cell | undefined} x @param {number} [decimals] */
export function fixed(x, decimals = 4) {
  if (x === null || x === undefined) return "";
  if (x === "-inf") return "-inf";
  const text = x.toFixed(decimals);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

/** The largest size among numbers, never quite 0. @param {Cell[][]} values */
export function largest(values) {
  return Math.max(1e-9, ...values.flat().filter((v) => typeof v === "number").map(Math.abs));
}
