"""Reading pages in the browser as a person would, for the tests of the viewer."""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path

import pytest

REQUIRED = os.environ.get("CI") == "true"  # there, a browser that is missing is a failure and not a reason to look away
# The module needs websocket-client.
chromium = importlib.import_module("chromium") if REQUIRED else pytest.importorskip("chromium")

MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium.PATH is None and not REQUIRED, reason="there is no Chromium here"),
]

# The cells of a table that was opened or stands by itself, once it has any.
ROWS = """(rows => rows.length && rows)([...document.querySelectorAll('{} tbody tr')]
  .map(r => [...r.children].map(c => c.textContent)))"""
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
RUN_AXE = """axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations
  .filter((v) => ['serious', 'critical'].includes(v.impact))
  .map((v) => [v.id, v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + ' ' + n.failureSummary)]))"""
STICKS_OUT = """[...document.querySelectorAll('main *')]
  .filter((e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, .flow'))
  .slice(0, 3).map((e) => e.outerHTML.slice(0, 120))"""
HOSTILE = [
    "<|start|>", "<script>hit=1</script>", "</script>", '"><img·src=x·onerror=hit=1>', "\"'`${hit=1}", "&lt;", "‹U+202E›",
    "\u202eabc", "שלום", "e\u0301\u0301\u0301", "👩‍👩‍👧", "\x00", "=1+1", "·a", "↵", "·", "{{x}}", "javascript:hit=1",
]  # fmt: skip


def is_accessible(chrome) -> None:
    """axe finds nothing serious on the page as it stands, everything unfolded, in the light and in the dark."""
    chrome.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    time.sleep(0.2)
    chrome.run(AXE + "; 1")
    for turn in ("Light colours", "Dark colours"):
        assert chrome.run(RUN_AXE) == []
        chrome.click_on("button", turn)
        chrome.until("!document.querySelector('main [aria-busy=true]')")


def fits_every_width(chrome) -> None:
    """Nothing sticks out of the page, or out of what stands beside it."""
    try:
        for width in (360, 760, 1280):
            chrome.send(
                "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
            )
            time.sleep(0.15)
            assert chrome.run("document.documentElement.scrollWidth") <= width, chrome.run(STICKS_OUT)
            inside = chrome.run("(a => a ? a.scrollWidth - a.clientWidth : 0)(document.querySelector('aside'))")
            assert inside <= 0
    finally:
        chrome.send("Emulation.clearDeviceMetricsOverride")


def quiet(chrome) -> None:
    assert chrome.heard("Runtime.exceptionThrown") == []
    said = [entry["entry"] for entry in chrome.heard("Log.entryAdded")]
    assert [entry["text"] for entry in said if entry["level"] in ("error", "warning")] == []
    assert chrome.heard("Runtime.consoleAPICalled") == []
    asked = [request["request"]["url"] for request in chrome.heard("Network.requestWillBeSent")]
    elsewhere = [url for url in asked if not url.startswith(("http://127.0.0.1:", "data:", "blob:", "file:", "about:"))]
    assert elsewhere == []


def shown_weight(x: float) -> str:
    """A weight as the page writes it: six places, or four digits where it is tiny."""
    if x == 0:
        return "0"
    if abs(x) >= 1e-4:
        return f"{x:.6f}".replace("-", "−")
    digits, power = f"{x:.3e}".split("e")
    return f"{digits}e{int(power)}".replace("-", "−", 1) if x < 0 else f"{digits}e{int(power)}"


def text_of(chrome, selector: str) -> str:
    return chrome.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")


def rows_of(chrome, selector: str) -> list[list[str]]:
    return chrome.run(ROWS.format(selector)) or []


def percent(x: float) -> str:
    return (
        "100 %" if x >= 0.9995 else f"{100 * x:.1f} %" if x >= 0.1 else "< 0.01 %" if x < 5e-5 else f"{100 * x:.2f} %"
    )
