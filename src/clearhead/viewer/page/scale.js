// From a weight to a place on the ramp: linear, logarithmic, or by rank among what is on screen.

/** @typedef {{kind: string, low: number, high: number, sorted: Float64Array, share: (x: number) => number}} Scale */

/**
 * The scale of some values. The top is not the largest but the 99.5th of a hundred, which one bright pair cannot move.
 * @param {string} kind "linear", "log" or "rank" @param {ArrayLike<number>} values what the scale is made for; zeros count for nothing
 * @returns {Scale}
 */
export function scaleOf(kind, values) {
  const step = Math.max(1, Math.floor(values.length / 65536)); // a sample of 65,536 places a quantile well enough for colour
  let count = 0;
  const taken = new Float64Array(Math.ceil(values.length / step));
  for (let n = 0; n < values.length; n += step) if (values[n] > 0) taken[count++] = values[n];
  const sorted = taken.subarray(0, count).sort();
  const high = count ? Math.max(sorted[Math.floor(0.995 * (count - 1))], 1e-12) : 1;
  const low = kind === "log" ? Math.max(high / 1e4, 1e-12) : 0;
  /** @param {number} x */
  const share = (x) => {
    if (!(x > 0)) return 0;
    if (kind === "linear") return Math.min(1, x / high);
    if (kind === "log") return x <= low ? 0.02 : Math.min(1, 0.02 + (0.98 * Math.log(x / low)) / Math.log(high / low));
    if (kind === "sqrt") return Math.min(1, Math.sqrt(x / high));
    return rank(sorted, x);
  };
  return { kind, low, high, sorted, share };
}

/** The share of values that are no larger. @param {Float64Array} sorted @param {number} x */
function rank(sorted, x) {
  let [first, last] = [0, sorted.length];
  while (first < last) {
    const middle = (first + last) >> 1;
    if (sorted[middle] <= x) first = middle + 1;
    else last = middle;
  }
  return sorted.length ? first / sorted.length : 0;
}

/** The value at a place on the ramp, for a legend. @param {Scale} scale @param {number} t */
export function valueAt(scale, t) {
  if (scale.kind === "linear") return t * scale.high;
  if (scale.kind === "sqrt") return t * t * scale.high;
  if (scale.kind === "log") return scale.low * (scale.high / scale.low) ** Math.max(0, (t - 0.02) / 0.98);
  return scale.sorted.length ? scale.sorted[Math.min(scale.sorted.length - 1, Math.floor(t * scale.sorted.length))] : 0;
}

/**
 * Colours of many values at once. @param {ArrayLike<number>} values @param {Scale} scale @param {Uint8ClampedArray} ramp
 * @param {Uint8ClampedArray} out four bytes a value; what is 0 stays clear
 */
export function paint(values, scale, ramp, out) {
  for (let n = 0; n < values.length; n++) {
    const x = values[n];
    if (!(x > 0)) {
      out[4 * n + 3] = 0;
      continue;
    }
    const at = 4 * Math.round(255 * scale.share(x));
    out[4 * n] = ramp[at];
    out[4 * n + 1] = ramp[at + 1];
    out[4 * n + 2] = ramp[at + 2];
    out[4 * n + 3] = 255;
  }
}
