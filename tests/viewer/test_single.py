"""The single file as text: what it holds, what it may do, what was left out, and that no token in it is markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re

import numpy as np
import pytest

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.viewer import page, single
from clearhead.viewer.packed import Answer, unpack
from views import kept_shown, planted_shown, planted_view, twice

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><b>',
    "&amp;",
    "{policy}",
    "{{script}}",
    "\\u003c",
]


def data_of(html: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1])


def pack(html: str, name: str) -> Answer:
    return unpack(gzip.decompress(base64.b64decode(data_of(html)["packs"][name])))


@pytest.fixture(scope="module")
def kept():
    return kept_shown()


@pytest.mark.tiny
def test_the_page_stands_alone():
    html = single(planted_shown(twice(8)))
    assert html.startswith("<!doctype html>")
    assert not re.search(r"https?://|@import|url\(|<link(?![^>]*href=\"data:)|<script[^>]*src|<img|<iframe", html)
    assert "{policy}" not in html


def test_the_policy_allows_this_script_and_this_style_and_nothing_else():
    html = single(planted_shown(twice(8)))
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "connect-src" not in policy
    for kind, tag, name in (("script-src", '<script type="module">', "script"), ("style-src", "<style>", "style")):
        body = html.partition(tag)[2].partition(f"</{name}>")[0]
        assert f"{kind} 'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in policy


def test_tokens_are_data_and_never_markup():
    html = single(planted_shown(list(range(len(HOSTILE))), HOSTILE))
    shown = data_of(html)["document"]["tokens"]
    assert [piece.replace("·", " ") for piece in shown] == HOSTILE
    outside = html.replace(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1], "")
    for piece in ("<img src=x", "alert(1)", '"><b>'):
        assert piece not in outside
    assert html.count("<script") == 2  # the data and the page's own


def test_with_room_every_weight_of_every_head_is_exact(kept):
    html = single(kept)
    document = data_of(html)["document"]
    assert document["exact_heads"] == [str(head) for head in sorted(kept.heads, key=lambda h: h != kept.notable())]
    assert document["left_out"] == []
    for head in kept.heads:
        weights = pack(html, f"exact {head}").arrays["weights"]
        want = kept.pattern(head).crop(slice(None), slice(None))[0, 0].numpy()
        np.testing.assert_array_equal(np.maximum(weights, 0), want)
        np.testing.assert_array_equal(weights < 0, np.triu(np.ones((300, 300), dtype=bool), 1))  # what may not be seen


def test_weights_of_texts_whose_keys_were_all_kept_are_exact_too():
    shown = planted_shown(twice(4), top_k=8)
    weights = pack(single(shown), "exact L0H1").arrays["weights"]
    seen = shown.trace.observation(0)
    for i in range(8):
        want = np.full(8, -1, dtype=np.float32)
        for key, weight in zip(seen.top_keys[0, 1, i].tolist(), seen.top_weights[0, 1, i].tolist(), strict=True):
            if key >= 0:
                want[key] = weight
        np.testing.assert_array_equal(weights[i], want)


def test_with_less_room_chosen_heads_stay_exact_and_the_rest_keeps_its_largest_weights(kept):
    html = single(kept, heads=[Head(1, 2)], most=0.8)
    assert len(html) <= 800_000
    document = data_of(html)["document"]
    assert document["notable"] == "L1H2"
    assert document["exact_heads"][0] == "L1H2"
    assert len(document["exact_heads"]) < 6
    said = f"Exact weights are here of {len(document['exact_heads'])} of 6 heads"
    assert document["left_out"][-1].startswith(said)
    arrays = pack(html, "kept").arrays
    k = arrays["L0H0 keys"].shape[1]
    assert f"; of the others, the {k} largest weights of every token." in document["left_out"][-1]
    seen = kept.trace.observation(0)
    np.testing.assert_array_equal(arrays["L0H0 weights"], seen.top_weights[0, 0, :, :k].numpy())
    keys = arrays["L0H0 keys"].astype(np.int64)
    np.testing.assert_array_equal(np.where(keys == 0xFFFF, -1, keys), seen.top_keys[0, 0, :, :k].numpy())
    assert set(pack(html, "maps mean").arrays) == {str(head) for head in kept.heads}  # maps stay


@pytest.mark.parametrize("most", [0.25, 0.3, 0.4, 0.6, 1.0])
def test_the_size_is_bounded_whatever_it_is(kept, most):
    assert len(single(kept, most=most)) <= most * 1e6


def test_too_little_room_for_the_maps_is_refused(kept):
    told = r"--max-mb 0.1: the maps and scores of 6 heads do not fit; (\d+) is enough for them"
    with pytest.raises(InputError, match=told) as refused:
        single(kept, most=0.1)
    single(kept, most=int(re.search(told, str(refused.value))[1]))


def test_maps_are_those_observed(kept):
    cells = pack(single(kept), "maps mean").arrays["L1H0"]
    want = kept.trace.observation(1).map_mean[0, 0].numpy()
    np.testing.assert_allclose((cells / 0xFFFF) ** 2, want, atol=2e-5)


def test_a_text_read_in_part_says_so_on_the_page():
    assert data_of(page(planted_view(twice(8))))["document"]["part"] is None
    part = data_of(page(planted_view(twice(8), total=99)))["document"]["part"]
    assert part == "read tokens 0 to 15 of the text's 99: the context is 1024 tokens; --start 16 reads on"


def test_what_is_open_first_is_what_was_asked_for_or_the_most_telling():
    view = planted_view(twice(8))
    assert data_of(page(view))["document"]["notable"] == "L0H1"  # induction, of all planted roles
    document = data_of(page(view, head=Head(1, 3), query=5))["document"]
    assert (document["notable"], document["token"]) == ("L1H3", 5)
    with pytest.raises(InputError, match="head L7H0: no such head"):
        page(view, head=Head(7, 0))
    with pytest.raises(InputError, match="token 16: there are 16 tokens"):
        page(view, query=16)
