"""How long the viewer takes in a real Chromium: `python benchmarks/viewer.py TRACE`.

TRACE is a file of `clearhead look --save`, with q and k kept. Printed: from opening the page to the first grid, from
choosing a head to its map, each further tile, the longest frame while the text scrolls, and the page's memory.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "browser"))

from chromium import Chromium  # noqa: E402

from clearhead import Trace  # noqa: E402
from clearhead.viewer import Shown  # noqa: E402
from clearhead.viewer.questions import Gallery  # noqa: E402
from clearhead.viewer.server import Server  # noqa: E402

SCROLL = (
    "new Promise((done) => { const f = document.querySelector('.flow'), gaps = []; let last = performance.now(), n = 0;"
    " const step = (now) => { gaps.push(now - last); last = now; f.scrollTop = (n * 397) % f.scrollHeight;"
    " n++ < 120 ? requestAnimationFrame(step) : done(Math.max(...gaps.slice(2))); }; requestAnimationFrame(step); })"
)
TILES = "performance.getEntriesByType('resource').filter((e) => e.name.includes('/tile'))"


def tiles_of(chrome: Chromium, began: float) -> tuple[float, list[float]]:
    """When the last tile asked for came, in ms after a moment, and how long each took; waits until all are there."""
    known, quiet = -1, 0
    while quiet < 10:
        count = chrome.run(f"{TILES}.length")
        known, quiet = count, quiet + 1 if count == known and count else 0
        chrome.run("new Promise((done) => setTimeout(done, 50))")
    ends = chrome.run(f"{TILES}.map((e) => e.responseEnd)")
    return max(ends) - began, chrome.run(f"{TILES}.map((e) => e.duration)")


def main(path: str) -> None:
    """Open the trace and walk through it as a person would."""
    shown = Shown(Trace.load(path), name=Path(path).name)
    with tempfile.TemporaryDirectory() as profile, Server(Gallery([shown]), say=lambda _: None) as server:
        chrome = Chromium(Path(profile))
        chrome.open(server.address())
        chrome.until("document.querySelector('.heads')?.dataset.drawn")
        print(f"first grid: {chrome.run('performance.now()'):.0f} ms after opening")
        for head in ("L0H0", "L15H4", "L29H8"):
            began = chrome.run(
                f"performance.clearResourceTimings(), location.hash = 'view=head&head={head}', performance.now()"
            )
            last, took = tiles_of(chrome, began)
            print(
                f"{head}: {len(took)} tiles, the map complete {last:.0f} ms after choosing the head; "
                f"the slowest took {max(took):.0f} ms"
            )
            chrome.run("document.querySelector('main.head canvas').focus()")
            further = []
            for _ in range(5):
                began = chrome.run("performance.clearResourceTimings(), performance.now()")
                chrome.press("+")
                chrome.run("new Promise((done) => setTimeout(done, 300))")
                if chrome.run(f"{TILES}.length"):
                    further += tiles_of(chrome, began)[1]
            if further:
                print(
                    f"{head}: {len(further)} further tiles, median {statistics.median(further):.0f} ms, "
                    f"the slowest {max(further):.0f} ms"
                )
        chrome.open(f"http://127.0.0.1:{server.port}/#view=text")
        chrome.until("document.querySelector('.flow [role=option]')")
        print(f"text: longest frame while scrolling {chrome.run(SCROLL):.0f} ms")
        print(f"heap: {chrome.send('Runtime.getHeapUsage')['usedSize'] / 1e6:.0f} MB")
        chrome.close()


if __name__ == "__main__":
    main(sys.argv[1])
