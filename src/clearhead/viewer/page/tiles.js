// The cells of a head's map, level by level, asked for when they come into view.

/** @typedef {{cells: Float32Array, rows: number, columns: number}} Tile */
/** @typedef {{levels: number, side: (level: number) => number, get: (level: number, x: number, y: number) => Tile | undefined,
 *   needed: () => void, close: () => void}} Cells */

const SPAN = 256; // cells along each side of a tile
const AT_ONCE = 6; // questions under way

export const TILE = SPAN;

/**
 * Tiles that are asked for one by one: clearhead's zoom levels, of which the last has a cell a pair.
 * @implements {Cells}
 */
export class Tiles {
  /**
   * @param {(level: number, x: number, y: number, signal: AbortSignal) => Promise<Tile>} ask @param {number} levels
   * @param {() => void} arrived @param {(error: any) => void} failed
   */
  constructor(ask, levels, arrived, failed) {
    this.ask = ask;
    this.levels = levels;
    this.arrived = arrived;
    this.failed = failed;
    /** @type {Map<string, Tile>} */
    this.kept = new Map();
    /** @type {Map<string, AbortController>} */
    this.asked = new Map();
    /** @type {Set<string>} */
    this.wanted = new Set();
    this.closed = false;
  }

  /** Queries and keys along each side of a cell. @param {number} level */
  side(level) {
    return 2 ** (this.levels - 1 - level);
  }

  /** A tile, if it is here; if not, it is wanted. @param {number} level @param {number} x @param {number} y */
  get(level, x, y) {
    const name = `${level}/${x}/${y}`;
    const found = this.kept.get(name);
    if (!found) this.wanted.add(name);
    return found;
  }

  /** After a drawing: ask for what it wanted, and no longer for what it did not. */
  needed() {
    for (const [name, stop] of this.asked) if (!this.wanted.has(name)) stop.abort();
    for (const name of this.wanted) {
      if (this.asked.size >= AT_ONCE) break;
      if (!this.asked.has(name)) this.fetch(name);
    }
    this.wanted.clear();
  }

  /** @param {string} name */
  async fetch(name) {
    const stop = new AbortController();
    this.asked.set(name, stop);
    const [level, x, y] = name.split("/").map(Number);
    try {
      const tile = await this.ask(level, x, y, stop.signal);
      this.kept.set(name, tile);
      if (this.kept.size > 120) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value)); // 256 KB each
    } catch (error) {
      if (!stop.signal.aborted && !this.closed) this.failed(error);
      this.asked.delete(name);
      return;
    }
    this.asked.delete(name);
    if (!this.closed) this.arrived();
  }

  close() {
    this.closed = true;
    for (const stop of this.asked.values()) stop.abort();
  }
}

/**
 * One map that is all there is, for heads whose queries and keys were not kept. Its cells differ by at most one position.
 * @implements {Cells}
 */
export class OneTile {
  /** @param {Tile} tile @param {number} queries @param {number} keys */
  constructor(tile, queries, keys) {
    this.tile = tile;
    this.levels = 1;
    this.high = queries / Math.max(1, tile.rows);
    this.wide = keys / Math.max(1, tile.columns);
  }

  side() {
    return this.wide;
  }

  get() {
    return this.tile;
  }

  needed() {}

  close() {}
}

/** Square roots in 16 bits, as maps travel. @param {import("./types.js").Arr} packed @returns {Tile} */
export function fromRoots(packed) {
  const cells = new Float32Array(packed.data.length);
  for (let n = 0; n < cells.length; n++) cells[n] = (packed.data[n] / 0xffff) ** 2;
  return { cells, rows: packed.shape[0], columns: packed.shape[1] };
}
