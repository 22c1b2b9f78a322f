"""The page as text: what it holds, what it may do, and that nothing in it came from a token as markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys

import numpy as np
import pytest

from clearhead.errors import InputError
from clearhead.trace import Head
from clearhead.viewer import page
from planted import previous
from views import planted_view, twice

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><b>',
    "&amp;",
    "{{script}}",
    "\\u003c",
]


def data_of(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def array(text: str, dtype: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=dtype)


def element(html: str, name: str) -> str:
    return re.search(rf"<{name}>(.*?)</{name}>", html, re.DOTALL)[1]


@pytest.mark.tiny
def test_the_page_stands_alone():
    html = page(planted_view(twice(8)))
    assert html.startswith("<!doctype html>")
    assert not re.search(r"https?://|@import|url\(|<link(?![^>]*href=\"data:)|<script[^>]*src|<img|<iframe", html)
    assert not re.search(r"\{\{\w+\}\}", html)


def test_the_policy_allows_this_script_and_this_style_and_nothing_else():
    html = page(planted_view(twice(8)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind, name in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(element(html, name).encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy


def test_tokens_are_data_and_never_markup():
    view = planted_view(list(range(len(HOSTILE))), HOSTILE)
    html = page(view)
    assert data_of(html)["tokens"] == HOSTILE
    for piece in ("<img src=x", "alert(1)", '"><b>'):
        outside = html.replace(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1], "")
        assert piece not in outside
    assert html.count("<script") == 2  # the data and the page's own


def test_keys_and_weights_are_those_observed():
    view = planted_view(twice(10), top_k=4)
    data = data_of(page(view))
    assert data["kept"] == 4
    for head in data["heads"]:
        seen = view.trace.observation(head["layer"])
        keys = array(head["keys"], "<u2").astype(np.int64).reshape(20, 4)
        keys[keys == 0xFFFF] = -1
        assert (keys == seen.top_keys[0, head["head"]].numpy()).all()
        weights = array(head["weights"], "<f4").reshape(20, 4)
        assert (weights == seen.top_weights[0, head["head"]].numpy()).all()
        cells = (array(head["map"], "<u2").reshape(head["shape"]) / 0xFFFF) ** 2
        np.testing.assert_allclose(cells, seen.map_mean[0, head["head"]].numpy(), atol=2e-5)
        assert array(head["received"], "<f4").sum() == pytest.approx(20, rel=1e-4)


def test_a_page_that_would_be_too_large_keeps_fewer_keys_and_says_so(monkeypatch):
    monkeypatch.setattr(sys.modules["clearhead.viewer.page"], "BUDGET", 12 * 20 * 6 * 3)
    assert data_of(page(planted_view(twice(10))))["kept"] == 3


def test_a_text_read_in_part_says_so_on_the_page():
    assert data_of(page(planted_view(twice(8))))["part"] is None
    data = data_of(page(planted_view(twice(8), total=99)))
    assert data["part"] == "read tokens 0 to 15 of the text's 99: the context is 1024 tokens; --start 16 reads on"


def test_the_head_shown_first_is_the_one_asked_for_or_the_most_telling():
    view = planted_view(twice(8))
    assert data_of(page(view))["head"] == "L0H1"  # induction, of all planted roles
    assert data_of(page(view, head=Head(1, 3), query=5))["head"] == "L1H3"
    assert data_of(page(view, head=Head(1, 3), query=5))["query"] == 5
    with pytest.raises(InputError, match="head L7H0: no such head"):
        page(view, head=Head(7, 0))
    with pytest.raises(InputError, match="token 16: there are 16 tokens"):
        page(view, query=16)


def test_scores_that_no_token_can_show_are_null():
    data = data_of(page(planted_view([0], heads=[previous], layers=1)))
    assert {r["role"]: r["score"] for r in data["heads"][0]["roles"]}["induction"] is None
