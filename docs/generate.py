"""Write docs/reference/ from the code: `python docs/generate.py`; with `--check`, only say which pages are out of date."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import clearhead
from clearhead import distributed, ladder, models, nn, roles, survey
from clearhead.observables import DIFFERENTIABLE, Observation, measured

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py from the docstrings: change those, then run `make docs`. -->\n\n"
COMMANDS = ("", "look", "export", "view", "roles", "check", "lesson", "survey", "bench", "doctor")


def entry(name: str, thing: object, level: int = 2) -> Iterator[str]:
    """A heading, the signature and the docstring of one public thing, then of its own public methods."""
    yield f"{'#' * level} `{name}`\n\n"
    if callable(thing):
        try:
            signature = str(inspect.signature(thing)).replace("'", "")
        except ValueError:
            signature = "(...)"
        yield f"```text\n{name.rsplit('.', 1)[-1]}{signature}\n```\n\n"
    yield from docstring(thing)
    if inspect.isclass(thing) and not issubclass(thing, tuple):
        for method, value in vars(thing).items():
            if method.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property | classmethod)):
                continue
            if inspect.getdoc(value):
                yield from entry(f"{name.rsplit('.', 1)[-1]}.{method}", getattr(thing, method), level + 1)


def docstring(thing: object) -> Iterator[str]:
    """The docstring, its doctest examples fenced as code."""
    fenced = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if line.startswith(">>> ") and not fenced:
            yield "```pycon\n"
            fenced = True
        elif not line.strip() and fenced:
            yield "```\n"
            fenced = False
        yield line + "\n"
    yield "```\n\n" if fenced else "\n"


def api() -> str:
    """The library's page."""
    parts = ["# The library\n\n"]
    for name in clearhead.__all__:
        parts += entry(f"clearhead.{name}", getattr(clearhead, name))
    parts.append(
        "## What an `Observation` holds\n\n| name | shape | asked for by | gradients | what it is |\n|---|---|---|---|---|\n"
    )
    for name, quantity in measured(Observation).items():
        asked = f"`{quantity.asked_by}`" if quantity.asked_by else "always"
        smooth = "yes" if name in DIFFERENTIABLE or name == "output" else ""
        parts.append(f"| `{name}` | `{quantity.shape}` | {asked} | {smooth} | {quantity.__doc__} |\n")
    parts.append("\n")
    for module in (nn, roles, models, distributed, survey, ladder):
        parts.append(f"# `{module.__name__}`\n\n")
        parts += docstring(module)
        for name in module.__all__:
            thing = getattr(module, name)
            if callable(thing):
                parts += entry(f"{module.__name__}.{name}", thing)
            else:  # a constant: its value says what it is
                items = ", ".join(f"`{getattr(item, 'name', item)}`" for item in thing)
                parts.append(f"## `{module.__name__}.{name}`\n\n{items}\n\n")
    return "".join(parts)


def command() -> str:
    """The command's page: the help it prints."""
    parts = ["# The command\n\n"]
    plain = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    for name in COMMANDS:
        words = ["clearhead", *name.split(), "--help"]
        run = [sys.executable, "-m", "clearhead", *words[1:]]
        text = subprocess.run(run, capture_output=True, text=True, check=True, env=plain).stdout
        shown = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## `{' '.join(words[:-1])}`\n\n```text\n{shown}\n```\n\n")
    return "".join(parts)


def main() -> int:
    """Write the pages, or with `--check` name those that differ."""
    stale = []
    for name, text in (("library.md", api()), ("command.md", command())):
        page = REFERENCE / name
        wanted = NOTE + text.rstrip() + "\n"
        if page.exists() and page.read_text(encoding="utf-8") == wanted:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            page.write_text(wanted, encoding="utf-8")
    print("out of date: " + ", ".join(stale) if stale else "up to date")
    return int(bool(stale) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
