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
from clearhead.models import load  # noqa: E402
from clearhead.viewer import Shown, look  # noqa: E402
from clearhead.viewer.questions import Gallery  # noqa: E402
from clearhead.viewer.server import Server  # noqa: E402

PLACES = {
    "overview": ("", "dark"),
    "head": ("view=head&head={head}", "dark"),
    "text": ("view=text&head={head}&at=170", "light"),
    "rollout": ("view=rollout&at=150", "dark"),
    "compare": ("view=compare&head={head}&by=entropy", "light"),
}


def main() -> None:
    """Look at the passage and at the same with one word changed, open every view, and keep what it looks like."""
    model = load(sys.argv[1] if len(sys.argv) > 1 else "builtin")
    shown = []
    for name, text in (("passage", PASSAGE), ("lantern for lamp", PASSAGE.replace("lamp", "lantern"))):
        view = look(model, text, write=30, cells=128, keep="qkv")
        shown.append(Shown(view.trace, name=name))
    head = shown[0].notable()
    with tempfile.TemporaryDirectory() as profile, Server(Gallery(shown), say=lambda _: None) as server:
        chrome = Chromium(Path(profile))
        chrome.send("Emulation.setDeviceMetricsOverride", width=1280, height=860, deviceScaleFactor=1, mobile=False)
        chrome.open(server.address())
        chrome.until("document.querySelector('.heads')?.dataset.drawn")
        for name, (place, scheme) in PLACES.items():
            chrome.open(f"http://127.0.0.1:{server.port}/#{place.format(head=head)}", scheme=scheme)
            chrome.until("document.querySelector('main section') && !document.querySelector('[aria-busy=true]')")
            chrome.run("new Promise((done) => setTimeout(done, 700))")
            picture = chrome.send("Page.captureScreenshot", format="png")["data"]
            target = ROOT / "docs" / "pictures" / f"{name}.png"
            target.write_bytes(base64.b64decode(picture))
            print(f"wrote {target.relative_to(ROOT)}")
        chrome.close()


if __name__ == "__main__":
    main()
