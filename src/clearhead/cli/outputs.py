"""What `clearhead look` leaves behind besides what it prints: a page, a picture, a trace, a browser that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clearhead.cli.files import check_writable, write_whole

if TYPE_CHECKING:
    from clearhead.addresses import Head
    from clearhead.viewer import View

MARKED = 32  # keys kept for every query on the page: enough to shade a text, few enough to send
CELLS = 128  # along each side of a map: up to this many tokens a map shows every pair


@dataclass(frozen=True)
class Outputs:
    """Where to write what; None and False: not."""

    html: Path | None
    png: Path | None
    save: Path | None
    opened: bool
    most: float  # megabytes of a page

    def check(self) -> None:
        """Raise `InputError` for what could not be written or shown, before any work is done."""
        if self.opened:
            import clearhead.viewer.server  # noqa: F401  (says what it lacks)
        for option, path in (("--html", self.html), ("--png", self.png), ("--save", self.save)):
            if path is not None:
                check_writable(option, path)

    @property
    def cells(self) -> int:
        """Cells along each side of the maps that will be needed, 0 for none."""
        return CELLS if self.html or self.png or self.save or self.opened else 0

    @property
    def kept(self) -> int:
        """Keys to keep for every query."""
        return MARKED if self.html or self.save or self.opened else 0

    @property
    def keep(self) -> str | None:
        """What to keep of the run, to look closer afterwards."""
        return "qkv" if self.html or self.opened else "qk" if self.save else None

    def write(self, view: View, head: Head | None, query: int) -> None:
        """Write all of it."""
        from clearhead.viewer import page, picture

        if self.html is not None:
            text = page(view, head=head, query=query, most=self.most)
            write_whole("--html", self.html, text.encode("utf-8"))
        if self.png is not None:
            write_whole("--png", self.png, picture(view))
        if self.save is not None:
            view.trace.save(self.save)

    def say(self) -> None:
        """Print what was written."""
        for path in (self.html, self.png, self.save):
            if path is not None:
                print(f"wrote {path}")

    def show(self, view: View) -> None:
        """Serve the viewer until Ctrl-C, if that was asked for."""
        if self.opened:
            from clearhead.cli.serving import serve
            from clearhead.viewer import Shown
            from clearhead.viewer.questions import Gallery

            serve(Gallery([Shown.of(view)]), port=0, browser=True)
