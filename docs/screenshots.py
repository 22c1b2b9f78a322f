"""Make the pictures of the viewer in docs/pictures/: `make screenshots`. Needs Chromium.

With a name, of another model than the built-in one: `python docs/screenshots.py smollm2`.
"""

from __future__ import annotations

import base64
import contextlib
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from chromium import Chromium  # noqa: E402

from clearhead.cli.look import PASSAGE  # noqa: E402
from clearhead.models import load  # noqa: E402
from clearhead.survey import Survey  # noqa: E402
from clearhead.survey import load as load_survey  # noqa: E402
from clearhead.viewer import Shown, look  # noqa: E402
from clearhead.viewer.questions import Gallery  # noqa: E402
from clearhead.viewer.server import Server  # noqa: E402
from clearhead.viewer.surveys import Surveys  # noqa: E402

PLACES = {
    "overview": ("", "dark"),
    "head": ("view=head&head={head}", "dark"),
    "text": ("view=text&head={head}&at=170", "light"),
    "rollout": ("view=rollout&at=150", "dark"),
    "compare": ("view=compare&head={head}&by=entropy", "light"),
}


SURVEYS = {"survey": ("view=head&head=L2H1", "dark"), "differences": ("view=differences&head=L2H1", "light")}


def main() -> None:
    """Look at the passage and at the same with one word changed, survey the tutorial's corpus, and keep every view's looks."""
    model = load(sys.argv[1] if len(sys.argv) > 1 else "builtin")
    shown = []
    for name, text in (("passage", PASSAGE), ("lantern for lamp", PASSAGE.replace("lamp", "lantern"))):
        view = look(model, text, write=30, cells=128, keep="qkv")
        shown.append(Shown(view.trace, name=name))
    with tempfile.TemporaryDirectory() as folder:
        chrome = Chromium(Path(folder) / "profile")
        chrome.send("Emulation.setDeviceMetricsOverride", width=1280, height=860, deviceScaleFactor=1, mobile=False)
        with Server(Gallery(shown), say=lambda _: None) as server:
            chrome.open(server.address())
            chrome.until("document.querySelector('.heads')?.dataset.drawn")
            keep(chrome, server, PLACES, head=str(shown[0].notable()))
        with Server(Surveys(surveyed(Path(folder))), say=lambda _: None) as server:
            chrome.open(server.address())
            chrome.until("document.querySelector('.heads')?.dataset.drawn")
            keep(chrome, server, SURVEYS)
        chrome.close()


def surveyed(folder: Path) -> list[Survey]:
    """The two surveys of the tutorial, made by its own code."""
    page = (ROOT / "docs" / "tutorials" / "corpus.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    with contextlib.chdir(folder):
        for body in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
            exec(body, names)  # noqa: S102
    return [load_survey(folder / name) for name in ("found", "tuned")]


def keep(chrome: Chromium, server: Server, places: dict[str, tuple[str, str]], **said: str) -> None:
    """Open places one after the other and write what they look like."""
    for name, (place, scheme) in places.items():
        chrome.open(f"http://127.0.0.1:{server.port}/#{place.format(**said)}", scheme=scheme)
        chrome.until("document.querySelector('main section') && !document.querySelector('[aria-busy=true]')")
        chrome.run("new Promise((done) => setTimeout(done, 700))")
        picture = chrome.send("Page.captureScreenshot", format="png")["data"]
        target = ROOT / "docs" / "pictures" / f"{name}.png"
        target.write_bytes(base64.b64decode(picture))
        print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
