// Tables: what a picture shows, as numbers. Made when opened, sorted by their headings.

import { button, el } from "./dom.js";
import { copyButton } from "./save.js";

/**
 * @typedef {{title: string, number?: boolean, show?: (value: any) => string | Node}} Column
 * @typedef {{columns: Column[], rows: any[][], name: string, caption: string, pick?: (row: any[]) => void, picks?: (row: any[]) => string}} Given
 */

/** A table; the headings sort it. @param {Given} given @returns {HTMLElement} */
export function table(given) {
  const { columns, pick, picks } = given;
  let rows = given.rows;
  let [by, up] = [-1, false];
  const body = el("tbody");
  const heads = columns.map((column, n) =>
    el("th", { scope: "col", class: column.number ? "n" : null }, button(column.title, () => sort(n), { class: "plain" })),
  );
  const fill = () => {
    body.replaceChildren(...rows.map((row) => el("tr", {}, ...row.slice(0, columns.length).map((value, n) => {
      const column = columns[n];
      const shown = column.show ? column.show(value) : String(value);
      const inside = n === 0 && pick
        ? button("", () => pick(row), { class: "plain token", "aria-label": picks ? picks(row) : null })
        : null;
      if (inside) inside.append(shown);
      return n === 0
        ? el("th", { scope: "row", class: column.number ? "n" : null }, inside ?? shown)
        : el("td", { class: column.number ? "n" : null }, shown);
    }))));
  };
  /** @param {number} n */
  const sort = (n) => {
    up = by === n ? !up : !columns[n].number;
    by = n;
    const value = (/** @type {any[]} */ row) => row[n] ?? (columns[n].number ? (up ? Infinity : -Infinity) : "");
    rows = [...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
      return up ? order : -order;
    });
    heads.forEach((head, m) => (m === n ? head.setAttribute("aria-sort", up ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
    fill();
  };
  fill();
  return el("table", {}, el("caption", { text: given.caption }), rows.length ? el("thead", {}, el("tr", {}, ...heads)) : null, body);
}

/**
 * The same, folded away until somebody opens it, with its numbers to take along.
 * @param {string} title @param {() => Given} make
 */
export function folded(title, make) {
  const inside = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title });
  const made = el("details", { class: "table", ontoggle: () => made.open && show() }, el("summary", { text: title }), inside);
  const show = () => {
    const given = make();
    const rows = () => [given.columns.map((column) => column.title), ...given.rows.map((row) => row.slice(0, given.columns.length))];
    inside.replaceChildren(el("p", { class: "tools" }, copyButton(rows, given.name)), table(given));
  };
  return Object.assign(made, { again: () => made.open && show() });
}
