"""Where mutants and right implementations are collected."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """A candidate, what it is asked with, and what must be said of it."""

    candidate: Any
    name: str
    mistakes: tuple[
        frozenset[str], ...
    ] = ()  # any one of these sets of mistakes must be the first diagnosis; () for right ones
    options: dict[str, Any] = field(default_factory=dict)
    check: str = ""  # a check that must be among the failing ones, where no formula explains it


WRONG: list[Entry] = []
RIGHT: list[Entry] = []


def wrong(*mistakes: str, check: str = "", **options: Any):
    """Register a mutant. Each of `mistakes` is one acceptable diagnosis; several mistakes at once are joined by " + "."""

    def register(candidate: Any) -> Any:
        sets = tuple(frozenset(one.split(" + ")) for one in mistakes)
        WRONG.append(Entry(candidate, getattr(candidate, "__name__", type(candidate).__name__), sets, options, check))
        return candidate

    return register


def right(candidate: Any = None, **options: Any):
    """Register a right implementation."""

    def register(candidate: Any) -> Any:
        RIGHT.append(Entry(candidate, getattr(candidate, "__name__", type(candidate).__name__), (), options))
        return candidate

    return register if candidate is None else register(candidate)
