"""The documentation as a site: every page in it, every link right, and it opens from disk and fetches nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from reading import AXE, MARKS, RUN_AXE

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it: a broken link or anchor stops it."""
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(words, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not run.stdout + run.stderr
    return folder


def test_every_page_is_in_the_navigation(site):
    first = (site / "index.html").read_text(encoding="utf-8")
    linked = set(re.findall(r'<a href="([^"#]+)" class="md-nav__link', first))
    written = {
        page.relative_to(ROOT / "docs").with_suffix(".html").as_posix() for page in (ROOT / "docs").rglob("*.md")
    }
    assert written - {"index.html"} <= linked, f"not in the navigation: {sorted(written - linked)}"


def test_links_to_the_source_lead_to_pages_that_show_it(site):
    page = (site / "explanation" / "ladder.html").read_text(encoding="utf-8")
    target = re.search(r'href="([^"]*rung1_mean_by_loop[^"]*)"', page)
    assert target
    assert "def mean_by_loop" in re.sub("<[^>]*>", "", (site / "explanation" / target[1]).resolve().read_text("utf-8"))


def test_no_page_names_a_file_that_lies_elsewhere(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text("utf-8"))
        assert not fetched, f"{page.name} fetches {fetched}"


def in_chromium(test):
    """For tests that need the browser; the others of this file do not."""
    for mark in MARKS:
        test = mark(test)
    return test


@in_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", ["index.html", "how-to/observe.html", "reference/library/observing.html"])
def test_axe_finds_no_serious_violation(site, chrome, page, scheme):
    chrome.open((site / page).as_uri(), scheme=scheme)
    chrome.run(f"{AXE};0")
    found = chrome.run(RUN_AXE)
    # The theme makes wide code reachable by keyboard where there is a pointer that hovers; a headless browser has none.
    assert [each for each in found if each[0] != "scrollable-region-focusable"] == []


@in_chromium
@pytest.mark.parametrize("width", [1280, 400])
def test_it_opens_from_disk_is_searched_and_fetches_nothing(site, chrome, width):
    chrome.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    for page in ("reference/library/observing.html", "index.html"):
        chrome.open((site / page).as_uri())
        wide, window = chrome.run("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= window, f"{page} is {wide} wide in a window of {window}"
    if width < 600:
        chrome.click("label.md-header__button[for=__search]")
    field = "document.querySelector('.md-search__input')"
    chrome.until(f"({field}.focus(), document.activeElement === {field})")
    found = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
    for text, page in (
        ("entropy_share", "how-to/observe.html"),
        ("allclose", "scale.html"),
    ):  # the second part of a name
        chrome.run(f"{field}.select()")
        chrome.send("Input.insertText", text=text)
        chrome.press("Shift")  # the page searches when a key is let go
        chrome.until(f"{found}.some((link) => link.includes('{page}'))")
    asked = [event["request"]["url"] for event in chrome.heard("Network.requestWillBeSent")]
    assert len(asked) > 3
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
    assert not chrome.heard("Runtime.exceptionThrown")
    chrome.send("Emulation.clearDeviceMetricsOverride")
