// Numbers and tokens for people.

/** A weight, exact to the digits shown. @param {number | null | undefined} x */
export function weight(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return "not kept";
  if (x === 0) return "0";
  if (x === -Infinity) return "−∞";
  return (Math.abs(x) < 1e-4 ? x.toExponential(3) : x.toFixed(6)).replace(/^-/, "−");
}

/** A share as a percentage. @param {number} x */
export function percent(x) {
  if (Number.isNaN(x)) return "not kept";
  if (x >= 0.9995) return "100 %";
  return x >= 0.1 ? `${(100 * x).toFixed(1)} %` : x > 0 && x < 0.00005 ? "< 0.01 %" : `${(100 * x).toFixed(2)} %`;
}

/** A score or a mean. @param {number | null | undefined} x @param {number} [digits] */
export function fixed(x, digits = 2) {
  if (x === null || x === undefined || Number.isNaN(x)) return "none";
  const said = Math.abs(x) >= 1000 ? x.toFixed(0) : x.toFixed(digits);
  return Number(said) === 0 ? said.replace("-", "") : said.replace("-", "−");
}

/** A scale's mark. @param {number} x */
export function mark(x) {
  if (x === 0) return "0";
  if (Math.abs(x) < 0.001) return x.toExponential(0).replace("-", "−");
  return String(Number(x.toPrecision(2)));
}

/** A count, its thousands apart. @param {number} n */
export function counted(n) {
  return n.toLocaleString("en-US");
}

/** One of them or many. @param {number} n @param {string} what */
export function many(n, what) {
  return `${n} ${what}${n === 1 ? "" : "s"}`;
}

/** @param {number} n bytes */
export function size(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000) return `${unit === "B" ? n : n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

/**
 * What a token reads as inside running text: the marks for spaces and line ends become what they stand for.
 * @param {string} piece @returns {{before: string, shown: string, sign: boolean, breaks: number}}
 */
export function reading(piece) {
  const before = /^·*/.exec(piece)?.[0].length ?? 0;
  const rest = piece.slice(before);
  const breaks = [...piece].filter((c) => c === "↵").length;
  const sign = !rest || /^(↵|<\|.*\|>$)/.test(rest);
  return { before: rest ? " ".repeat(before) : "", shown: rest ? rest.replaceAll("·", " ") : piece, sign, breaks };
}

/** A token in a sentence: short, in quotation marks, kept apart from the direction of what stands around. @param {string} piece */
export function quoted(piece) {
  const whole = [...piece];
  const short = whole.length > 24 ? `${whole.slice(0, 23).join("")}…` : piece;
  return `“\u2068${short}\u2069”`;
}

/**
 * A span of tokens in words. @param {string[]} tokens @param {number} first @param {number} end @param {string} [what]
 */
export function span(tokens, first, end, what = "token") {
  if (end - first <= 1) return `${what} ${first} ${quoted(tokens[first] ?? "")}`;
  return `${what}s ${first}–${end - 1} ${quoted(tokens.slice(first, Math.min(end, first + 12)).join(""))}`;
}
