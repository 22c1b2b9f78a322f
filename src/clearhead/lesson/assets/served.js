// Pages computed by the server as they are asked for. The token in the address becomes a key, which this tab keeps.

const KEPT = "clearhead-key";

/** @returns {Storage | null} null where a browser keeps nothing */
function session() {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

export class ServedLesson {
  constructor() {
    this.options = null;
    this.measured = "here and now";
    this.key = session()?.getItem(KEPT) ?? null;
  }

  /** @param {string} path @param {Record<string, any>} given @param {string | null} key */
  async ask(path, given, key = this.key) {
    /** @type {Record<string, string>} */
    const allowed = key ? { Authorization: `Clearhead ${key}` } : {};
    const answer = await fetch(path, { method: "POST", body: JSON.stringify(given), headers: { "Content-Type": "application/json", ...allowed } });
    const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
    if (!answer.ok) throw new Error(found.error ?? `the server answered ${answer.status}`);
    return found;
  }

  /** @returns {Promise<import("./types.js").Facts>} */
  async facts() {
    const token = /[#&]token=([\w-]+)/.exec(location.hash)?.[1];
    const first = /[#&]page=(\w+)/.exec(location.hash)?.[1];
    if (token) {
      history.replaceState(null, "", location.pathname + location.search + (first ? `#${first}` : "")); // before anything else: an address is soon copied
      const { key } = await this.ask("/api/session", { token }, null);
      this.key = key;
      session()?.setItem(KEPT, key);
    }
    return this.ask("/api/lesson/facts", {});
  }

  /** @param {string} key @param {import("./types.js").Settings} settings @returns {Promise<import("./types.js").Page>} */
  page(key, settings) {
    return this.ask("/api/lesson/compute", { key, ...settings });
  }
}
