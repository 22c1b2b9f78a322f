// The page inside a notebook: questions go to the kernel as messages, and come back with their numbers as buffers.

import { App } from "./app.js";
import { MemoryPlace } from "./place.js";
import { Refused, unpack } from "./source.js";

const LONGEST = 120_000; // milliseconds, as long as a page waits for its server
const EXPLAINED = 3000; // milliseconds without a first answer, after which it is said why
const WAITING = "Waiting for the kernel: it answers when it is done with what it runs. Where none is running, as in a saved notebook, run the cell again.";

class KernelSource {
  /** @param {any} model anywidget's */
  constructor(model) {
    this.model = model;
    this.asked = 0;
    /** @type {Map<number, {done: (answer: any) => void, refused: (error: any) => void}>} */
    this.waiting = new Map();
    model.on("msg:custom", (/** @type {any} */ message, /** @type {DataView[]} */ buffers) => {
      const one = this.waiting.get(message.number);
      this.waiting.delete(message.number);
      if (message.error) one?.refused(new Refused(message.error, 400));
      else {
        const { buffer, byteOffset, byteLength } = buffers[0];
        one?.done(unpack(/** @type {ArrayBuffer} */ (buffer).slice(byteOffset, byteOffset + byteLength)));
      }
    });
  }

  /** @param {string} question @param {import("./types.js").Parameters} [parameters] */
  ask(question, parameters = {}) {
    const number = ++this.asked;
    return new Promise((done, refused) => {
      this.waiting.set(number, { done, refused });
      setTimeout(() => this.waiting.delete(number) && refused(new Refused("The kernel does not answer. Run the cell again.", 0)), LONGEST);
      const said = Object.fromEntries(Object.entries(parameters).map(([name, value]) => [name, String(value)]));
      this.model.send({ number, question, parameters: said });
    });
  }
}

/** @param {{model: any, el: HTMLElement}} given */
function render({ model, el: place }) {
  // In a tree of its own: the notebook's style stays out, and ours stays in.
  const root = place.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(model.get("style"));
  root.adoptedStyleSheets = [sheet];
  const box = document.createElement("div");
  root.append(box);
  place.setAttribute("data-lm-suppress-shortcuts", "true"); // JupyterLab's keys are for its cells: here they move in the map
  const app = new App(box, new KernelSource(model), new MemoryPlace());
  const light = document.body.dataset.jpThemeLight; // JupyterLab's theme, which need not be the system's
  if (light !== undefined && app.dark === (light === "true")) app.turn();
  const waiting = setTimeout(() => app.tell(WAITING), EXPLAINED);
  app.start().finally(() => clearTimeout(waiting));
  return () => {
    clearTimeout(waiting);
    app.view?.close();
  };
}

export default { render };
