// What stands around every page, in index.html: its places by name, and the two that speak.

/** @param {string} id */
export function byId(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}

/** To those who listen. @param {string} text */
export function say(text) {
  byId("said").textContent = text;
}

/** What could not be done, or "" when all is well. @param {string} text */
export function trouble(text) {
  byId("trouble").textContent = text;
  byId("trouble").hidden = !text;
}
