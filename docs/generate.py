"""Write docs/reference/ from the code: `python docs/generate.py`; with `--check`, only say which pages are out of date."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ForwardRef

import clearhead
from clearhead.check.checks import CHECKS
from clearhead.check.choices import DIMENSIONS
from clearhead.cli import app
from clearhead.observables import DIFFERENTIABLE, Observation, measured

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by docs/generate.py from the docstrings: change those, then run `make docs`. -->\n\n"

# Pages of the names of `clearhead` itself. A name that is not here gets a page with the others of its module.
GROUPS = {
    "attention": ("Attention", ("attention", "explain", "accelerate")),
    "masks": ("Masks and biases", ("All", "Causal", "Window", "Prefix", "Documents", "Padding", "ALiBi")),
    "observing": ("Observing", ("observe", "Observables", "Observation", "estimate", "Estimate")),
    "patterns": ("Patterns and rollout", ("Pattern", "rollout", "Rollout")),
    "watching": ("Watching models", ("watch", "Trace")),
}
MODULES = (
    "nn", "roles", "models", "merging", "survey", "distributed", "check", "viewer", "lesson", "ladder", "reference", "testing",
    "errors",
)  # fmt: skip
SECTION = re.compile(r"(Arguments|Returns|Raises|Yields|Warns):")
ARGUMENT = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")
NAMED = re.compile(r"`[^`]+`(, `[^`]+`)*: ")


def signature(thing: object) -> str:
    """As it would be written, in lines that fit a page."""
    written = inspect.signature(thing)  # type: ignore[arg-type]
    items, keyword_only = [], False
    for parameter in written.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            items.append("*")
        keyword_only = keyword_only or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        name = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "") + parameter.name
        kind = "" if parameter.annotation is parameter.empty else f": {plain(parameter.annotation)}"
        default = (
            ""
            if parameter.default is parameter.empty
            else f" = {parameter.default!r}"
            if kind
            else f"={parameter.default!r}"
        )
        items.append(name + kind + default)
    returned = "" if written.return_annotation is written.empty else f" -> {plain(written.return_annotation)}"
    line = f"({', '.join(items)}){returned}"
    return line if len(line) <= 76 else "(\n" + "".join(f"    {item},\n" for item in items) + f"){returned}"


def plain(annotation: object) -> str:
    """A type as its source has it."""
    if isinstance(annotation, ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return text[1:-1] if text[:1] == text[-1:] and text[:1] in "\"'" else text


def entry(name: str, thing: object, level: int = 2) -> Iterator[str]:
    """A heading, the signature and the docstring of one public thing, then of its own public methods."""
    yield f"{'#' * level} `{name}`\n\n"
    if callable(thing):
        with contextlib.suppress(ValueError):  # an exception's constructor has no signature that can be read
            yield f"```py\n{name.rsplit('.', 1)[-1]}{signature(thing)}\n```\n\n"
    yield from docstring(thing)
    if inspect.isclass(thing) and not issubclass(thing, tuple):
        for method, value in vars(thing).items():
            if method.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property | classmethod)):
                continue
            if inspect.getdoc(value):
                yield from entry(f"{name.rsplit('.', 1)[-1]}.{method}", getattr(thing, method), level + 1)


def docstring(thing: object) -> Iterator[str]:
    """The docstring as Markdown: doctest examples fenced as code, what is said of each argument as an item of a list."""
    section = ""
    fenced = listing = blank = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if line.startswith(">>> ") and not fenced:
            yield "```pycon\n"
            fenced = True
        elif not line.strip() and fenced:
            yield "```\n"
            fenced = False
        listing = listing and bool(line.strip())
        if fenced:
            yield line + "\n"
        elif SECTION.fullmatch(line):
            section = line[:-1]
            yield f"**{section}**\n\n"
        elif section and line.startswith("    "):
            item = ARGUMENT.fullmatch(line[4:]) if section in ("Arguments", "Raises", "Warns") else None
            yield f"- `{item[1]}`: {item[2]}\n" if item else line.strip() + "\n"
        else:
            section = ""
            if NAMED.match(line):
                yield f"- {line}\n" if listing or blank else f"\n- {line}\n"
                listing = True
            else:
                yield line + "\n"
        blank = not line.strip()
    yield "```\n\n" if fenced else "\n"


def first_line(thing: object) -> str:
    """What something is, in its own words."""
    return (inspect.getdoc(thing) or "").partition("\n\n")[0].replace("\n", " ")


def anchor(heading: str) -> str:
    """What a link to a heading ends in."""
    return re.sub(r"[^\w-]", "", heading.lower())


def library() -> dict[str, str]:
    """The library's pages: one that lists every name, one for each group of names and for each module beside them."""
    groups = dict(GROUPS)
    placed = {name for _, names in GROUPS.values() for name in names}
    for name in (name for name in clearhead.__all__ if name not in placed):
        home = getattr(clearhead, name).__module__.split(".")[1]
        if home not in MODULES:
            groups[home] = (f"`clearhead.{home}`", (*groups.get(home, ("", ()))[1], name))
    every = ["# The library\n\nEverything that can be imported, and where it is explained.\n\n"]
    pages = {}
    for page, (title, names) in groups.items():
        parts = [f"# {title}\n\n"]
        every.append(f"## [{title}](library/{page}.md)\n\n| name | what it is |\n|---|---|\n")
        for name in names:
            parts += entry(f"clearhead.{name}", getattr(clearhead, name))
            every.append(listed(f"clearhead.{name}", page, getattr(clearhead, name)))
        if "Observation" in names:
            parts += measurements()
        pages[f"library/{page}.md"] = "".join(parts)
        every.append("\n")
    for short in MODULES:
        module = importlib.import_module(f"clearhead.{short}")
        parts = [f"# `{module.__name__}`\n\n", *docstring(module)]
        every.append(f"## [`{module.__name__}`](library/{short}.md)\n\n{first_line(module)}\n\n")
        every.append("| name | what it is |\n|---|---|\n")
        for name in module.__all__:
            thing, full = getattr(module, name), f"{module.__name__}.{name}"
            if callable(thing):
                parts += entry(full, thing)
                every.append(listed(full, short, thing))
            elif not inspect.ismodule(thing):  # a constant: its value says what it is
                items = ", ".join(f"`{getattr(item, 'name', item)}`" for item in thing)
                parts.append(f"## `{full}`\n\n{items}\n\n")
                every.append(f"| [`{full}`](library/{short}.md#{anchor(full)}) | {items} |\n")
        pages[f"library/{short}.md"] = "".join(parts)
        every.append("\n")
    return {"library.md": "".join(every)} | pages


def listed(name: str, page: str, thing: object) -> str:
    """A row of the list of names."""
    return f"| [`{name}`](library/{page}.md#{anchor(name)}) | {first_line(thing).replace('|', chr(92) + '|')} |\n"


def measurements() -> Iterator[str]:
    """The table of what can be measured."""
    yield "## What an `Observation` holds\n\n"
    yield "| name | shape | asked for by | gradients | what it is |\n|---|---|---|---|---|\n"
    for name, quantity in measured(Observation).items():
        asked = f"`{quantity.asked_by}`" if quantity.asked_by else "always"
        smooth = "yes" if name in DIFFERENTIABLE or name == "output" else ""
        yield f"| `{name}` | `{quantity.shape}` | {asked} | {smooth} | {quantity.__doc__} |\n"
    yield "\n"


def command() -> str:
    """The command's page: the help it prints."""
    parts = ["# The command\n\n"]
    plain = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    names = ["", *(command.name or command.callback.__name__ for command in app.registered_commands)]
    for name in names:
        words = ["clearhead", *name.split(), "--help"]
        run = [sys.executable, "-m", "clearhead", *words[1:]]
        text = subprocess.run(run, capture_output=True, text=True, check=True, env=plain).stdout
        shown = "\n".join(line.rstrip() for line in text.strip().splitlines())
        parts.append(f"## `{' '.join(words[:-1])}`\n\n```text\n{shown}\n```\n\n")
    return "".join(parts)


def checks() -> str:
    """The checker's page: what it tests, and every choice that it tells apart."""
    parts = [
        "# The checks\n\n`clearhead check` makes these tests, by these names. [How to use it](../how-to/check.md).\n\n",
        "| check | what must hold |\n|---|---|\n",
        *(f"| `{name}` | {first_line(check)} |\n" for name, check in CHECKS.items()),
        "\n## The choices it tells apart\n\nA formula is one choice from each of these tables, and a diagnosis is the formula "
        "that gives the numbers of the candidate: [how it is found](../explanation/diagnosis.md). A report names a choice as "
        "`dimension:choice`. What is no mistake is another way to do the same, or a convention, which is said.\n\n",
    ]
    for dimension in DIMENSIONS:
        parts.append(f"### `{dimension.name}`\n\nRight: {unfilled(dimension.right)}.\n\n")
        parts.append("| choice | what is computed | mistake |\n|---|---|---|\n")
        for option in dimension.options:
            said = unfilled(option.said).replace("|", chr(92) + "|")
            parts.append(f"| `{option.id}` | {said} | {'yes' if option.mistake else ''} |\n")
        parts.append("\n")
    return "".join(parts)


def unfilled(said: str) -> str:
    """A sentence of the checker without the numbers of a case."""
    return re.sub(r"\{(\w+)\}", r"\1", re.sub(r" = \{\w+\}", "", said.replace("{C_is}", "the input")))


def main() -> int:
    """Write the pages, or with `--check` name those that differ."""
    stale = []
    pages = library() | {"command.md": command(), "checks.md": checks()}
    gone = {page.relative_to(REFERENCE).as_posix() for page in REFERENCE.glob("library/*.md")} - set(pages)
    for name, text in pages.items():
        page = REFERENCE / name
        title, body = text.rstrip().split("\n\n", 1)
        wanted = f"{title}\n\n{NOTE}{body}\n"
        if page.exists() and page.read_text(encoding="utf-8") == wanted:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            page.parent.mkdir(exist_ok=True)
            page.write_text(wanted, encoding="utf-8")
    for name in gone:
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            (REFERENCE / name).unlink()
    print("out of date: " + ", ".join(stale) if stale else "up to date")
    return int(bool(stale) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
