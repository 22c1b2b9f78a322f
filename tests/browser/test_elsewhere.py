"""The same page without its server: as a file from disk, and as a notebook's widget."""

from __future__ import annotations

import json

import pytest
from reading import HOSTILE, MARKS, percent, quiet, rows_of, shown_weight

from clearhead.addresses import Head
from clearhead.viewer import single
from clearhead.viewer.joined import script, style
from clearhead.viewer.questions import Gallery
from views import kept_shown

pytestmark = MARKS


@pytest.fixture
def from_disk(chrome, tmp_path):
    def open_file(page, where: str = "", **given):
        file = tmp_path / "page.html"
        file.write_text(single(page, **given), encoding="utf-8")
        chrome.open(file.as_uri() + where)
        chrome.until("document.querySelector('main section')")
        return chrome

    yield open_file
    quiet(chrome)


def test_a_file_from_disk_shows_exact_weights(from_disk, shown):
    chrome = from_disk(shown, "#view=head&head=L1H1&at=250&key=17")
    value = shown.pattern(Head(1, 1)).crop(slice(250, 251), slice(17, 18)).item()
    chrome.until(f"document.querySelector('.exact-weight')?.textContent === {json.dumps(shown_weight(value))}")
    assert chrome.run("document.querySelector('.map-frame').dataset.exact") == "true"


def test_a_file_s_tiles_are_the_library_s(from_disk, shown):
    chrome = from_disk(shown)
    pattern = shown.pattern(Head(0, 1))
    asked = "new EmbeddedSource(JSON.parse(document.getElementById('data').textContent))"
    # The page's classes are inside its module, so the same module is run once more with a way in.
    chrome.run(f"{{ {script('embedded')}; window.asking = {asked}; }} 1")
    for level, pool in ((0, "mean"), (0, "max"), (1, "mean")):
        cells = chrome.run(
            f"asking.ask('tile', {{head: 'L0H1', level: {level}, x: 0, y: 0, pool: '{pool}'}})"
            ".then(a => [a.arrays.cells.shape, [...a.arrays.cells.data]])"
        )
        want = pattern.tile(level, 0, 0, pool=pool)[0, 0]
        assert cells[0] == list(want.shape)
        assert cells[1] == pytest.approx(want.flatten().tolist(), abs=1e-6, rel=1e-5)


def test_a_small_file_says_what_it_lacks_and_shows_what_was_kept(from_disk, shown):
    chrome = from_disk(shown, "#view=text&head=L0H0&at=120", heads=[Head(1, 2)], most=0.8)
    assert "Exact weights are here of" in chrome.run("document.querySelector('header').textContent")
    chrome.until("document.querySelectorAll('aside table').length === 2")
    keys, weights = (x[120].tolist() for x in shown.top(Head(0, 0)))
    rows = rows_of(chrome, '[aria-label="Where it looks"]')
    assert (
        rows
        == [[f"“\u2068·t{k * k % 40}\u2069”", str(k), percent(w)] for k, w in zip(keys, weights, strict=True)][
            : len(rows)
        ]
    )
    assert len(rows) >= 1


def test_a_file_without_a_heads_weights_does_not_say_that_it_looks_at_nothing(from_disk, shown):
    chrome = from_disk(shown, "#view=text&head=L0H0&at=120", most=0.24)  # room for the maps alone
    chrome.until("document.querySelector('.said').textContent.includes('is not known here; its weights were left out')")
    assert "nothing" not in chrome.run("document.querySelector('.said').textContent")


@pytest.mark.parametrize("view", ["overview", "head", "text", "rollout", "compare"])
def test_hostile_tokens_are_text_in_a_file_too(from_disk, view):
    pieces = [HOSTILE[n % len(HOSTILE)] for n in range(40)]
    chrome = from_disk(kept_shown(pieces=pieces, name=HOSTILE[3]), f"#view={view}&at=30")
    chrome.until(f"document.querySelector('main.{view} section')")
    chrome.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert chrome.run("typeof hit") == "undefined"
    assert chrome.run("document.querySelectorAll('img, iframe, object, embed').length") == 0


def test_the_widget_draws_itself_in_a_tree_of_its_own(chrome, shown, tmp_path):
    """A page in a notebook's place, whose model answers with what the kernel would send."""
    gallery = Gallery([shown])
    asked = {
        "traces": {}, "trace": {"trace": "0"}, "maps": {"trace": "0", "pool": "mean"},
    }  # fmt: skip
    answers = {name: list(gallery.ask(name, given).packed()) for name, given in asked.items()}
    module = script("widget").replace("export default { render };", "window.render = render;")
    page = tmp_path / "notebook.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>notebook</title>"
        "<style>button { border: 9px solid red }</style><div id=cell></div>"
        f"<script type=module>{module}\nconst answers = {json.dumps(answers)}, listeners = [];\n"
        f"const model = {{ get: () => {json.dumps(style())}, on: (_, f) => listeners.push(f), send: ({{ number, question }}) =>"
        " location.hash && setTimeout(() => { const b = Uint8Array.from(answers[question]);"
        " listeners.forEach((f) => f({ number }, [new DataView(b.buffer)])); }) };\n"
        "document.body.dataset.jpThemeLight = 'true';"
        "render({ model, el: document.getElementById('cell') });</script>",
        encoding="utf-8",
    )
    chrome.open(page.as_uri() + "#answering")
    inside = "document.getElementById('cell').shadowRoot"
    chrome.until(f"{inside}?.querySelector('.heads')?.dataset.drawn")
    assert chrome.run(f"{inside}.querySelectorAll('.thumb').length") == 6
    assert (
        chrome.run(f"getComputedStyle({inside}.querySelector('button.tab')).borderTopWidth") == "0px"
    )  # not the page's red
    assert chrome.run("location.hash") == "#answering"  # the address is the notebook's
    assert (
        chrome.run(f"{inside}.querySelector('.clearhead').dataset.theme") == "light"
    )  # as the notebook, not the system
    assert chrome.run("document.getElementById('cell').hasAttribute('data-lm-suppress-shortcuts')")
    chrome.open(page.as_uri())  # nobody answers
    chrome.until(f"{inside}.querySelector('.notices').textContent.startsWith('Waiting for the kernel: ')")
    quiet(chrome)
