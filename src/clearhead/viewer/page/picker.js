// Choosing one head from all: a list, and the one before and after.

import { button, choice, renew } from "./dom.js";

/** @param {import("./app.js").App} app @param {HTMLElement} box where it stands @returns {() => void} what shows the chosen head in it */
export function headPicker(app, box) {
  const { heads } = app.doc;
  const names = heads.map(({ head, role }) => /** @type {[string, string]} */ ([head, role ? `${head} · ${role}` : head]));
  const go = (/** @type {number} */ by) => {
    const at = heads.findIndex(({ head }) => head === app.place.head) + by;
    app.go({ head: heads[(at + heads.length) % heads.length].head });
  };
  return () => renew(box, choice("Head", names, app.place.head, (head) => app.go({ head })),
    button("‹", () => go(-1), { "aria-label": "Previous head" }), button("›", () => go(1), { "aria-label": "Next head" }));
}
