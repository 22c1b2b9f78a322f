from __future__ import annotations

import pytest
import torch

from clearhead import attention, watch
from clearhead.errors import InputError
from clearhead.trace import Head, Trace


def two_layers() -> Trace:
    with watch() as trace:
        for _ in range(2):
            attention(*torch.randn(3, 1, 3, 5, 4))
    return trace


def test_addresses_are_read_as_they_are_printed():
    for layer, head in ((0, 0), (12, 7), (3, 115)):
        assert Head.parse(str(Head(layer, head))) == (layer, head)
    assert Head.parse(" l2h3 ") == (2, 3)


@pytest.mark.parametrize("text", ["", "L2", "2.3", "LxH3", "L-1H0", "L2H3x"])
def test_anything_else_is_no_address(text):
    with pytest.raises(InputError, match=r"expected an address such as L2H3"):
        Head.parse(text)


def test_heads_are_listed_layer_by_layer():
    assert [str(h) for h in two_layers().heads()] == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]


def test_an_unknown_head_is_told_the_range():
    trace = two_layers()
    assert trace.check(Head(1, 2)) == (1, 2)
    with pytest.raises(InputError, match=r"head L1H3: no such head; there are 6, from L0H0 to L1H2"):
        trace.check(Head(1, 3))
    with pytest.raises(InputError, match=r"layer 2: was not observed; observed layers: 0, 1"):
        trace.observation(2)
    with pytest.raises(InputError, match=r"nothing was observed"):
        Trace().check(Head(0, 0))


def test_repr_says_how_much_there_is():
    trace = two_layers()
    trace.token_ids = [1, 2, 3, 4, 5]
    assert repr(trace) == "Trace(2 calls, 6 heads, 5 tokens)"
