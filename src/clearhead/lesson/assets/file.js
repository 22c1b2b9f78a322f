// The lesson as a single file: its pages stand beside it, and nothing is ever fetched.

import { EmbeddedLesson } from "./embedded.js";
import { Lesson } from "./lesson.js";

const kept = JSON.parse(document.getElementById("data")?.textContent ?? "{}");
new Lesson(new EmbeddedLesson(kept)).start();
