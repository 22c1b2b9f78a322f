"""A real terminal for a program: a pty that pexpect drives, and pyte that says what stands on the screen."""

from __future__ import annotations

import os
import sys

import pexpect
import pyte

PATIENCE = 180  # seconds; a busy machine starts torch slowly


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *words: str, columns: int = 80, rows: int = 24, **environment: str) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.Stream(self.screen)
        self.raw = ""
        env = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "OMP_NUM_THREADS": "1"} | environment
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            env.pop(name, None)
        self.child = pexpect.spawn(
            sys.executable, ["-m", *words], dimensions=(rows, columns), env=env, encoding="utf-8", timeout=PATIENCE
        )

    def close(self) -> None:
        self.child.close(force=True)

    def press(self, keys: str) -> None:
        self.child.send(keys)

    def resize(self, columns: int, rows: int) -> None:
        self.child.setwinsize(rows, columns)
        self.screen.resize(rows, columns)

    def sees(self, *texts: str) -> list[str]:
        """The lines of the screen, once every text is on it; fails with the screen when that does not happen."""
        while not all(text in "\n".join(self.screen.display) for text in texts):
            try:
                self._feed(self.child.read_nonblocking(65536, timeout=PATIENCE))
            except (pexpect.EOF, pexpect.TIMEOUT):
                shown = "\n".join(self.screen.display)
                raise AssertionError(f"{texts} never stood on the screen, which is\n{shown}") from None
        return [line.rstrip() for line in self.screen.display]

    def ends(self) -> int:
        """The exit code, once the program is over."""
        while True:
            try:
                self._feed(self.child.read_nonblocking(65536, timeout=PATIENCE))
            except pexpect.EOF:
                break
        self.child.close()
        return int(self.child.exitstatus if self.child.exitstatus is not None else -self.child.signalstatus)

    def _feed(self, text: str) -> None:
        self.raw += text
        self.stream.feed(text)
