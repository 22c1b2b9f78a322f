// The page as a single file: its data stands beside it, and nothing is ever fetched.

import { App } from "./app.js";
import { EmbeddedSource } from "./embedded.js";
import { AddressPlace } from "./place.js";

const box = /** @type {HTMLElement} */ (document.getElementById("clearhead"));
const data = JSON.parse(document.getElementById("data")?.textContent ?? "{}");
new App(box, new EmbeddedSource(data), new AddressPlace()).start();
