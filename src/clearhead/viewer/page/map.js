// A map one can move in: from the whole pattern to one pair. Drawn on one canvas, with its axes and strips.

import { eachFrame, sharp } from "./dom.js";
import { mark } from "./words.js";
import { paint, scaleOf } from "./scale.js";
import { TILE } from "./tiles.js";

/** @typedef {import("./tiles.js").Cells} Cells */
/** @typedef {{query: number, key: number, queryEnd: number, keyEnd: number, value: number | null}} Cell in queries and keys, from 0 on */
/** @typedef {{label: string, values: ArrayLike<number>, colour: string}} Strip */

const CLOSEST = 44; // pixels a pair
const WORDS_FROM = 13; // pixels a pair, from which tokens are written along the axes

export class MapView {
  /**
   * @param {{cells: Cells, queries: number, keys: number, offset: number, queryName: (n: number) => string, keyName: (n: number) => string,
   *   ramp: () => Uint8ClampedArray, ink: () => {ink: string, soft: string, line: string, accent: string, ground: string},
   *   chosen: (query: number, key: number) => void, hovered: (cell: Cell | null) => void, drawn: (map: MapView) => void,
   *   label: string, signed?: boolean}} given
   */
  constructor(given) {
    this.given = given;
    this.cells = given.cells;
    this.canvas = document.createElement("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.className = "map";
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "zoomable map");
    this.canvas.setAttribute("aria-label", given.label);
    /** @type {{query: number, key: number} | null} */
    this.pair = null;
    /** @type {Cell | null} */
    this.under = null;
    /** @type {{query: Strip | null, key: Strip | null}} */
    this.strips = { query: null, key: null };
    this.kind = "sqrt";
    this.without = { first: true, diagonal: false };
    this.left = 62;
    this.top = 54;
    this.right = 58;
    this.bottom = 46;
    this.scale = scaleOf("linear", []);
    this.from = { query: 0, key: 0 }; // what stands at the plot's upper left corner
    this.zoom = 0; // pixels a pair
    this.width = 0; // of the canvas, pixels
    this.height = 0;
    this.across = 1; // of the plot in it
    this.down = 1;
    this.seen = "";
    /** @type {WeakMap<any, {canvas: HTMLCanvasElement, version: string}>} */
    this.painted = new WeakMap();
    this.draw = eachFrame(() => this.drawNow());
    this.watching = new ResizeObserver(() => this.resized());
    this.watching.observe(this.canvas);
    this.listen();
  }

  close() {
    this.watching.disconnect();
    this.cells.close();
  }

  // ---------------------------------------------------------------------------------------------------------- moving

  resized() {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    if (!this.width || !this.height) return;
    const narrow = this.width < 480;
    this.left = narrow ? 46 : 62;
    this.right = this.strips.query ? (narrow ? 40 : 58) : 12;
    this.bottom = this.strips.key ? 46 : 12;
    this.across = Math.max(1, this.width - this.left - this.right);
    this.down = Math.max(1, this.height - this.top - this.bottom);
    if (!this.zoom || this.zoom < this.least()) this.fit();
    else this.hold();
    this.draw();
  }

  least() {
    return Math.min(CLOSEST, this.across / this.given.keys, this.down / this.given.queries);
  }

  fit() {
    this.zoom = this.least();
    this.from = { query: 0, key: 0 };
    this.draw();
  }

  /** Keep the pattern in the plot. */
  hold() {
    const { queries, keys } = this.given;
    const [high, wide] = [this.down / this.zoom, this.across / this.zoom];
    this.from.query = Math.max(0, Math.min(this.from.query, queries - high));
    this.from.key = Math.max(0, Math.min(this.from.key, keys - wide));
  }

  /** @param {number} factor @param {number} [x] @param {number} [y] what stays where it is; the middle or the chosen pair by default */
  zoomBy(factor, x, y) {
    if (x === undefined || y === undefined) {
      const at = this.pair && this.inSight(this.pair) ? this.pair : null;
      x = at ? this.left + (at.key + 0.5 - this.from.key) * this.zoom : this.left + this.across / 2;
      y = at ? this.top + (at.query + 0.5 - this.from.query) * this.zoom : this.top + this.down / 2;
    }
    const at = { key: this.from.key + (x - this.left) / this.zoom, query: this.from.query + (y - this.top) / this.zoom };
    this.zoom = Math.min(Math.max(this.zoom * factor, this.least()), Math.max(CLOSEST, this.least()));
    this.from = { key: at.key - (x - this.left) / this.zoom, query: at.query - (y - this.top) / this.zoom };
    this.hold();
    this.draw();
  }

  /** Go to a pair, as near as a pair can be seen. @param {{query: number, key: number}} pair @param {number} [zoom] */
  show(pair, zoom) {
    this.pair = pair;
    if (zoom) this.zoom = Math.max(this.least(), Math.min(zoom, CLOSEST));
    if (!this.inSight(pair) || zoom) {
      this.from.query = pair.query + 0.5 - this.down / this.zoom / 2;
      this.from.key = pair.key + 0.5 - this.across / this.zoom / 2;
      this.hold();
    }
    this.draw();
  }

  /** @param {{query: number, key: number}} pair */
  inSight({ query, key }) {
    const [y, x] = [(query + 0.5 - this.from.query) * this.zoom, (key + 0.5 - this.from.key) * this.zoom];
    return y >= 0 && x >= 0 && y <= this.down && x <= this.across;
  }

  // --------------------------------------------------------------------------------------------------------- drawing

  /** The level to draw: the coarsest whose cells are no larger than about a pixel and a half. */
  level() {
    for (let level = 0; level < this.cells.levels; level++) if (this.cells.side(level) * this.zoom <= 1.6) return level;
    return this.cells.levels - 1;
  }

  /** High and wide of a cell, in pairs. @param {number} level @returns {[number, number]} */
  side(level) {
    const wide = this.cells.side(level);
    return [/** @type {any} */ (this.cells).high ?? wide, wide];
  }

  /** Tiles in sight. @param {number} level */
  tiles(level) {
    const [high, wide] = this.side(level);
    const { queries, keys } = this.given;
    const end = { query: Math.min(queries, this.from.query + this.down / this.zoom), key: Math.min(keys, this.from.key + this.across / this.zoom) };
    const found = [];
    for (let y = Math.floor(this.from.query / high / TILE); y * TILE * high < end.query; y++)
      for (let x = Math.floor(this.from.key / wide / TILE); x * TILE * wide < end.key; x++) found.push({ x, y });
    return found;
  }

  drawNow() {
    if (!this.width || !this.height || !this.canvas.isConnected) return;
    const pen = sharp(this.canvas, this.width, this.height);
    const { ink, soft, line, accent, ground } = this.given.ink();
    const level = this.level();
    const here = this.tiles(level).map(({ x, y }) => ({ x, y, tile: this.cells.get(level, x, y) }));
    this.rescale(level, here);
    pen.save();
    pen.beginPath();
    const [wide, high] = [Math.min(this.across, this.given.keys * this.zoom), Math.min(this.down, this.given.queries * this.zoom)];
    pen.rect(this.left, this.top, wide, high);
    pen.fillStyle = ground;
    pen.fill();
    pen.clip();
    for (const { x, y, tile } of here) {
      if (tile) this.drawTile(pen, level, x, y, tile);
      else this.drawCoarser(pen, level, x, y);
    }
    this.drawCross(pen, accent, ink);
    pen.restore();
    pen.strokeStyle = line;
    pen.strokeRect(this.left - 0.5, this.top - 0.5, wide + 1, high + 1);
    this.drawAxes(pen, ink, soft);
    this.drawStrips(pen, soft, line);
    this.cells.needed();
    this.given.drawn(this);
  }

  /** What the colours mean follows what is on screen. @param {number} level @param {{x: number, y: number, tile?: import("./tiles.js").Tile}[]} here */
  rescale(level, here) {
    const name = `${this.kind} ${level} ${this.without.first} ${this.without.diagonal} ${here.map(({ x, y, tile }) => `${x},${y},${Boolean(tile)}`)}`;
    if (name === this.seen) return;
    this.seen = name;
    const [high, wide] = this.side(level);
    /** @type {number[]} */
    const values = [];
    for (const { x, y, tile } of here) {
      if (!tile) continue;
      const step = Math.max(1, Math.floor((tile.cells.length * here.length) / 60_000));
      for (let n = 0; n < tile.cells.length; n += step) {
        const [row, column] = [y * TILE + Math.floor(n / tile.columns), x * TILE + (n % tile.columns)];
        if (this.without.first && column === 0 && this.given.keys > 1) continue;
        if (this.without.diagonal && this.onDiagonal(row * high, (row + 1) * high, column * wide, (column + 1) * wide)) continue;
        values.push(Math.abs(tile.cells[n]));
      }
    }
    this.scale = scaleOf(this.kind, values);
  }

  /** Whether a cell holds a pair of a token with itself. @param {number} q0 @param {number} q1 @param {number} k0 @param {number} k1 */
  onDiagonal(q0, q1, k0, k1) {
    return q0 + this.given.offset < k1 && k0 < q1 + this.given.offset;
  }

  /** @param {import("./tiles.js").Tile} tile */
  coloured(tile) {
    const version = `${this.kind} ${this.scale.low} ${this.scale.high} ${this.scale.sorted.length} ${this.given.ramp()[0]}`;
    const found = this.painted.get(tile);
    if (found?.version === version && this.kind !== "rank") return found.canvas;
    if (found?.version === version + this.seen) return found.canvas;
    const canvas = found?.canvas ?? document.createElement("canvas");
    canvas.width = tile.columns;
    canvas.height = tile.rows;
    const image = new ImageData(tile.columns, tile.rows);
    if (this.given.signed) paintSigned(tile.cells, this.scale, this.given.ramp(), image.data);
    else paint(tile.cells, this.scale, this.given.ramp(), image.data);
    /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).putImageData(image, 0, 0);
    this.painted.set(tile, { canvas, version: this.kind === "rank" ? version + this.seen : version });
    return canvas;
  }

  /** @param {CanvasRenderingContext2D} pen @param {number} level @param {number} x @param {number} y @param {import("./tiles.js").Tile} tile */
  drawTile(pen, level, x, y, tile) {
    if (!tile.rows || !tile.columns) return;
    const [high, wide] = this.side(level);
    const at = { x: this.left + (x * TILE * wide - this.from.key) * this.zoom, y: this.top + (y * TILE * high - this.from.query) * this.zoom };
    pen.imageSmoothingEnabled = wide * this.zoom < 1;
    pen.drawImage(this.coloured(tile), at.x, at.y, tile.columns * wide * this.zoom, tile.rows * high * this.zoom);
  }

  /** Until a tile is here: its part of the nearest coarser one. @param {CanvasRenderingContext2D} pen @param {number} level @param {number} x @param {number} y */
  drawCoarser(pen, level, x, y) {
    for (let up = 1; level - up >= 0; up++) {
      const parent = { x: x >> up, y: y >> up };
      const tile = up === level ? this.cells.get(0, 0, 0) : /** @type {any} */ (this.cells).kept?.get(`${level - up}/${parent.x}/${parent.y}`);
      if (!tile) continue;
      const part = TILE >> up;
      const [sx, sy] = [(x - (parent.x << up)) * part, (y - (parent.y << up)) * part];
      const [sw, sh] = [Math.min(part, tile.columns - sx), Math.min(part, tile.rows - sy)];
      if (sw <= 0 || sh <= 0) return;
      const side = this.cells.side(level - up) * this.zoom;
      pen.imageSmoothingEnabled = false;
      pen.drawImage(this.coloured(tile), sx, sy, sw, sh,
        this.left + (x * TILE * this.cells.side(level) - this.from.key) * this.zoom,
        this.top + (y * TILE * this.cells.side(level) - this.from.query) * this.zoom, sw * side, sh * side);
      return;
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {string} accent @param {string} ink */
  drawCross(pen, accent, ink) {
    const place = (/** @type {number} */ query, /** @type {number} */ key) => ({ x: this.left + (key - this.from.key) * this.zoom, y: this.top + (query - this.from.query) * this.zoom });
    if (this.under && !this.pair) {
      const a = place(this.under.query, this.under.key), b = place(this.under.queryEnd, this.under.keyEnd);
      pen.strokeStyle = ink;
      pen.lineWidth = 1;
      pen.strokeRect(a.x - 0.5, a.y - 0.5, Math.max(4, b.x - a.x) + 1, Math.max(4, b.y - a.y) + 1);
    }
    if (!this.pair) return;
    const a = place(this.pair.query, this.pair.key);
    const [cx, cy] = [a.x + this.zoom / 2, a.y + this.zoom / 2];
    pen.strokeStyle = accent;
    pen.lineWidth = 1.25;
    const hole = Math.max(this.zoom / 2, 4);
    pen.beginPath();
    pen.moveTo(this.left, cy); pen.lineTo(cx - hole, cy); pen.moveTo(cx + hole, cy); pen.lineTo(this.left + this.across, cy);
    pen.moveTo(cx, this.top); pen.lineTo(cx, cy - hole); pen.moveTo(cx, cy + hole); pen.lineTo(cx, this.top + this.down);
    pen.stroke();
    pen.lineWidth = 2;
    pen.strokeRect(cx - hole, cy - hole, 2 * hole, 2 * hole);
  }

  /** Tokens where there is room for them, positions where there is not. @param {CanvasRenderingContext2D} pen @param {string} ink @param {string} soft */
  drawAxes(pen, ink, soft) {
    const words = this.zoom >= WORDS_FROM;
    pen.font = words ? "12px system-ui, sans-serif" : "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.direction = "ltr";
    const step = words ? 1 : niceStep(56 / this.zoom);
    const rowStep = words ? 1 : niceStep(34 / this.zoom);
    const { queries, keys, offset } = this.given;
    const cut = (/** @type {string} */ piece, /** @type {number} */ room) => {
      const letters = [...piece];
      while (letters.length > 1 && pen.measureText(letters.join("")).width > room) letters.pop();
      return `\u2068${letters.join("")}\u2069`;
    };
    pen.textAlign = "right";
    const rows = Math.min(queries, this.from.query + this.down / this.zoom);
    for (let n = Math.ceil(Math.max(0, this.from.query - 0.5) / rowStep) * rowStep; n < rows; n += rowStep) {
      const y = this.top + (n + 0.5 - this.from.query) * this.zoom;
      if (y < this.top || y > this.height - this.bottom) continue;
      pen.fillStyle = this.pair?.query === n ? ink : soft;
      pen.fillText(words ? cut(this.given.queryName(n), this.left - 8) : String(n + offset), this.left - 5, y);
    }
    pen.textAlign = words ? "left" : "center";
    const columns = Math.min(keys, this.from.key + this.across / this.zoom);
    for (let n = Math.ceil(Math.max(0, this.from.key - 0.5) / step) * step; n < columns; n += step) {
      const x = this.left + (n + 0.5 - this.from.key) * this.zoom;
      if (x < this.left || x > this.width - this.right + 1) continue;
      pen.fillStyle = this.pair?.key === n ? ink : soft;
      if (!words) {
        pen.fillText(String(n), x, this.top - 10);
        continue;
      }
      pen.save();
      pen.translate(x, this.top - 5);
      pen.rotate(-Math.PI / 3);
      pen.fillText(cut(this.given.keyName(n), this.top), 0, 0);
      pen.restore();
    }
    pen.fillStyle = soft;
    pen.font = "11px system-ui, sans-serif";
    if (!words) {
      pen.textAlign = "left";
      pen.fillText("looked at →", this.left, 12);
      pen.fillText("looking ↓", 2, this.top - 26);
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {string} soft @param {string} line */
  drawStrips(pen, soft, line) {
    const { queries, keys } = this.given;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const bars = (/** @type {Strip} */ strip, /** @type {number} */ count, /** @type {number} */ from, /** @type {number} */ room, /** @type {(at: number, share: number, thick: number) => void} */ bar) => {
      let top = 1e-12;
      // The first token receives so much that nothing else would show.
      for (let n = strip === this.strips.key && this.without.first && strip.values.length > 1 ? 1 : 0; n < strip.values.length; n++) if (strip.values[n] > top) top = strip.values[n];
      pen.fillStyle = strip.colour;
      const thick = Math.max(1, this.zoom);
      for (let at = 0; at < Math.min(room, count * this.zoom); at += thick) {
        const [first, end] = [Math.max(0, Math.floor(from + at / this.zoom)), Math.min(count, Math.max(Math.floor(from + at / this.zoom) + 1, Math.floor(from + (at + thick) / this.zoom)))];
        let most = 0;
        for (let n = first; n < end; n++) if (strip.values[n] > most) most = strip.values[n];
        const start = thick > 1 ? (first - from) * this.zoom : at;
        bar(Math.max(0, start), Math.min(1, most / top), Math.min(thick, room - start) - (thick > 4 ? 1 : 0));
      }
      return top;
    };
    if (this.strips.query) {
      const [x, room] = [this.left + Math.min(this.across, keys * this.zoom) + 8, this.right - 14];
      const top = bars(this.strips.query, queries, this.from.query, this.down, (at, share, thick) => pen.fillRect(x, this.top + at, share * room, thick));
      pen.strokeStyle = line;
      pen.strokeRect(x - 0.5, this.top - 0.5, 0.01, Math.min(this.down, queries * this.zoom));
      pen.fillStyle = soft;
      const wide = Math.max(pen.measureText(this.strips.query.label).width, 30);
      pen.textAlign = "left";
      pen.fillText(this.strips.query.label, Math.min(x, this.width - wide - 2), this.top - 24);
      pen.fillText(`≤ ${mark(top)}`, Math.min(x, this.width - wide - 2), this.top - 10);
    }
    if (this.strips.key) {
      const [y, room] = [this.top + Math.min(this.down, queries * this.zoom) + 8, this.bottom - 22];
      const top = bars(this.strips.key, keys, this.from.key, this.across, (at, share, thick) => pen.fillRect(this.left + at, y, thick, share * room));
      pen.fillStyle = soft;
      pen.textAlign = "left";
      pen.fillText(`${this.strips.key.label}, ≤ ${mark(top)}`, this.left, y + room + 9);
    }
  }

  // -------------------------------------------------------------------------------------------------- hand and keys

  /** The cell at a place of the canvas, or null beside the pattern. @param {number} x @param {number} y @returns {Cell | null} */
  cellAt(x, y) {
    if (x < this.left || y < this.top || x > this.left + this.across || y > this.top + this.down) return null;
    const query = this.from.query + (y - this.top) / this.zoom;
    const key = this.from.key + (x - this.left) / this.zoom;
    if (query < 0 || key < 0 || query >= this.given.queries || key >= this.given.keys) return null;
    return this.cellOf(query, key);
  }

  /** @param {number} query @param {number} key @returns {Cell} */
  cellOf(query, key) {
    const level = this.level();
    const [high, wide] = this.side(level);
    const [row, column] = [Math.floor(query / high), Math.floor(key / wide)];
    const [x, y] = [Math.floor(column / TILE), Math.floor(row / TILE)];
    const tile = this.cells.get(level, x, y);
    const at = (row - y * TILE) * (tile?.columns ?? 0) + column - x * TILE;
    const edge = (/** @type {number} */ n, /** @type {number} */ side, /** @type {number} */ most) => Math.min(most, Math.ceil(n * side - 1e-9));
    const { queries, keys } = this.given;
    return {
      query: Math.floor(row * high + 1e-9), key: Math.floor(column * wide + 1e-9), queryEnd: edge(row + 1, high, queries), keyEnd: edge(column + 1, wide, keys),
      value: tile ? tile.cells[at] ?? null : null,
    };
  }

  listen() {
    const { canvas } = this;
    const where = (/** @type {MouseEvent} */ event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    /** @type {Map<number, {x: number, y: number}>} */
    const fingers = new Map();
    let moved = 0;
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const { x, y } = where(event);
      this.zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0022)), x, y);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      fingers.set(event.pointerId, where(event));
      moved = 0;
    });
    canvas.addEventListener("pointermove", (event) => {
      const at = where(event), before = fingers.get(event.pointerId);
      if (!before) {
        this.under = this.cellAt(at.x, at.y);
        this.given.hovered(this.under);
        this.draw();
        return;
      }
      const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
      if (others.length) {
        const [other] = others;
        const spread = (/** @type {{x: number, y: number}} */ a) => Math.hypot(a.x - other.x, a.y - other.y) || 1;
        this.zoomBy(spread(at) / spread(before), (at.x + other.x) / 2, (at.y + other.y) / 2);
        moved = 99;
      } else {
        moved += Math.abs(at.x - before.x) + Math.abs(at.y - before.y);
        if (moved > 4) {
          this.from.key -= (at.x - before.x) / this.zoom;
          this.from.query -= (at.y - before.y) / this.zoom;
          this.hold();
          this.draw();
        }
      }
      fingers.set(event.pointerId, at);
    });
    const up = (/** @type {PointerEvent} */ event) => {
      const was = fingers.delete(event.pointerId);
      if (!was || moved > 4 || event.type === "pointercancel") return;
      const { x, y } = where(event);
      const cell = this.cellAt(x, y);
      if (cell) this.choose(Math.floor(this.from.query + (y - this.top) / this.zoom), Math.floor(this.from.key + (x - this.left) / this.zoom));
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => {
      this.under = null;
      this.given.hovered(null);
      this.draw();
    });
    canvas.addEventListener("dblclick", (event) => this.zoomBy(4, where(event).x, where(event).y));
    canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "+" || event.key === "=") this.zoomBy(2);
    else if (event.key === "-") this.zoomBy(0.5);
    else if (event.key === "0") this.fit();
    else if (step && event.shiftKey) {
      this.from.query += (step[0] * this.down) / this.zoom / 4;
      this.from.key += (step[1] * this.across) / this.zoom / 4;
      this.hold();
      this.draw();
    } else if (step) {
      const at = this.pair ?? { query: this.given.queries - 1, key: Math.min(this.given.keys, this.given.queries + this.given.offset) - 1 };
      // One step is what one can see: a pair when near, a few when far.
      const far = this.pair ? Math.max(1, Math.round(6 / this.zoom)) : 0;
      this.choose(at.query + step[0] * far, at.key + step[1] * far);
    } else return;
    event.preventDefault();
  }

  /** @param {number} query @param {number} key */
  choose(query, key) {
    query = Math.min(this.given.queries - 1, Math.max(0, query));
    key = Math.min(this.given.keys - 1, Math.max(0, key));
    this.show({ query, key });
    this.given.chosen(query, key);
  }
}

/** A step of 1, 2 or 5 times a power of ten. @param {number} least */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  for (const n of [1, 2, 5, 10]) if (n * power >= least) return n * power;
  return 10 * power;
}

/** @param {ArrayLike<number>} values @param {import("./scale.js").Scale} scale @param {Uint8ClampedArray} ramp @param {Uint8ClampedArray} out */
function paintSigned(values, scale, ramp, out) {
  for (let n = 0; n < values.length; n++) {
    const x = values[n];
    const share = scale.share(Math.abs(x));
    const at = 4 * Math.round(127.5 + (x < 0 ? -127.5 : 127.5) * share);
    out.set(ramp.subarray(at, at + 4), 4 * n);
    if (!x) out[4 * n + 3] = 0;
  }
}
