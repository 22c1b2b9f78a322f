"""One key at a time from a terminal, by the names that `screen` knows."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NAMES = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home", "\x1b[4~": "end",
    "\x1bOH": "home", "\x1bOF": "end",
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape", "\x04": "q",
}  # fmt: skip

if sys.platform == "win32":
    import msvcrt
    import time

    _SECOND = {
        "H": "up",
        "P": "down",
        "M": "right",
        "K": "left",
        "I": "page up",
        "Q": "page down",
        "G": "home",
        "O": "end",
    }

    @contextmanager
    def keyboard() -> Iterator[Callable[[float], str]]:
        """A function that waits up to so many seconds for a key; "" when none came."""

        def key(seconds: float) -> str:
            until = time.monotonic() + seconds
            while not msvcrt.kbhit():
                if time.monotonic() > until:
                    return ""
                time.sleep(0.02)
            typed = msvcrt.getwch()
            if typed == "\x03":
                raise KeyboardInterrupt
            return _SECOND.get(msvcrt.getwch(), "") if typed in "\x00\xe0" else NAMES.get(typed, typed)

        yield key

else:
    import select
    import termios
    import tty

    @contextmanager
    def keyboard() -> Iterator[Callable[[float], str]]:
        """A function that waits up to so many seconds for a key; "" when none came, "q" when there is no more input."""
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        waiting: list[str] = []

        def key(seconds: float) -> str:
            if not waiting:
                # Again each time: whoever suspended us with Ctrl-Z may have put the terminal back.
                if termios.tcgetattr(terminal)[3] & termios.ICANON:
                    tty.setcbreak(terminal)
                if not select.select([terminal], [], [], seconds)[0]:
                    return ""
                waiting.extend(_split(os.read(terminal, 1024).decode("utf-8", "replace")) or ["q"])
            return waiting.pop(0)

        try:
            tty.setcbreak(terminal)
            yield key
        finally:
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _split(typed: str) -> list[str]:
    """Names of the keys in what was read at once.

    >>> _split("q\\x1b[C4\\x1b[99z")
    ['q', 'right', '4']
    """
    found = []
    while typed:
        name = next((n for n in sorted(NAMES, key=len, reverse=True) if typed.startswith(n)), None)
        if name == "\x1b" and len(typed) > 2 and typed[1] in "[O":  # a key that has no name here
            end = next((at for at, c in enumerate(typed[2:], 2) if c.isalpha() or c == "~"), len(typed) - 1)
            typed = typed[end + 1 :]
            continue
        found.append(typed[0] if name is None else NAMES[name])
        typed = typed[len(name or " ") :]
    return found
