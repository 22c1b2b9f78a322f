"""What the lesson's tests share: the pages on several settings, made once, and their code, run."""

from __future__ import annotations

import functools
from typing import Any

import torch

from clearhead.lesson import Book, Settings
from clearhead.lesson.blocks import Block, Page, Ran
from clearhead.lesson.notebook import SETUP

SENTENCE = "The cat sat on the mat. The dog did not."
LESSONS = {
    "default": Settings(),
    "text": Settings(text=SENTENCE),
    "one token": Settings(time=1, width=1),
    "long": Settings(time=23, width=7, seed=5),
}


@functools.cache
def lesson(name: str) -> tuple[Page, ...]:
    """The pages without costs: nothing is timed."""
    return tuple(Book(LESSONS[name], measured=False).pages())


def blocks(name: str, kind: type[Block]) -> list[tuple[Page, Any]]:
    return [(page, block) for page in lesson(name) for block in page.blocks if isinstance(block, kind)]


@functools.cache
def namespace(name: str) -> dict[str, dict[str, Any]]:
    """For every page, the names that stand after its code ran, page after page as a reader would run it."""
    names: dict[str, Any] = {}
    exec(SETUP, names)  # noqa: S102
    after = {}
    with torch.no_grad():
        for page in lesson(name):
            for block in page.blocks:
                if isinstance(block, Ran):
                    exec(block.code, names)  # noqa: S102
            after[page.key] = dict(names)
    return after


def value(name: str, page: Page, code: str) -> Any:
    with torch.no_grad():
        return eval(code, namespace(name)[page.key])  # noqa: S307
