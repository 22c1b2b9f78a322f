// The small maps of all heads: fetched once, drawn by whoever shows them.

import { paint, scaleOf } from "./scale.js";
import { fromRoots } from "./tiles.js";

/** @typedef {import("./app.js").App} App */

const FEW = 48; // cells across, about the pixels that a small map has

/** Answers that have been read, so that going back to the overview costs nothing. @type {WeakMap<object, Map<string, import("./tiles.js").Tile>>} */
const READ = new WeakMap();

/** @param {App} app @param {string} [pool] @param {number} [trace] @returns {Promise<Map<string, import("./tiles.js").Tile>>} */
export async function mapsOf(app, pool = "mean", trace = app.trace) {
  return tilesOf(await app.source.ask("maps", { trace, pool }));
}

/** The maps in an answer, by head. @param {import("./types.js").Answer} answer @returns {Map<string, import("./tiles.js").Tile>} */
export function tilesOf(answer) {
  let found = READ.get(answer);
  if (!found) READ.set(answer, (found = new Map(Object.entries(answer.arrays).map(([head, packed]) => [head, fromRoots(packed)]))));
  return found;
}

/**
 * A thumbnail. Its scale leaves out the first column, if that is the first token's, which would drown the rest.
 * @param {HTMLCanvasElement} canvas @param {import("./tiles.js").Tile} tile @param {Uint8ClampedArray} ramp @param {string} kind
 * @param {boolean} [whole] whether the first column counts like all others
 */
export function drawThumb(canvas, tile, ramp, kind, whole = false) {
  canvas.width = Math.max(1, tile.columns);
  canvas.height = Math.max(1, tile.rows);
  // Few cells have edges, as they have on the large map; many are drawn smaller, smoothly.
  canvas.style.imageRendering = tile.columns < FEW ? "pixelated" : "auto";
  const others = tile.cells.filter((_, n) => whole || tile.columns < 2 || n % tile.columns);
  const image = new ImageData(canvas.width, canvas.height);
  paint(tile.cells, scaleOf(kind, others), ramp, image.data);
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).putImageData(image, 0, 0);
}
