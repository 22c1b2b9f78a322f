"""Which exercise a file is, and which are solved: one small file in the user's config folder."""

from __future__ import annotations

import json
import os
import re
import sys
from datetime import date
from pathlib import Path

from clearhead.errors import InputError
from clearhead.whole import whole

EXERCISES = range(1, 9)
MARK = re.compile(r"^EXERCISE = ([1-8])\b", re.MULTILINE)


def number_of(path: Path) -> int | None:
    """Which exercise a file is; None when it is none.

    >>> number_of(Path("nowhere.py")) is None
    True
    """
    try:
        found = MARK.search(path.read_text(encoding="utf-8")[:4000])
    except (OSError, UnicodeDecodeError):
        return None
    return int(found[1]) if found else None


def config_folder() -> Path:
    """Where it is kept: CLEARHEAD_CONFIG, or the user's config folder."""
    named = os.environ.get("CLEARHEAD_CONFIG")
    if named:
        return Path(named)
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or Path.home()) / "clearhead"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "clearhead"
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "clearhead"


def _file() -> Path:
    return config_folder() / "lesson.json"


def solved() -> dict[int, str]:
    """The solved exercises, each with the day it was solved, such as 2026-11-30. A file that cannot be read counts as none."""
    try:
        kept = json.loads(_file().read_text(encoding="utf-8"))["solved"]
        days = {int(number): date.fromisoformat(day).isoformat() for number, day in kept.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return {number: day for number, day in sorted(days.items()) if number in EXERCISES}


def solve(number: int) -> None:
    """Remember that an exercise was solved today, if it was not solved before."""
    done = solved()
    if number in done:
        return
    done[number] = date.today().isoformat()
    _write(done)


def reset() -> int:
    """Forget all; how many were solved."""
    done = len(solved())
    try:
        _file().unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{_file()}: {error.strerror or error}; remove it by hand") from error
    return done


def _write(done: dict[int, str]) -> None:
    file = _file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole(file) as place:
            place.write_text(json.dumps({"solved": {str(n): day for n, day in sorted(done.items())}}), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror or error}; set CLEARHEAD_CONFIG to a folder that can be written"
        ) from error
