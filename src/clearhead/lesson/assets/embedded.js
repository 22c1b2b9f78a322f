// Pages out of the file itself, for a few settings.

/** @typedef {import("./types.js").Settings} Settings */

export class EmbeddedLesson {
  /** @param {import("./types.js").Kept} kept */
  constructor(kept) {
    this.kept = kept;
    this.options = kept.options;
    this.measured = "on the machine that wrote this page";
  }

  async facts() {
    return this.kept;
  }

  /** @param {string} key @param {Settings} settings @returns {Promise<import("./types.js").Page>} */
  async page(key, { text, time, width, seed }) {
    const { contents, alike, choices, blocks } = this.kept;
    const of = JSON.stringify([text, text === null ? time : null, width, seed]);
    const [, title, question] = contents.find(([each]) => each === key) ?? ["", "", ""];
    const numbers = alike[key] ?? choices[of][key];
    return { key, title, question, blocks: numbers.map((n) => blocks[n]) };
  }
}
