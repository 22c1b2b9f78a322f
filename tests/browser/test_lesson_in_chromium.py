"""The lesson's page in a real browser: from disk, and from the server that computes it."""

from __future__ import annotations

import importlib
import json
import os

import pytest

from clearhead.ladder import single_head
from clearhead.ladder.example import projected
from clearhead.lesson import Settings
from clearhead.lesson import page as pages
from clearhead.lesson.serve import server

REQUIRED = os.environ.get("CI") == "true"
chromium = importlib.import_module("chromium") if REQUIRED else pytest.importorskip("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.PATH is None and not REQUIRED, reason="there is no Chromium here"),
]
HOSTILE = "<img src=x onerror=hit=1> </script><script>hit=1</script> \u202e"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = chromium.Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, values in (
            ("TIMES", (8, 4)),
            ("WIDTHS", (None,)),
            ("SEEDS", (1337, 42)),
            ("TEXTS", ("The cat sat.", HOSTILE)),
        ):
            patch.setattr(pages, name, values)
        where = tmp_path_factory.mktemp("page") / "lesson.html"
        where.write_text(pages.page(measured=False), encoding="utf-8")
    return where


@pytest.fixture
def opened(browser, written):
    def open_page(key: str, scheme: str = "dark"):
        browser.open(f"{written.as_uri()}#{key}", scheme=scheme)
        until(browser, "document.querySelector('h1') !== null")
        return browser

    return open_page


def until(browser, condition: str) -> None:
    """Wait until the page is so; fails with what it says instead."""
    waited = browser.run(
        f"new Promise((done) => {{ let n = 0; const look = () => {{ if ({condition}) done(true); "
        "else if (++n > 600) done(false); else setTimeout(look, 50); }; look(); })"
    )
    assert waited, browser.run("document.body.innerText")[:2000]


def text_of(browser, selector: str) -> str:
    return browser.run(f"document.querySelector({json.dumps(selector)}).textContent")


def choose(browser, field: str, value: object) -> None:
    """Pick what a select of the settings offers."""
    option = json.dumps(json.dumps(value, ensure_ascii=False))
    browser.run(
        f"(() => {{ const box = document.getElementById({json.dumps(field)}); box.value = {option}; "
        "box.dispatchEvent(new Event('change')); })()"
    )


def test_every_page_opens_from_disk_and_nothing_is_fetched_or_refused(opened):
    browser = opened("0")
    contents = browser.run("[...document.querySelectorAll('nav a')].map(a => a.hash.slice(1))")
    assert contents == [
        "0",
        "1",
        "2",
        "3",
        "3a",
        "4",
        "4a",
        "4b",
        "4c",
        "4d",
        "5",
        "5a",
        "5b",
        "6",
        "7",
        "8",
        "9",
        "10",
    ]
    for key in contents[1:]:
        browser.run(f"location.hash = {json.dumps(key)}")
        until(browser, f"document.querySelector('nav a[aria-current]').hash === '#{key}'")
        assert text_of(browser, "h1").endswith("?")
        assert browser.run("document.querySelector('#trouble').hidden")
        assert browser.run("document.querySelectorAll('.equal.not').length") == 0
    asked = [event["request"]["url"] for event in browser.heard("Network.requestWillBeSent")]
    assert {url.split("#")[0] for url in asked if not url.startswith("data:")} == {
        browser.run("location.href.split('#')[0]")
    }
    assert browser.heard("Runtime.exceptionThrown") == []
    assert [e["entry"]["text"] for e in browser.heard("Log.entryAdded")] == []


def test_keys_buttons_and_links_turn_pages(opened):
    browser = opened("1")
    browser.press("ArrowRight")
    until(browser, "location.hash === '#2' && document.querySelector('h1').textContent.includes('matrix product')")
    assert browser.run("document.activeElement.id") == "question"
    browser.press("ArrowLeft")
    until(browser, "location.hash === '#1' && document.querySelector('h1').textContent.includes('hear from')")
    assert text_of(browser, "#next") == "One matrix product →"
    browser.click("#next")
    until(browser, "location.hash === '#2'")
    browser.click("nav a[href='#4b']")
    until(browser, "document.querySelector('h1').textContent.includes('minus infinity')")
    assert text_of(browser, "#back") == "← Aside: why √D"


def test_numbers_are_the_ladders_and_follow_the_settings(opened):
    browser = opened("4")
    shown = browser.run("[...document.querySelectorAll('.grid')].map(g => g.querySelector('b').textContent)")
    assert shown == ["four.scores[0]", "four.masked[0]", "four.weights[0]", "four.out[0]"]
    rows = browser.run(
        "[...[...document.querySelectorAll('.grid')][2].querySelector('table').tBodies[0].rows].map(r => "
        "[...r.querySelectorAll('td')].map(c => c.textContent))"
    )
    assert rows[7] == ["0.0845", "0.1197", "0.1078", "0.1537", "0.1086", "0.1146", "0.1558", "0.1553"]
    choose(browser, "seed", 42)
    until(browser, "document.getElementById('said').textContent === 'computed again'")
    four = single_head(*projected(seed=42))
    again = browser.run(
        "[...document.querySelectorAll('.grid')][2].querySelector('table').tBodies[0].rows[7].textContent"
    )
    assert again == "7" + "".join(f"{w:.4f}" for w in four.weights[0, 7].tolist())
    choose(browser, "text", "The cat sat.")
    until(browser, "document.querySelector('.grid th[scope=row]').textContent === 'The'")
    assert browser.run("document.getElementById('time').disabled")
    choose(browser, "text", None)
    until(browser, "document.querySelector('.grid th[scope=row]').textContent === '0'")
    choose(browser, "time", 4)
    until(browser, "document.querySelectorAll('.grid')[0].querySelector('table').tBodies[0].rows.length === 4")


def test_pointing_at_a_weight_shows_its_query_key_product_and_score(opened):
    browser = opened("4")
    readout = ".try .readout"
    four = single_head(*projected())
    at = ".try table.m tbody tr:nth-child(6) td:nth-of-type(3)"  # query 5, key 2
    browser.run(
        f"document.querySelector({json.dumps(at)}).dispatchEvent(new PointerEvent('pointerover', {{ bubbles: true }}))"
    )
    said = text_of(browser, readout)
    assert said.startswith("Token 5 asks, token 2 answers.")
    dot = float((four.q[0, 5] @ four.k[0, 2]).detach())
    assert f"The products add up to {dot:.4f}"[:-2] in said  # from numbers of four decimals
    assert f"the score {float(four.scores[0, 5, 2].detach()):.4f}" in said
    assert f"the weight is {float(four.weights[0, 5, 2].detach()):.4f}" in said
    assert browser.run("document.querySelectorAll('.try .strip').length") == 3
    assert browser.run("document.querySelectorAll('.try .strip i').length") == 3 * 16
    assert browser.run("document.querySelectorAll('.try table.m .pointed').length") == 3  # the cell and its two names
    # By keyboard, and spoken.
    browser.run("document.querySelector('.try table.m tbody td').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        browser.press(key)
    assert text_of(browser, readout).startswith("Token 2 asks, token 1 answers.")
    assert text_of(browser, "#said").startswith("Query 2, key 1: product")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert "But token 3 is the future of token 2: the mask puts -inf in its place" in text_of(browser, readout)
    assert browser.run("location.hash") == "#4"  # arrows inside a matrix turn no page


def slide(browser, value: int, box: int = 0) -> None:
    """Move the slider of the page's n-th thing to play with."""
    browser.run(
        f"(() => {{ const r = document.querySelectorAll('.try')[{box}].querySelector('input[type=range]'); "
        f"r.value = {value}; r.dispatchEvent(new Event('input')); }})()"
    )


def push(browser, text: str, what: str = "button") -> None:
    """Click the button, or the choice, that reads so."""
    of = {"button": ".try button", "choice": "fieldset label"}[what]
    browser.run(f"[...document.querySelectorAll('{of}')].find(b => b.textContent === {json.dumps(text)}).click()")


def test_moving_the_edge_of_the_future_shows_the_leak(opened):
    browser = opened("4")
    leaks = "[...document.querySelectorAll('.bars .leak')].length"
    words = "[...document.querySelectorAll('.try')][1].querySelectorAll('p')[1].textContent"
    assert browser.run(leaks) == 0
    slide(browser, 2, 1)
    assert browser.run(leaks) == 2  # tokens 5 and 6 see token 7
    assert "every token sees 2 tokens of its future. 2 of 7 earlier tokens hear the last one: a leak." in browser.run(
        words
    )
    push(browser, "Mask off")
    assert browser.run(leaks) == 7
    push(browser, "Only the past")
    assert browser.run(leaks) == 0
    # Dragged on the matrix itself: from the diagonal three cells into the future.
    x, y = browser.run(
        "(() => { const t = document.querySelector('table.drag'); t.scrollIntoView({ block: 'center' }); "
        "const c = t.tBodies[0].rows[1].querySelectorAll('td')[4].getBoundingClientRect(); "
        "return [c.left + c.width / 2, c.top + c.height / 2]; })()"
    )
    browser.send("Input.dispatchMouseEvent", type="mousePressed", x=x, y=y, button="left", buttons=1, clickCount=1)
    browser.send("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)
    assert browser.run(words).startswith("Edge 3:")
    slide(browser, -1, 1)
    assert "the first sees nothing, and gets 0" in browser.run(words)


def test_scales_sharpen_and_flatten(opened):
    browser = opened("4a")
    facts = "document.querySelector('.try .readout').textContent"

    def pick(text: str) -> str:
        push(browser, text, "choice")
        return browser.run(facts)

    assert "predicted D·c² = 1.000." in browser.run(facts)
    assert "predicted D·c² = 64.000." in pick("1")
    sharp = browser.run("document.querySelector('.bars u').style.width")
    assert "predicted D·c² = 0.016." in pick("1/D")
    flat = browser.run("document.querySelector('.bars u').style.width")
    assert float(sharp.rstrip("%")) > 60 > 15 > float(flat.rstrip("%"))
    assert "predicted D·c² = 0.004." in pick("256")
    assert "The commonest mistake" in pick("1/√C, C = 4·D")


def test_tiles_pass_one_by_one_and_the_future_is_never_made(opened):
    browser = opened("6")
    step = "[...document.querySelectorAll('.try .controls output')][0].textContent"
    assert browser.run(step) == "1 of 3"
    assert browser.run("document.querySelectorAll('td.never').length") == 16
    assert browser.run("document.querySelectorAll('td.now').length") == 16
    slide(browser, 2)
    assert browser.run(step) == "3 of 3"
    carried = browser.run(
        "[...document.querySelector('.try table').tBodies[0].rows[7].querySelectorAll('.carry')].map(c => c.textContent)"
    )
    five = Settings().heads
    row = five.masked[0, 0, 7]
    assert carried == [f"{float(row.max()):.3f}", f"{float((row - row.max()).exp().sum()):.3f}"]
    assert "Queries 4 to 7, keys 4 to 7." in text_of(browser, "#said")
    push(browser, "2", "choice")
    assert browser.run(step) == "1 of 10"
    assert browser.run(
        "[...document.querySelectorAll('.try button')].find(b => b.textContent === 'Play').hidden"
    )  # less motion


def test_the_cache_grows_row_by_row(opened):
    browser = opened("7")
    for t in (0, 4, 7):
        slide(browser, t)
        sizes = browser.run("[...document.querySelectorAll('.try table')].map(t => t.tBodies[0].rows.length)")
        assert sizes == [t + 1, t + 1]
        assert f"its query meets {t + 1} key" in text_of(browser, "#said")


def test_with_motion_tiles_play_by_themselves_and_stop(browser, written):
    browser.open(f"{written.as_uri()}#6")
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "no-preference"}])
    browser.run("location.hash = '7'")
    until(browser, "document.querySelector('h1').textContent.includes('one token at a time')")
    push(browser, "Play")
    until(browser, "document.querySelector('.try input[type=range]').value === '4'")
    push(browser, "Pause")
    assert browser.run("[...document.querySelectorAll('.try button')].some(b => b.textContent === 'Play')")


def test_the_theme_follows_the_system_and_switches(opened):
    browser = opened("2", "light")
    assert browser.run("document.documentElement.dataset.theme") == "light"
    paper = browser.run("getComputedStyle(document.querySelector('table.m td')).backgroundColor")
    browser.click("#theme")
    until(browser, "document.documentElement.dataset.theme === 'dark'")
    assert browser.run("getComputedStyle(document.body).color") == "rgb(232, 236, 242)"
    assert paper is not None


def test_what_is_played_with_stays_as_it_is_when_the_theme_turns(opened):
    browser = opened("7", "light")
    weights = "[...document.querySelectorAll('.try .grid')].at(-1)"
    colour = f"getComputedStyle({weights}.querySelector('tbody td')).backgroundColor"  # token 0 looks at itself alone
    slide(browser, 4)
    before = browser.run(colour)
    browser.click("#theme")
    until(browser, f"{colour} !== {json.dumps(before)}")
    assert browser.run(f"{weights}.querySelectorAll('tbody tr').length") == 5


@pytest.mark.parametrize("width", [360, 760, 1400])
@pytest.mark.parametrize("key", ["0", "4", "6", "8", "9"])
def test_nothing_sticks_out_at_any_width(opened, width, key):
    browser = opened(key)
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.run("document.documentElement.scrollWidth") <= width
    browser.send("Emulation.clearDeviceMetricsOverride")


def test_hostile_words_stay_words(opened):
    browser = opened("4")
    choose(browser, "text", HOSTILE)
    until(browser, "document.querySelector('.grid th[scope=row]').textContent === '<'")
    for key in ("6", "9"):
        browser.run(f"location.hash = {json.dumps(key)}")
        until(browser, f"document.querySelector('nav a[aria-current]').hash === '#{key}'")
    assert browser.run("typeof hit") == "undefined"
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert "‹U+202E›" in browser.run("document.body.textContent")


def test_the_policy_stops_what_is_not_the_pages_own(opened):
    browser = opened("1")
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'hit = 1'; document.body.append(s); })()"
    )
    assert browser.run("typeof hit") == "undefined"
    assert browser.run("fetch('data:,x').then(() => 'fetched', () => 'refused')") == "refused"


def test_everything_that_can_be_used_has_a_name(opened):
    for key in ("0", "4", "6"):
        browser = opened(key)
        nameless = browser.run(
            "[...document.querySelectorAll('button, input, select, table[role=grid], svg[role=img], a')].filter(e => !e.hidden "
            "&& !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length || e.title)).map(e => e.outerHTML)"
        )
        assert nameless == []
        stops = browser.run(
            "[...document.querySelectorAll('[role=grid]')].map(g => g.querySelectorAll('td[tabindex=\"0\"]').length)"
        )
        assert set(stops) <= {1}  # one stop for Tab in each matrix


def test_the_server_computes_what_the_reader_asks_for(browser):
    with server(Settings(time=5)) as started:
        browser.open(started.address("lesson/") + "&page=4")
        until(browser, "document.querySelectorAll('.grid').length > 0")
        assert browser.run("location.hash") == "#4"  # the token is gone from the address
        assert browser.run("document.querySelector('.grid table').tBodies[0].rows.length") == 5
        browser.run("document.getElementById('text').value = 'The owl saw the moon.'")
        browser.run("document.getElementById('text').dispatchEvent(new Event('input'))")
        browser.click("#settings button")
        until(browser, "document.querySelector('.grid th[scope=row]').textContent === 'The'")
        assert browser.run(
            "[...document.querySelectorAll('.grid')[0].querySelectorAll('tbody th')].map(h => h.textContent)"
        ) == (["The", "owl", "saw", "the", "moon", "."])
        browser.run("document.getElementById('text').value = 'word '.repeat(70)")
        browser.click("#settings button")
        until(browser, "!document.querySelector('#trouble').hidden")
        assert text_of(browser, "#trouble") == "text: expected 1 to 64 words, got 70. Give a shorter one."
        browser.run("location.reload()")
        until(browser, "document.querySelectorAll('.grid').length > 0")  # the key is kept in this tab
        assert browser.heard("Runtime.exceptionThrown") == []
        refused = [
            e["entry"]["text"] for e in browser.heard("Log.entryAdded") if "Content Security" in e["entry"]["text"]
        ]
        assert refused == []
