// Taking things along: tables as CSV, pictures as PNG.

import { button } from "./dom.js";

/** @typedef {(string | number | null)[][]} Rows */

/**
 * CSV (RFC 4180). What a spreadsheet would take for a formula gets an apostrophe before it: a token may be anything.
 * @param {Rows} rows
 */
export function csv(rows) {
  const cell = (/** @type {string | number | null} */ value) => {
    if (value === null || typeof value === "number") return value === null || Number.isNaN(value) ? "" : String(value);
    const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(safe) || safe !== value ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** @param {string} name @param {Blob} content */
function download(name, content) {
  const url = URL.createObjectURL(content);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A button that copies a table; where the clipboard is closed, it becomes a file. @param {() => Rows} rows @param {string} name */
export function copyButton(rows, name) {
  const made = button("Copy as CSV", async () => {
    const text = csv(rows());
    try {
      await navigator.clipboard.writeText(text);
      made.textContent = "Copied";
    } catch {
      download(`${name}.csv`, new Blob([text], { type: "text/csv" }));
      made.textContent = "Saved";
    }
    setTimeout(() => (made.textContent = "Copy as CSV"), 2000);
  });
  return made;
}

/** @param {() => HTMLCanvasElement} canvas @param {string} name */
export function pictureButton(canvas, name) {
  return button("Save as PNG", () => canvas().toBlob((blob) => blob && download(`${name}.png`, blob)));
}
