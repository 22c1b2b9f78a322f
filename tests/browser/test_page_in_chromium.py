"""The page in a real browser: what a person clicks and presses, and what is shown then."""

from __future__ import annotations

import importlib
import os
import re

import pytest

from clearhead.viewer import page
from views import ROLES, planted_view, twice

REQUIRED = os.environ.get("CI") == "true"  # there, a browser that is missing is a failure and not a reason to look away
# The module needs websocket-client.
chromium = importlib.import_module("chromium") if REQUIRED else pytest.importorskip("chromium")

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.PATH is None and not REQUIRED, reason="there is no Chromium here"),
]

HOSTILE = [
    "<|start|>",
    "<script>hit=1</script>",
    "</script>",
    "<img·src=x·onerror=hit=1>",
    "\"'`${hit=1}",
    "&lt;",
    "‹U+202E›",
    "·a",
    "↵",
    "·",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    started = chromium.Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture
def opened(browser, tmp_path):
    def open_view(view, where: str = "", scheme: str = "dark", **given: object):
        file = tmp_path / "page.html"
        file.write_text(page(view, **given), encoding="utf-8")
        browser.open(file.as_uri() + where, scheme=scheme)
        return browser

    return open_view


def text_of(browser, selector: str) -> str:
    return browser.run(f"document.querySelector({selector!r}).textContent")


def rows_of(browser, table: str) -> list[list[str]]:
    return browser.run(
        f"[...document.querySelectorAll('#{table} tbody tr')].map(r => [...r.children].map(c => c.textContent))"
    )


def thumb(role: str, layer: int = 0) -> str:
    return f".thumb[aria-label^='L{layer}H{ROLES.index(role)},']"


def option(n: int) -> str:
    return f"#text [data-at='{n}']"


def test_every_head_has_a_thumbnail_with_its_role(opened):
    browser = opened(planted_view(twice(10)))
    labels = browser.run("[...document.querySelectorAll('.thumb')].map(b => b.getAttribute('aria-label'))")
    assert len(labels) == 12
    for n, role in enumerate(ROLES):
        assert labels[n].startswith(f"L0H{n}, {role} ")
    drawn = browser.run(
        "[...document.querySelectorAll('.thumb canvas')].every(c => "
        "c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(x => x > 0))"
    )
    assert drawn


def test_clicking_a_head_shows_its_map_and_its_scores(opened):
    browser = opened(planted_view(twice(10)))
    browser.click(thumb("duplicate-token", 1))
    assert text_of(browser, "#head-title") == "L1H2 · duplicate-token"
    scores = {re.sub(r" ✓$", "", name): (score, null) for name, score, null in rows_of(browser, "roles")}
    assert scores["duplicate-token"][0] == "1.00"
    assert float(scores["duplicate-token"][1]) < 0.1
    assert scores["induction"][0] == "0.00"
    assert browser.run("document.querySelectorAll('.thumb[aria-pressed=true]').length") == 1
    # The large map: token 15 looks at token 5, where its first copy stands.
    cell = "[...document.querySelector('#big').getContext('2d').getImageData({}, 15, 1, 1).data]"
    assert sum(browser.run(cell.format(5))[:3]) > 600
    assert sum(browser.run(cell.format(6))[:3]) < 300
    assert browser.run(cell.format(16))[3] == 0  # what may not be seen is not drawn


def test_clicking_a_token_shows_where_it_looks_and_who_looks_at_it(opened):
    browser = opened(planted_view(twice(10)))
    browser.click(thumb("previous-token"))
    browser.click(option(7))
    assert rows_of(browser, "looks")[0] == ["·w6", "6", "100 %"]
    assert rows_of(browser, "looked")[0] == ["·w8", "8", "100 %"]
    assert "“·w7”, through L0H0 looks most at “·w6”" in text_of(browser, "#said")
    assert "received in all" in text_of(browser, "#looked caption")
    shade = "getComputedStyle(document.querySelector(\"#text [data-at='{}']\")).backgroundColor"
    assert browser.run(shade.format(6)) == "rgb(253, 244, 188)"
    assert browser.run(f"document.querySelector(\"{option(6)}\").getAttribute('aria-label')") == "·w6, token 6, 100 %"
    browser.click("#from")
    assert browser.run(shade.format(8)) == "rgb(253, 244, 188)"
    assert browser.run(shade.format(6)) != "rgb(253, 244, 188)"


def test_keys_move_between_tokens_and_between_heads(opened):
    browser = opened(planted_view(twice(10)))
    browser.click(option(7))
    for key, token in (("ArrowRight", 8), ("ArrowLeft", 7), ("Home", 0), ("End", 19), ("ArrowRight", 19)):
        browser.press(key)
        assert browser.run("document.activeElement.dataset.at") == str(token)
        assert browser.run("document.querySelector('[aria-selected=true]').dataset.at") == str(token)
    browser.click(thumb("previous-token"))
    browser.press("ArrowDown")
    browser.press("ArrowRight")
    assert text_of(browser, "#head-title").startswith("L1H1")
    assert browser.run("document.activeElement.getAttribute('aria-label')").startswith("L1H1")
    # One stop for all tokens and one for all heads: Tab passes them by.
    assert browser.run("document.querySelectorAll('[role=option][tabindex=\"0\"]').length") == 1
    assert browser.run("document.querySelectorAll('.thumb[tabindex=\"0\"]').length") == 1


@pytest.mark.parametrize("ending", ["", "#L9H9/999", "#<img src=x onerror=hit=1>", "#L1H3/4"])
def test_hostile_tokens_and_addresses_stay_text(opened, ending):
    browser = opened(planted_view(list(range(len(HOSTILE))), HOSTILE), where=ending)
    for n, piece in enumerate(HOSTILE):
        browser.click(option(n))
        assert f"Token {n}, “{piece}”," in text_of(browser, "#said")
    assert browser.run("typeof hit") == "undefined"
    assert browser.run("document.querySelectorAll('img, script:not([type])').length") == 1  # the page's own script
    shown = browser.run("[...document.querySelectorAll('#text [role=option]')].map(o => o.textContent)")
    assert shown == [piece.replace("·", " ").strip() or "·" for piece in HOSTILE]


def test_nothing_is_fetched_and_nothing_is_refused(opened):
    browser = opened(planted_view(twice(10)))
    browser.click(option(3))
    asked = [event["request"]["url"] for event in browser.heard("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [browser.run("location.href.split('#')[0]")]
    assert browser.heard("Runtime.exceptionThrown") == []
    assert [e["entry"]["text"] for e in browser.heard("Log.entryAdded")] == []  # a refusal of the policy would be here


def test_the_policy_stops_what_is_not_the_pages_own(opened):
    browser = opened(planted_view(twice(10)))
    browser.run(
        "(() => { const s = document.createElement('script'); s.textContent = 'hit = 1'; document.body.append(s); })()"
    )
    assert browser.run("typeof hit") == "undefined"
    assert browser.run("fetch('data:,x').then(() => 'fetched', () => 'refused')") == "refused"


def test_written_tokens_are_marked_off(opened):
    browser = opened(planted_view(twice(10), prompt=15))
    assert browser.run("document.querySelectorAll('#text .wrote').length") == 5
    assert text_of(browser, "#text .mark") == "written by the model"
    assert (
        browser.run(
            "document.querySelector('#text .mark').nextElementSibling.dataset.at ?? "
            "document.querySelector('#text .mark').nextSibling.nextElementSibling.dataset.at"
        )
        == "15"
    )
    assert browser.run("document.querySelector('#wrote-row').style.top") == "75%"
    assert "15 + 5 written" in text_of(browser, "#facts")


def test_the_first_token_can_be_left_out(opened):
    browser = opened(planted_view(twice(10)))
    browser.click(thumb("first-token"))
    cell = "document.querySelector('#big').getContext('2d').getImageData(0, 12, 1, 1).data[3]"
    assert browser.run(cell) == 255
    browser.click("#nofirst")
    assert browser.run(cell) == 0
    assert browser.run(f'document.querySelector("{option(0)}").style.background') == ""


def test_the_address_remembers_and_the_theme_follows_and_switches(opened):
    browser = opened(planted_view(twice(10)), where="#L1H3/4", scheme="light")
    assert text_of(browser, "#head-title").startswith("L1H3")
    assert "Token 4," in text_of(browser, "#said")
    assert browser.run("document.documentElement.dataset.theme") == "light"
    browser.click("#theme")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    browser.click(option(6))
    assert browser.run("location.hash") == "#L1H3/6"


@pytest.mark.parametrize("width", [360, 760, 1400])
def test_nothing_sticks_out_at_any_width(opened, width):
    browser = opened(planted_view(twice(10), [f"·word{i}" * 3 for i in twice(10)]))
    browser.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
    assert browser.run("document.documentElement.scrollWidth") <= width
    browser.send("Emulation.clearDeviceMetricsOverride")


def test_one_token_alone_is_shown(opened):
    browser = opened(planted_view([0]))
    assert rows_of(browser, "looks") == [["·w0", "0", "100 %"]]
    assert browser.heard("Runtime.exceptionThrown") == []


def test_weights_next_to_nothing_are_not_shaded(opened):
    """A ground for every weight of 0.0001 would make the whole text look attended to."""
    browser = opened(planted_view(twice(10)))
    browser.click(thumb("previous-token"))
    browser.click(option(7))
    shaded = browser.run(
        "[...document.querySelectorAll('#text [role=option]')].filter(o => o.style.background).map(o => o.dataset.at)"
    )
    assert shaded == ["6"]


def test_a_table_without_rows_has_no_head(opened):
    browser = opened(planted_view(twice(10)))
    browser.click(thumb("previous-token"))
    browser.click(option(19))
    assert rows_of(browser, "looked") == []
    assert browser.run("document.querySelector('#looked').tHead.hidden") is True
    assert browser.run("document.querySelector('#looks').tHead.hidden") is False
