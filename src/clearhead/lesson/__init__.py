"""The lesson: attention from a loop to the kernel, with real numbers at every step.

One source, its pages (`Book`), shown in the terminal, in the browser (`page.page`) and as a notebook (`notebook.notebook`).

>>> from clearhead.lesson import Book, Settings
>>> [page.key for page in Book(Settings(), measured=False).pages()][:5]
['0', '1', '2', '3', '3a']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clearhead.lesson.book import Book
    from clearhead.lesson.settings import Settings

__all__ = ["Book", "Settings"]


def __getattr__(name: str) -> Any:
    """The names above when they are first used: whether a file is an exercise can be told without torch."""
    if name == "Book":
        from clearhead.lesson.book import Book

        return Book
    if name == "Settings":
        from clearhead.lesson.settings import Settings

        return Settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
