// What heads can be coloured, sorted and filtered by: roles' scores and measured quantities, each with its null.

/** @typedef {import("./types.js").Doc} Doc */
/** @typedef {import("./types.js").Head} Head */
/** @typedef {{key: string, label: string, about: string, unit: string, of: (head: Head) => number | null, null: (head: Head) => number | null}} Measure */

/** @param {Doc} doc @returns {Measure[]} */
export function measuresOf(doc) {
  const roles = [...new Set(doc.heads.flatMap((head) => head.roles.map(({ role }) => role)))];
  const nulls = new Map(doc.layers.map((layer) => [layer.layer, layer.nulls]));
  return [
    ...roles.map((role) => ({
      key: role, label: role, unit: "", about: `How much of a head's weight follows the rule “${role}”, 0 to 1.`,
      of: (/** @type {Head} */ head) => head.roles.find((r) => r.role === role)?.score ?? null,
      null: (/** @type {Head} */ head) => head.roles.find((r) => r.role === role)?.null ?? null,
    })),
    ...doc.quantities.map(({ key, label, unit, about }) => ({
      key, label, unit, about,
      of: (/** @type {Head} */ head) => head.values[key] ?? null,
      null: (/** @type {Head} */ head) => (head.nulls ?? nulls.get(head.layer))?.[key] ?? null,
    })),
  ];
}

/** The mean null over all heads: one mark on a legend. @param {Doc} doc @param {Measure} measure */
export function meanNull(doc, measure) {
  const known = doc.heads.map(measure.null).filter((x) => x !== null);
  return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
}

/**
 * A filter such as `induction > 0.5, layer >= 10, role = induction`: which heads it lets through, or what is wrong with it.
 * @param {string} text @param {Measure[]} measures @returns {{passes: (head: Head) => boolean, error: string | null}}
 */
export function filterOf(text, measures) {
  const all = { passes: () => true, error: null };
  const parts = text.split(/,|\band\b/i).map((part) => part.trim()).filter(Boolean);
  if (!parts.length) return all;
  /** @type {((head: Head) => boolean)[]} */
  const tests = [];
  for (const part of parts) {
    const found = /^([\w -]+?)\s*(>=|<=|>|<|!=|=)\s*(.+)$/.exec(part);
    if (!found) return { ...all, error: `“${part}”: write a name, a comparison and a number, for example induction > 0.5` };
    const [, name, sign, value] = found;
    const wanted = name.trim().toLowerCase().replaceAll("_", " ");
    if (wanted === "role") {
      if (sign !== "=" && sign !== "!=") return { ...all, error: "role: compare it with = or !=, for example role = induction" };
      tests.push((head) => ((head.role ?? "none") === value.trim().toLowerCase()) === (sign === "="));
      continue;
    }
    const number = Number(value);
    if (Number.isNaN(number)) return { ...all, error: `“${value}”: is no number` };
    const read = wanted === "layer" ? (/** @type {Head} */ head) => head.layer : wanted === "head" ? (/** @type {Head} */ head) => head.index
      : measures.find(({ key, label }) => [key.replaceAll("_", " "), label.toLowerCase()].includes(wanted))?.of;
    if (!read) return { ...all, error: `“${name.trim()}”: is none of layer, head, role, ${measures.map(({ key }) => key).join(", ")}` };
    tests.push((head) => {
      const x = read(head);
      if (x === null) return false;
      return sign === ">" ? x > number : sign === "<" ? x < number : sign === ">=" ? x >= number : sign === "<=" ? x <= number : sign === "=" ? x === number : x !== number;
    });
  }
  return { passes: (head) => tests.every((test) => test(head)), error: null };
}
