// Asking: the server's answers, and how an answer's bytes are read.

/** @typedef {import("./types.js").Answer} Answer */
/** @typedef {import("./types.js").Parameters} Parameters */

const LONGEST_WAIT = 120_000; // milliseconds; a first look at a long text takes a while

/** What could not be had, in words for a person. */
export class Refused extends Error {
  /** @param {string} why @param {number} status 0 where nobody answered */
  constructor(why, status) {
    super(why);
    this.status = status;
  }
}

/** @type {Record<string, any>} */
const KINDS = { float32: Float32Array, float64: Float64Array, uint16: Uint16Array, uint8: Uint8Array, int32: Int32Array };

/** Read what clearhead.viewer.packed wrote. @param {ArrayBuffer} buffer @returns {Answer} */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const facts = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const start = Math.ceil((4 + length) / 8) * 8;
  /** @type {Answer["arrays"]} */
  const arrays = {};
  for (const { name, dtype, shape, offset } of facts.arrays) {
    const count = shape.reduce((/** @type {number} */ a, /** @type {number} */ b) => a * b, 1);
    arrays[name] = { data: new KINDS[dtype](buffer, start + offset, count), shape };
  }
  return { facts, arrays };
}

/** The server this page came from. */
export class ServerSource {
  /** @param {string} key */
  constructor(key) {
    this.key = key;
  }

  /** @param {string} question @param {Parameters} [parameters] @param {AbortSignal} [signal] @returns {Promise<Answer>} */
  async ask(question, parameters = {}, signal) {
    const query = new URLSearchParams(Object.entries(parameters).map(([name, value]) => [name, String(value)]));
    const late = AbortSignal.timeout(LONGEST_WAIT);
    let answer;
    try {
      answer = await fetch(`/api/${question}?${query}`, {
        headers: { Authorization: `Clearhead ${this.key}` },
        signal: signal ? AbortSignal.any([signal, late]) : late,
      });
      if (answer.ok && answer.headers.get("content-type") === "application/octet-stream") return unpack(await answer.arrayBuffer());
      if (answer.ok) return { facts: await answer.json(), arrays: {} };
    } catch (error) {
      if (signal?.aborted) throw error;
      const slow = /** @type {Error} */ (error).name === "TimeoutError";
      throw new Refused(
        slow ? "The server took too long to answer." : "The server does not answer: it has ended, or this machine slept. Start it again with clearhead view.",
        0,
      );
    }
    const said = await answer.json().catch(() => ({ error: `The server answered with ${answer.status}.` }));
    throw new Refused(said.error, answer.status);
  }
}

/** Of many questions, one after the other, only the last is waited for: those before it are taken back. */
export class Latest {
  constructor() {
    this.asking = new AbortController();
  }

  /** The signal of a new question. */
  next() {
    this.stop();
    this.asking = new AbortController();
    return this.asking.signal;
  }

  stop() {
    this.asking.abort();
  }
}

/** Answers that are kept, so that nothing is asked for twice. */
export class Remembering {
  /** @param {import("./types.js").Source} source @param {number} most how many answers */
  constructor(source, most = 200) {
    this.source = source;
    this.most = most;
    /** @type {Map<string, Promise<Answer>>} */
    this.kept = new Map();
  }

  /** @param {string} question @param {Parameters} [parameters] @param {AbortSignal} [signal] @returns {Promise<Answer>} */
  ask(question, parameters = {}, signal) {
    const name = `${question} ${JSON.stringify(parameters)}`;
    const found = this.kept.get(name);
    if (found) {
      this.kept.delete(name); // to the end: the answers not asked for longest go first
      this.kept.set(name, found);
      return found;
    }
    const asked = this.source.ask(question, parameters, signal);
    this.kept.set(name, asked);
    const forget = () => this.kept.get(name) === asked && this.kept.delete(name);
    signal?.addEventListener("abort", forget); // at once: who asks again must not get what was taken back
    asked.then(() => signal?.removeEventListener("abort", forget), forget);
    if (this.kept.size > this.most) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    return asked;
  }
}
