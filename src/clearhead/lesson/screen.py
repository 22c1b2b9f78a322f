"""The lesson in a terminal of its own: one page at a time, turned by keys."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

from clearhead.errors import InputError
from clearhead.lesson.book import Book
from clearhead.lesson.keys import keyboard
from clearhead.lesson.pages.contents import CONTENTS, KEYS
from clearhead.lesson.terminal import render

WIDEST = 124  # code needs no more
TURNS = {"right": 1, "n": 1, "l": 1, "left": -1, "b": -1, "p": -1, "h": -1}
HELP = (("←", "back"), ("→", "next"), ("↑↓", "scroll"), ("g", "go to"), ("q", "quit"))


class Screen:
    """Shows one page of a book; `run` until the reader quits."""

    def __init__(self, book: Book, console: Console, key: str = KEYS[0]) -> None:
        self.book, self.console = book, console
        self.at = KEYS.index(key)
        self.tops: dict[str, int] = {}  # first line shown, for every page that was scrolled
        self.typed: str | None = None  # the page being asked for, while it is typed
        self.said = ""  # what went wrong last
        self.lines: list[str] = []
        self.size = (0, 0)
        self.shown = ""

    @property
    def key(self) -> str:
        """The page shown."""
        return KEYS[self.at]

    @property
    def room(self) -> int:
        """Lines for the page; the last of the terminal is the foot."""
        return max(1, self.size[1] - 1)

    @property
    def top(self) -> int:
        """The first line of the page that is shown."""
        return self.tops.get(self.key, 0)

    def run(self) -> None:
        """Show pages until q, Esc or the end of input."""
        with self._whole(), keyboard() as next_key:
            self._draw()
            while True:
                pressed = next_key(0.3)
                if pressed == "":
                    if os.get_terminal_size(sys.stdout.fileno()) != self.size:
                        self._draw()
                    continue
                if not self.press(pressed):
                    return
                self._draw()

    def press(self, key: str) -> bool:
        """Do what a key says; False when it says to quit."""
        self.said = ""
        if self.typed is not None:
            self._type(key)
            return True
        if key in ("q", "escape"):
            return False
        if key in TURNS:
            self._turn(TURNS[key])
        elif key == "g":
            self.typed = ""
        elif key.isdigit():
            self.typed = key
        elif key in (" ", "page down", "enter") and self.top >= self._last():
            self._turn(1)
        else:
            steps = {
                "down": 1, "j": 1, "up": -1, "k": -1, " ": self.room - 2, "page down": self.room - 2, "enter": 1,
                "page up": 2 - self.room, "home": -len(self.lines), "end": len(self.lines),
            }  # fmt: skip
            self.tops[self.key] = min(self._last(), max(0, self.top + steps.get(key, 0)))
        return True

    def _type(self, key: str) -> None:
        typed = self.typed or ""
        if key == "escape" or (key == "backspace" and not typed):
            self.typed = None
        elif key == "backspace":
            self.typed = typed[:-1]
        elif key == "enter":
            self.typed = None
            if typed in KEYS:
                self.at = KEYS.index(typed)
            elif typed:
                self.said = f"there is no page {typed}: 0 to {KEYS[-1]}, or an aside such as 4a"
        elif len(key) == 1 and key.isalnum() and len(typed) < 3:
            self.typed = typed + key

    def _turn(self, by: int) -> None:
        at = self.at + by
        if not 0 <= at < len(KEYS):
            self.said = "this is the first page" if at < 0 else "this is the last page; q quits"
            return
        self.at = at

    def _last(self) -> int:
        """The first line to show so that the page's last one is at the bottom."""
        return max(0, len(self.lines) - self.room)

    def _draw(self) -> None:
        size = os.get_terminal_size(sys.stdout.fileno())
        if self.shown != self.key or size != self.size:
            self.size = (size.columns, size.lines)
            self._write([], Text(f" making page {self.key}: {CONTENTS[self.key].title} … "))
            self.lines = self._rendered()
            self.shown = self.key
            self.tops[self.key] = min(self.top, self._last())
        self._write(self.lines[self.top : self.top + self.room], self._foot())

    def _rendered(self) -> list[str]:
        try:
            page = self.book.page(self.key)
        except InputError as error:  # a page that cannot be made; the others can
            return ["", *Text(str(error)).wrap(self.console, self.size[0])[0].plain.splitlines()]
        with self.console.capture() as caught:
            self.console.print(render(page), width=min(WIDEST, self.size[0]))
        return caught.get().rstrip("\n").split("\n")

    def _foot(self) -> Text:
        width = self.size[0]
        if self.typed is not None:
            return Text(f" go to page: {self.typed}▏  (0 to {KEYS[-1]}, or 4a; Enter)")
        if self.said:
            return Text(f" {self.said}")
        foot = Text(" ")
        for keys, does in HELP:
            foot.append(keys, "bold").append(f" {does}   ")
        seen = min(100, round(100 * (self.top + self.room) / max(1, len(self.lines))))
        more = "▼ more below" if self.top < self._last() else ""
        right = f"{more}   {seen}%   page {self.key} of {KEYS[-1]} "
        if foot.cell_len + len(right) > width:
            right = f"{'▼  ' if more else ''}page {self.key} of {KEYS[-1]} "
        foot.append(" " * max(0, width - foot.cell_len - len(right)) + right)
        return foot

    def _write(self, lines: list[str], foot: Text) -> None:
        width = self.size[0]
        foot.truncate(width, pad=True)
        foot.stylize("reverse")
        with self.console.capture() as caught:
            self.console.print(foot, end="", width=width, no_wrap=True)
        below = [*lines, *[""] * (self.room - len(lines))]
        sys.stdout.write("\x1b[H" + "".join(f"{line}\x1b[0m\x1b[K\r\n" for line in below) + caught.get() + "\x1b[K")
        sys.stdout.flush()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """The terminal's other screen, without a cursor; what was there before comes back, whatever happens."""

        def again(*_: object) -> None:
            sys.stdout.write("\x1b[?1049h\x1b[?25l")
            self.shown = ""
            self.size = (0, 0)

        previous = signal.signal(signal.SIGCONT, again) if hasattr(signal, "SIGCONT") else None
        again()
        try:
            yield
        finally:
            if previous is not None:
                signal.signal(signal.SIGCONT, previous)
            sys.stdout.write("\x1b[?25h\x1b[?1049l")
            sys.stdout.flush()
