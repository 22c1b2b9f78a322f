"""A page of the lesson as JSON: what the browser asks for, from the server as it is needed or from one file, made before."""

from __future__ import annotations

import functools
import math
from dataclasses import asdict
from typing import Any

from pygments.lexers.python import PythonLexer
from pygments.token import Token

from clearhead.errors import InputError, message
from clearhead.lesson.blocks import Block, Cost, Equal, Grid, Grids, Page, Ran, Source
from clearhead.lesson.book import Book
from clearhead.lesson.pages.contents import CONTENTS, KEYS
from clearhead.lesson.settings import MOST, Settings
from clearhead.lesson.source import fitted

CODE = 96  # columns of code on a page
GIVEN = {"key": str, "time": int, "width": int, "seed": int, "text": str}
KINDS = (
    (Token.Comment, "c"), (Token.Keyword, "k"), (Token.Name.Function, "f"), (Token.Literal.String, "s"),
    (Token.Literal.Number, "n"), (Token.Name.Builtin, "b"),
)  # fmt: skip


def compute(payload: Any) -> dict[str, Any]:
    """One page on the reader's settings, computed by the ladder's own functions.

    >>> compute({"key": "2", "time": 4})["title"]
    'One matrix product'

    Arguments: payload, `key` of a page and, each of them optional, `time`, `width`, `seed` and `text` as in `Settings`.
    Returns: `key`, `title`, `question` and `blocks`, all of it JSON. Raises: InputError for what is not that.
    """
    if not isinstance(payload, dict) or not set(payload) <= set(GIVEN) or "key" not in payload:
        raise InputError(
            message(
                "lesson", expected=f"key and some of {', '.join(GIVEN)}", got=_short(payload), remedy="Reload the page."
            )
        )
    given = {name: value for name, value in payload.items() if value is not None}
    for name, value in given.items():
        if not isinstance(value, GIVEN[name]) or isinstance(value, bool):
            kind = "text" if GIVEN[name] is str else "a whole number"
            raise InputError(message(name, expected=kind, got=_short(value), remedy="Change it and compute again."))
    key = given.pop("key")
    return as_json(_book(Settings(**given)).page(key))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


@functools.lru_cache(maxsize=8)
def _book(settings: Settings) -> Book:
    return Book(settings)


def facts() -> dict[str, Any]:
    """What every page needs: the contents and the limits."""
    return {"contents": [[key, *CONTENTS[key]] for key in KEYS], "most": MOST}


def as_json(page: Page) -> dict[str, Any]:
    """A page as JSON."""
    return {
        "key": page.key,
        "title": page.title,
        "question": page.question,
        "blocks": [_block(block) for block in page.blocks],
    }


def _block(block: Block) -> dict[str, Any]:
    kind = type(block).__name__.lower()
    if isinstance(block, Source):
        file = block.module.replace(".", "/") + ".py"
        return {"is": kind, "name": block.name, "file": file, "code": coloured(fitted(block.code, CODE))}
    if isinstance(block, Ran):
        return {"is": kind, "code": coloured(fitted(block.code, CODE))}
    if isinstance(block, Grids):
        return {"is": kind, "items": [_grid(item) for item in block.items]}
    if isinstance(block, Equal):
        return {"is": kind, "what": block.what, "difference": block.difference, "holds": block.holds}
    if isinstance(block, Cost):
        return {
            "is": kind,
            "beside": block.beside,
            "note": block.note,
            "head": block.head,
            "rows": block.rows,
            "points": [[p.tokens, p.seconds, p.beside] for p in block.points],
        }
    return {"is": kind, **asdict(block)}


def _grid(item: Grid) -> dict[str, Any]:
    return {
        "name": item.name,
        "shape": item.shape,
        "shade": item.shade,
        "rows": list(item.rows),
        "columns": list(item.columns),
        "decimals": item.decimals,
        "note": item.note,
        "values": [[_number(v) for v in row] for row in item.values],
    }


def _number(value: float) -> float | str | None:
    """JSON has neither: minus infinity is "-inf", and what is not there is null."""
    if math.isnan(value):
        return None
    return "-inf" if value == -math.inf else round(value, 6)


@functools.cache
def coloured(code: str) -> list[list[str]]:
    """Code as pieces, each with its kind: c a comment, k a keyword, f a function's name, s text, n a number, b built in.

    >>> coloured("x = 1")
    [['', 'x = '], ['n', '1']]
    """
    found: list[list[str]] = []
    for token, text in PythonLexer(ensurenl=False, stripnl=False).get_tokens(code):
        kind = next((short for of, short in KINDS if token in of), "")
        if found and found[-1][0] == kind:
            found[-1][1] += text
        else:
            found.append([kind, text])
    return found
