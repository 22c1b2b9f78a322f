// The page as a server gives it: the token in the address becomes a key, the key opens the questions.

import { App } from "./app.js";
import { AddressPlace } from "./place.js";
import { Refused, ServerSource } from "./source.js";
import { SURVEYS } from "./survey.js";

const KEPT = "clearhead key"; // in this origin's storage, which no other port can read

/** @returns {Promise<string>} */
async function keyOf() {
  const said = new URLSearchParams(location.hash.slice(1));
  const token = said.get("token");
  if (token === null) return localStorage.getItem(KEPT) ?? "";
  said.delete("token");
  history.replaceState(null, "", `#${said}`); // before anything else: an address is soon copied
  const answer = await fetch("/api/session", { method: "POST", body: JSON.stringify({ token }) });
  const found = await answer.json();
  if (!answer.ok) {
    if (localStorage.getItem(KEPT)) return localStorage.getItem(KEPT) ?? ""; // the same browser has been let in before
    throw new Refused(found.error, answer.status);
  }
  localStorage.setItem(KEPT, found.key);
  return found.key;
}

const box = /** @type {HTMLElement} */ (document.getElementById("clearhead"));
const source = new ServerSource("");
const app = new App(box, source, new AddressPlace());
app.attempt(async () => {
  source.key = await keyOf();
  if ((await source.ask("shown")).facts.shown === SURVEYS.many) app.kind = SURVEYS;
  await app.start();
});
