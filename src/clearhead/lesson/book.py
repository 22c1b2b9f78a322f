"""All pages of a lesson in their order, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clearhead.errors import InputError
from clearhead.lesson import progress
from clearhead.lesson.blocks import Page
from clearhead.lesson.costs import cost
from clearhead.lesson.pages import asides
from clearhead.lesson.pages.contents import KEYS
from clearhead.lesson.pages.own import own
from clearhead.lesson.pages.rungs import rung
from clearhead.lesson.pages.start import exercises, start
from clearhead.lesson.settings import Settings

ASIDES: dict[str, Callable[[], Page]] = {
    "3a": asides.steps,
    "4a": asides.root,
    "4b": asides.infinity,
    "4c": asides.crossing,
    "4d": asides.positions,
    "5a": asides.groups,
    "5b": asides.meaning,
}


class Book:
    """A lesson's pages on some settings. A page takes up to a second to make, and is kept.

    >>> Book(Settings()).page("2").question
    'Can one matrix product do the work of both loops?'

    measured: whether rungs end with what they cost, measured here; without it nothing is timed.
    """

    def __init__(self, settings: Settings, *, measured: bool = True) -> None:
        self.settings = settings
        self.measured = measured
        self._made: dict[str, Page] = {}

    def page(self, key: str) -> Page:
        """The page of a key; raises `InputError` for a key that no page has."""
        self.check(key)
        if key not in self._made:
            self._made[key] = self._make(key)
        return self._made[key]

    def pages(self) -> list[Page]:
        """All pages in their order."""
        return [self.page(key) for key in KEYS]

    @staticmethod
    def check(key: str) -> None:
        """Raise `InputError` for a key that no page has."""
        if key not in KEYS:
            raise InputError(f"rung {key}: there is no such page; there are {', '.join(KEYS)}")

    def _make(self, key: str) -> Page:
        if key == "0":
            return start()
        if key in ASIDES:
            return ASIDES[key]()
        if key == "9":
            return own(self.settings)
        if key == "10":
            return exercises(progress.solved())
        page = rung(int(key), self.settings)
        return replace(page, blocks=(*page.blocks, cost(int(key)))) if self.measured else page
