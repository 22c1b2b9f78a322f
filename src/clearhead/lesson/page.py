"""The lesson as one file: a page that opens from disk, fetches nothing, and holds what it shows for some settings."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from clearhead.inline import inert, policy_hash
from clearhead.lesson.book import ASIDES, Book
from clearhead.lesson.compute import as_json, facts
from clearhead.lesson.pages.contents import KEYS
from clearhead.lesson.pages.start import exercises
from clearhead.lesson.settings import Settings
from clearhead.viewer import joined

ASSETS = Path(__file__).parent / "assets"
TIMES = (4, 8, 12)
WIDTHS = (None, 4, 8)
SEEDS = (1337, 42, 7)
TEXTS = ("The king is dead. Long live the king.", "She saw the boy with the lamp.")
ALIKE = {"0", "10", *ASIDES}  # pages that the settings do not change
RUNGS = tuple(key for key in KEYS if key not in ALIKE and key != "9")


def page(settings: Settings | None = None, *, measured: bool = True) -> str:
    """The page as HTML text, about 2 MB.

    Arguments:
        settings: shown first, and a choice beside the others; default `Settings()`.
        measured: whether rungs show what they cost, measured now; without it nothing is timed.
    """
    first = Settings() if settings is None else settings
    data = {**facts(), **_choices(first, measured)}
    style, script = (ASSETS / "lesson.css").read_text(encoding="utf-8"), joined.script("file", ASSETS)
    html = (ASSETS / "index.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src '{policy_hash(script)}'; style-src '{policy_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        '<link rel="stylesheet" href="lesson.css">': f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<style>{style}</style>",
        '<script type="module" src="serve.js"></script>\n': "",
        "</body>": f'<script type="application/json" id="data">{inert(json.dumps(data, allow_nan=False))}</script>\n'
        f'<script type="module">{script}</script>\n</body>',
    }
    # One pass: nothing that was put in is looked at again.
    return re.sub("|".join(map(re.escape, parts)), lambda found: parts[found[0]], html)


def _choices(first: Settings, measured: bool) -> dict[str, Any]:
    """All pages for all choices, each block kept once."""
    blocks: dict[str, int] = {}

    def kept(shown: dict[str, Any]) -> list[int]:
        return [blocks.setdefault(json.dumps(block, allow_nan=False), len(blocks)) for block in shown["blocks"]]

    started = Book(first, measured=measured)
    alike = {key: kept(as_json(started.page(key))) for key in KEYS if key in ALIKE and key != "10"}
    alike["10"] = kept(as_json(exercises({})))  # whoever reads the file may not be who wrote it
    texts = list(dict.fromkeys([first.text, None, *TEXTS]))
    times = sorted({*TIMES, first.time or 8})
    widths = list(dict.fromkeys([*WIDTHS, first.width]))
    seeds = list(dict.fromkeys([*SEEDS, first.seed]))
    choices: dict[str, dict[str, list[int]]] = {}
    for text in texts:
        real = kept(as_json(Book(Settings(text=text)).page("9")))
        for time in times if text is None else [None]:
            for width in widths:
                for seed in seeds:
                    book = Book(Settings(time=time, width=width, seed=seed, text=text), measured=measured)
                    made = {key: kept(as_json(book.page(key))) for key in RUNGS}
                    choices[_name(text, time, width, seed)] = {**made, "9": real}
    return {
        "blocks": [json.loads(block) for block in blocks],
        "alike": alike,
        "choices": choices,
        "options": {"text": texts, "time": times, "width": widths, "seed": seeds},
        "first": {
            "text": first.text,
            "time": (first.time or 8) if first.text is None else None,
            "width": first.width,
            "seed": first.seed,
        },
    }


def _name(text: str | None, time: int | None, width: int | None, seed: int) -> str:
    return json.dumps([text, time, width, seed], ensure_ascii=False, separators=(",", ":"))
