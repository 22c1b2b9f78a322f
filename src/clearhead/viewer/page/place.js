// Where one is: the view, the head, the token. It stands behind the # of the address, so that reloading and sharing keep it.

/** @typedef {import("./types.js").Place} Place */

/** The address bar's. */
export class AddressPlace {
  /** @param {() => void} moved called when the person goes back, forward, or edits the address */
  listen(moved) {
    addEventListener("hashchange", moved);
  }

  /** @returns {Place} */
  read() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  }

  /** @param {Place} place @param {boolean} step whether going back should return to what was before */
  write(place, step) {
    const said = new URLSearchParams(place).toString().replaceAll("%2C", ",");
    try {
      if (step) history.pushState(null, "", `#${said}`);
      else history.replaceState(null, "", `#${said}`);
    } catch {
      // A page that has no address, such as one inside a frame, is where it is.
    }
  }
}

/** One that lives as long as the page: in a notebook the address is the notebook's. */
export class MemoryPlace {
  constructor() {
    /** @type {Place} */
    this.place = {};
  }

  listen() {}

  read() {
    return this.place;
  }

  /** @param {Place} place */
  write(place) {
    this.place = place;
  }
}
