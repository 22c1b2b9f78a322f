// The answers that a single file holds, in place of a server: what was put in, and what follows from it.

import { Refused, unpack } from "./source.js";
import { TILE } from "./tiles.js";

/** @typedef {import("./types.js").Answer} Answer */
/** @typedef {import("./types.js").Parameters} Parameters */
/** @typedef {{document: import("./types.js").Doc, packs: Record<string, string>}} Embedded packs: gzip, then base64 */

/** @param {string} text @returns {Promise<Answer>} */
async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return unpack(await new Response(stream).arrayBuffer());
}

export class EmbeddedSource {
  /** @param {Embedded} data */
  constructor(data) {
    this.data = data;
    /** @type {Map<string, Promise<Answer>>} */
    this.read = new Map();
    /** @type {Map<string, Map<number, {cells: Float32Array, counts: Float32Array, rows: number, columns: number}>>} */
    this.pools = new Map();
  }

  /** @param {string} name */
  pack(name) {
    const text = this.data.packs[name];
    if (text === undefined) throw new Refused("This is not in the file: make it with more room, or open the trace with clearhead view.", 404);
    let found = this.read.get(name);
    if (!found) this.read.set(name, (found = inflate(text)));
    return found;
  }

  /** @param {string} question @param {Parameters} [p] @returns {Promise<Answer>} */
  async ask(question, p = {}) {
    const facts = this.data.document;
    if (question === "traces") return { facts: { traces: [{ trace: 0, name: facts.name }] }, arrays: {} };
    if (question === "trace") return { facts, arrays: {} };
    if (question === "maps") return this.pack(`maps ${p.pool ?? "mean"}`);
    if (question === "strips") return this.strips(String(p.head));
    if (question === "line") return this.line(this.heads(String(p.heads)), String(p.axis), Number(p.at));
    if (question === "tile") return this.tile(String(p.head), Number(p.level), Number(p.x), Number(p.y), String(p.pool));
    if (question === "crop") return this.crop(String(p.head), String(p.queries), String(p.keys));
    throw new Refused("This is not in a single file: open the trace with clearhead view.", 404);
  }

  /** Addresses, as the server reads them. @param {string} text */
  heads(text) {
    const { heads } = this.data.document;
    const found = text.split(",").map((word) => word.trim()).filter(Boolean).flatMap((word) => {
      if (word.toLowerCase() === "all") return heads;
      const at = /^l(\d+)(?:h(\d+))?$/i.exec(word);
      const named = at ? heads.filter((head) => head.layer === Number(at[1]) && (at[2] === undefined || head.index === Number(at[2]))) : [];
      if (!named.length) throw new Refused(`head ${word}: there is none`, 400);
      return named;
    });
    return [...new Set(found)];
  }

  /** @param {string} head */
  layer(head) {
    const { layers, heads } = this.data.document;
    const of = heads.find((h) => h.head === head)?.layer;
    return layers.find(({ layer }) => layer === of) ?? layers[0];
  }

  /** @param {string} head */
  async strips(head) {
    const all = (await this.pack("strips")).arrays;
    const arrays = Object.fromEntries(Object.entries(all).filter(([name]) => name.startsWith(`${head} `)).map(([name, value]) => [name.slice(head.length + 1), value]));
    return { facts: { head }, arrays };
  }

  /** @param {string} head */
  exact(head) {
    return this.data.packs[`exact ${head}`] === undefined ? null : this.pack(`exact ${head}`).then(({ arrays }) => /** @type {Float32Array} */ (arrays.weights.data));
  }

  /** @param {import("./types.js").Head[]} heads @param {string} axis @param {number} at */
  async line(heads, axis, at) {
    if (!heads.length) throw new Refused("heads: none are chosen, name at least one", 400);
    const { queries, keys, offset, kept } = this.layer(heads[0].head);
    const total = new Float64Array(axis === "query" ? keys : queries);
    let exact = true;
    const position = axis === "query" ? at - offset : at;
    for (const { head } of heads) {
      const weights = await this.exact(head);
      if (weights) for (let n = 0; n < total.length; n++) total[n] += Math.max(0, weights[axis === "query" ? position * keys + n : n * keys + position]);
      else {
        exact = false;
        const line = await this.keptLine(head, axis, position, total.length);
        for (let n = 0; n < total.length; n++) total[n] += line[n];
      }
    }
    for (let n = 0; n < total.length; n++) total[n] /= heads.length;
    return { facts: { exact, axis, at, offset, kept }, arrays: { values: { data: total, shape: [total.length] } } };
  }

  /** What the keys kept for every query say; NaN where they do not. @param {string} head @param {string} axis @param {number} at @param {number} length */
  async keptLine(head, axis, at, length) {
    const line = new Float64Array(length).fill(NaN);
    const { arrays } = await this.pack("kept");
    const [keys, weights] = [arrays[`${head} keys`], arrays[`${head} weights`]];
    if (!keys) return line;
    const [queries, k] = keys.shape;
    const none = keys.data instanceof Uint16Array ? 0xffff : -1;
    for (let query = axis === "query" ? at : 0; query < (axis === "query" ? at + 1 : queries); query++)
      for (let n = query * k; n < (query + 1) * k; n++) {
        if (keys.data[n] === none) continue;
        if (axis === "query") line[keys.data[n]] = weights.data[n];
        else if (keys.data[n] === at) line[query] = weights.data[n];
      }
    return line;
  }

  /** @param {string} head @param {string} queries @param {string} keys */
  async crop(head, queries, keys) {
    const weights = await this.exact(head);
    if (!weights) throw new Refused(`${head}: its exact weights are not in this file`, 404);
    const [[q0, q1], [k0, k1]] = [queries, keys].map((part) => part.split(":").map(Number));
    const wide = this.layer(head).keys;
    const values = new Float32Array((q1 - q0) * (k1 - k0));
    for (let q = q0; q < q1; q++) for (let k = k0; k < k1; k++) values[(q - q0) * (k1 - k0) + k - k0] = Math.max(0, weights[q * wide + k]);
    return { facts: { what: "weight" }, arrays: { values: { data: values, shape: [q1 - q0, k1 - k0] } } };
  }

  /** A tile of a head whose weights are here: pooled as clearhead.Pattern pools. @param {string} head @param {number} level @param {number} x @param {number} y @param {string} pool */
  async tile(head, level, x, y, pool) {
    const { levels } = this.layer(head);
    const all = await this.pooled(head, levels - 1 - level, pool);
    const [rows, columns] = [Math.min(TILE, all.rows - y * TILE), Math.min(TILE, all.columns - x * TILE)];
    const cells = new Float32Array(Math.max(0, rows) * Math.max(0, columns));
    for (let r = 0; r < rows; r++)
      for (let c = 0; c < columns; c++) {
        const n = (y * TILE + r) * all.columns + x * TILE + c;
        cells[r * columns + c] = pool === "max" ? all.cells[n] : all.counts[n] ? all.cells[n] / all.counts[n] : 0;
      }
    return { facts: {}, arrays: { cells: { data: cells, shape: [Math.max(0, rows), Math.max(0, columns)] } } };
  }

  /** Sums (or largest) over 2^up × 2^up pairs, and how many of them may be seen. @param {string} head @param {number} up @param {string} pool */
  async pooled(head, up, pool) {
    const name = `${head} ${pool}`;
    let found = this.pools.get(name);
    if (!found) {
      const weights = /** @type {Float32Array} */ (await this.exact(head));
      const { queries, keys } = this.layer(head);
      const counts = weights.map((value) => (value < 0 ? 0 : 1)); // −1 stands where a query may not see
      this.pools.set(name, (found = new Map([[0, { cells: weights.map((value) => Math.max(0, value)), counts, rows: queries, columns: keys }]])));
    }
    for (let at = 1; at <= up; at++) {
      if (found.has(at)) continue;
      const below = /** @type {{cells: Float32Array, counts: Float32Array, rows: number, columns: number}} */ (found.get(at - 1));
      const [rows, columns] = [Math.ceil(below.rows / 2), Math.ceil(below.columns / 2)];
      const [cells, counts] = [new Float32Array(rows * columns), new Float32Array(rows * columns)];
      for (let r = 0; r < below.rows; r++)
        for (let c = 0; c < below.columns; c++) {
          const to = (r >> 1) * columns + (c >> 1), from = r * below.columns + c;
          cells[to] = pool === "max" ? Math.max(cells[to], below.cells[from]) : cells[to] + below.cells[from];
          counts[to] += below.counts[from];
        }
      found.set(at, { cells, counts, rows, columns });
    }
    return /** @type {{cells: Float32Array, counts: Float32Array, rows: number, columns: number}} */ (found.get(up));
  }
}
