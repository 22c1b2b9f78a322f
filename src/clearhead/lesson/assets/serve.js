// The lesson as a server gives it, which computes its pages.

import { Lesson } from "./lesson.js";
import { ServedLesson } from "./served.js";

new Lesson(new ServedLesson()).start();
