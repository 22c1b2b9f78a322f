// Elements. Everything a text or a model said becomes a text node or an attribute, never markup.

/**
 * An element with its attributes and children. `text` sets its text, a function under `onx` listens for the event x, `style` is
 * an object, true and false switch an attribute.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [given]
 * @param {...(Node | string | null)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "style") for (const [key, set] of Object.entries(value)) made.style.setProperty(key, String(set));
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** @param {string} label @param {HTMLElement} control @param {string} [about] */
export function labelled(label, control, about) {
  return el("label", { class: "field", title: about ?? null }, el("span", { text: label }), control);
}

/**
 * A choice of words. @param {string} label @param {[string, string][]} options value and what it is called
 * @param {string} value @param {(value: string) => void} then
 */
export function choice(label, options, value, then) {
  const select = el("select", { onchange: () => then(select.value) });
  for (const [key, said] of options) select.append(el("option", { value: key, text: said, selected: key === value }));
  return labelled(label, select);
}

/** @param {string} label @param {boolean} on @param {(on: boolean) => void} then @param {string} [about] */
export function check(label, on, then, about) {
  const box = el("input", { type: "checkbox", onchange: () => then(box.checked) });
  box.checked = on;
  return el("label", { class: "check", title: about ?? null }, box, el("span", { text: label }));
}

/** @param {string} said @param {() => void} then @param {Record<string, any>} [given] */
export function button(said, then, given = {}) {
  return el("button", { type: "button", text: said, onclick: then, ...given });
}

/**
 * Controls anew. Who was at one of them stays there: its place among them is the same. A child that stays is given as it is.
 * @param {HTMLElement} box @param {...(Node | string | null)} children
 */
export function renew(box, ...children) {
  const controls = () => /** @type {HTMLElement[]} */ ([...box.querySelectorAll("button, select, input, summary")]);
  const root = /** @type {Document | ShadowRoot} */ (box.getRootNode());
  const at = controls().indexOf(/** @type {HTMLElement} */ (root.activeElement));
  box.replaceChildren(...children.filter((child) => child !== null));
  if (at >= 0) controls()[at]?.focus({ preventScroll: true });
}

/**
 * A canvas's drawing side, sized in CSS pixels and sharp on any screen.
 * @param {HTMLCanvasElement} canvas @param {number} width @param {number} height
 */
export function sharp(canvas, width, height) {
  const ratio = Math.min(3, globalThis.devicePixelRatio || 1);
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
  }
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

/**
 * Only the last of many calls, a moment after it. @template {any[]} A
 * @param {(...given: A) => void} work @param {number} wait milliseconds
 */
export function settled(work, wait) {
  /** @type {any} */
  let timer;
  return /** @param {A} given */ (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...given), wait);
  };
}

/** At most once a frame. @param {() => void} work */
export function eachFrame(work) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      work();
    });
  };
}
