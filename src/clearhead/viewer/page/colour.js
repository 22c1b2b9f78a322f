// Colours of weights, roles and differences. The ramp is clearhead.viewer.colour's, and a test holds the two together.

/** @typedef {[number, number, number]} RGB */

/** Okabe and Ito's colours, which stay apart for colour-blind eyes; each always stands beside its name. @type {Record<string, string>} */
export const ROLE_COLOURS = {
  "previous-token": "#56b4e9", "induction": "#e69f00", "duplicate-token": "#cc79a7", "first-token": "#8c94a0",
  "self": "#009e73", "broad": "#d55e00", "local": "#f0e442", "retrieval": "#0072b2",
};
export const NO_ROLE = "#6b7280";

/** @param {string | null} role */
export function roleColour(role) {
  return role === null ? "transparent" : ROLE_COLOURS[role] ?? NO_ROLE;
}

/** OKLCH to sRGB, clipped. @param {number} lightness @param {number} chroma @param {number} degrees @returns {RGB} */
function srgb(lightness, chroma, degrees) {
  const hue = (degrees * Math.PI) / 180;
  const [a, b] = [chroma * Math.cos(hue), chroma * Math.sin(hue)];
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const channel = (/** @type {number} */ x) => {
    const linear = Math.min(1, Math.max(0, x));
    return Math.round(255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
  };
  return [
    channel(4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short),
    channel(-1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short),
    channel(-0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short),
  ];
}

/** 256 colours, from the ground to bright, lightness first. */
export const RAMP = Array.from({ length: 256 }, (_, n) => {
  const t = n / 255;
  return srgb(0.19 + 0.77 * t, 0.022 + 0.05 * t + 0.14 * Math.sin(Math.PI * t ** 0.85), 268 + 192 * t ** 1.1);
});

/** Less is blue, more is orange, none is the ground: apart for any colour vision, and by lightness on either ground. */
const LESS = { dark: 250, light: 255 };
const MORE = { dark: 70, light: 50 };

/** The ramp of a theme, as bytes for a canvas: on a light ground it runs from paper to ink. @param {boolean} dark */
export function rampOf(dark) {
  const found = new Uint8ClampedArray(256 * 4);
  for (let n = 0; n < 256; n++) found.set([...(dark ? RAMP[n] : RAMP[255 - n]), 255], 4 * n);
  return found;
}

/** Differences, 256 from less to more, the middle the ground's. @param {boolean} dark */
export function divergingOf(dark) {
  const found = new Uint8ClampedArray(256 * 4);
  for (let n = 0; n < 256; n++) {
    const t = (n - 127.5) / 127.5;
    const s = Math.abs(t) ** 0.8;
    const side = t < 0 ? LESS : MORE;
    const colour = dark ? srgb(0.2 + 0.65 * s, 0.17 * s, side.dark) : srgb(0.97 - 0.5 * s, 0.16 * s, side.light);
    found.set([...colour, 255], 4 * n);
  }
  return found;
}

/** @param {Uint8ClampedArray} ramp @param {number} t 0 to 1 */
export function css(ramp, t) {
  const n = 4 * Math.round(255 * Math.min(1, Math.max(0, t)));
  return `rgb(${ramp[n]} ${ramp[n + 1]} ${ramp[n + 2]})`;
}

/** @param {Uint8ClampedArray} ramp @param {number} t */
export function inkOn(ramp, t) {
  const n = 4 * Math.round(255 * Math.min(1, Math.max(0, t)));
  return inkFor([ramp[n], ramp[n + 1], ramp[n + 2]]);
}

/** Black or white, whichever reads better on a ground (WCAG relative luminance). @param {RGB} ground */
export function inkFor(ground) {
  const [r, g, b] = ground.map((c) => (c <= 10 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}
