"""Make the pictures of the viewer in docs/pictures/: `make screenshots`. Needs Chromium.

With a name, of another model than the built-in one: `python docs/screenshots.py smollm2`.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from chromium import Chromium  # noqa: E402

from clearhead.cli.look import PASSAGE  # noqa: E402
from clearhead.models import Model, load  # noqa: E402
from clearhead.survey import Corpus, Options, Survey, survey  # noqa: E402
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


SURVEY = {"survey": ("view=head&head=L2H1", "dark")}


def main() -> None:
    """Look at the passage and at the same with one word changed, survey its parts, and keep what every view looks like."""
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
        with Server(Surveys([surveyed(model, Path(folder))]), say=lambda _: None) as server:
            chrome.open(server.address())
            chrome.until("document.querySelector('.heads')?.dataset.drawn")
            keep(chrome, server, SURVEY)
        chrome.close()


def surveyed(model: Model, folder: Path) -> Survey:
    """A survey of the passage, four sentences a document."""
    sentences = PASSAGE.replace("?", ".").split(".")
    (folder / "texts").mkdir()
    for n in range(len(sentences) - 3):
        (folder / "texts" / f"{n}.txt").write_text(".".join(sentences[n : n + 4]).strip() + ".", encoding="utf-8")
    found = survey(model, Corpus([folder / "texts"]), folder / "found", Options(length=512))
    assert found is not None
    return found


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
