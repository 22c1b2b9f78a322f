"""The lesson in the browser, computed by this process as the reader changes it."""

from __future__ import annotations

import webbrowser
from typing import TYPE_CHECKING, Any

from clearhead.lesson import compute
from clearhead.lesson.page import ASSETS
from clearhead.lesson.settings import Settings
from clearhead.viewer.questions import Gallery

if TYPE_CHECKING:
    from clearhead.viewer.server import Pages, Server

NAME = "lesson"


def served(settings: Settings) -> Pages:
    """The lesson as pages for the viewer's server, started on these settings."""
    from clearhead.viewer.server import Pages

    first = {"text": settings.text, "time": settings.time, "width": settings.width, "seed": settings.seed}

    def facts(_: Any) -> dict[str, Any]:
        return {**compute.facts(), "first": first}

    return Pages(NAME, ASSETS, {"facts": facts, "compute": compute.compute})


def server(settings: Settings, port: int = 0) -> Server:
    """A server with the lesson and nothing else; raises `InputError` when what it needs is not installed."""
    from clearhead.viewer.server import Server

    return Server(Gallery([]), port=port, pages=[served(settings)])


def serve(settings: Settings, rung: str | None = None) -> None:
    """Serve until Ctrl-C, and open the browser."""
    made = server(settings)
    address = made.address(f"{NAME}/") + (f"&page={rung}" if rung else "")
    print(f"the lesson is at {address}\nCtrl-C ends it", flush=True)
    webbrowser.open(address)
    made.run()
