// Time over length, both in powers of two, so that a straight line is a power of T.

/** @typedef {import("./types.js").Cost} Cost */

const [WIDTH, HEIGHT, LEFT, RIGHT, ABOVE, BELOW] = [400, 240, 62, 84, 12, 42];
const APART = 15; // between the names of two lines

/**
 * An element of a drawing. @template {keyof SVGElementTagNameMap} K @param {K} tag @param {Record<string, string | number>} given
 * @param {string | number} [text]
 */
function drawn(tag, given, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(given)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = String(text);
  return element;
}

/** @param {number} seconds */
function duration(seconds) {
  const short = (/** @type {number} */ x) => (x < 10 ? x.toFixed(1) : x.toFixed(0));
  return seconds < 1e-3 ? short(seconds * 1e6) + " µs" : short(seconds * 1e3) + " ms";
}

/** @param {Cost} cost */
export function plot({ points, beside }) {
  const times = points.flatMap(([, here, there]) => (there === null ? [here] : [here, there]));
  const [low, high] = [Math.log2(Math.min(...times)), Math.log2(Math.max(...times))];
  const [first, last] = [Math.log2(points[0][0]), Math.log2(points[points.length - 1][0])];
  const x = (/** @type {number} */ T) => LEFT + ((Math.log2(T) - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (/** @type {number} */ s) => HEIGHT - BELOW - ((Math.log2(s) - low) / (high - low || 1)) * (HEIGHT - ABOVE - BELOW);
  const [end, ground] = [WIDTH - RIGHT, HEIGHT - BELOW];

  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Time over T, both in powers of two; the numbers stand in the table." });
  svg.append(drawn("line", { class: "axis", x1: LEFT, x2: end, y1: ground, y2: ground }), drawn("line", { class: "axis", x1: LEFT, x2: LEFT, y1: ABOVE, y2: ground }));
  for (const [T] of points) svg.append(drawn("text", { x: x(T), y: ground + 17, "text-anchor": "middle" }, T));
  svg.append(drawn("text", { x: LEFT + (WIDTH - LEFT - RIGHT) / 2, y: HEIGHT - 1, "text-anchor": "middle" }, "T, tokens"));
  for (const s of [2 ** low, 2 ** ((low + high) / 2), 2 ** high]) svg.append(drawn("text", { x: LEFT - 7, y: y(s) + 4, "text-anchor": "end" }, duration(s)));

  /** @type {{at: number, kind: string, name: string}[]} */
  const ends = [];
  /** @param {string} kind @param {string} name @param {[number, number][]} line */
  const add = (kind, name, line) => {
    if (!line.length) return;
    svg.append(drawn("path", { class: kind, d: line.map(([T, s], k) => `${k ? "L" : "M"}${x(T).toFixed(1)} ${y(s).toFixed(1)}`).join("") }));
    for (const [T, s] of line) svg.append(drawn("circle", { class: kind, cx: x(T), cy: y(s), r: 3.5 }));
    ends.push({ at: y(line[line.length - 1][1]) + 4, kind, name });
  };
  add("there", beside, points.flatMap(([T, , there]) => (there === null ? [] : [/** @type {[number, number]} */ ([T, there])])));
  add("here", "this rung", points.map(([T, here]) => [T, here]));
  ends.sort((a, b) => a.at - b.at);
  if (ends.length === 2 && ends[1].at - ends[0].at < APART) ends[1].at = ends[0].at + APART;
  for (const { at, kind, name } of ends) svg.append(drawn("text", { class: kind, x: end + 9, y: at }, name));
  return svg;
}
