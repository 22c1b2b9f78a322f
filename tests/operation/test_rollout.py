"""Rollout against the product of whole matrices in float64, by hand where that fits on paper, and its messages."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from clearhead import Causal, Padding, Pattern, Rollout, Window, rollout
from clearhead.errors import ArgumentError
from clearhead.masks import Mask

EVERYTHING = slice(None)


def model(
    layers: int = 5,
    heads: int = 4,
    T: int = 60,
    *,
    mask: Mask | None = None,
    dtype: torch.dtype = torch.float64,
    **more: Any,
) -> list[Pattern]:
    """Two samples; two query heads read one key head."""
    return [
        Pattern(torch.randn(2, heads, T, 8).to(dtype), torch.randn(2, heads // 2, T, 8).to(dtype), mask=mask, **more)
        for _ in range(layers)
    ]


def dense(patterns: list[Pattern], batch: int, weights: Tensor | None = None) -> list[Tensor]:
    """Â_L, Â_L · Â_{L−1}, …: whole matrices, multiplied."""
    product: Tensor | None = None
    found = []
    for n in reversed(range(len(patterns))):
        A = patterns[n].crop(EVERYTHING, EVERYTHING)[batch].double()
        share = torch.full((len(A),), 1 / len(A)) if weights is None else weights[n] / weights[n].sum()
        mixed = ((share.double()[:, None, None] * A).sum(0) + torch.eye(A.shape[-1], dtype=torch.float64)) / 2
        product = mixed if product is None else product @ mixed
        found.append(product)
    return found


@pytest.mark.parametrize("mask", [None, Causal(), Window(7), Causal() & Padding(torch.tensor([60, 41]))], ids=repr)
def test_it_is_a_row_of_the_product_of_all_layers(mask: Mask | None) -> None:
    patterns = model(mask=mask)
    for batch in (0, 1):
        products = dense(patterns, batch)
        for position in (0, 17, 40, -20):
            found = rollout(patterns, position, batch=batch)
            assert found.position == position % 60
            wanted = torch.stack([product[position] for product in products])
            torch.testing.assert_close(found.layers, wanted, rtol=1e-11, atol=1e-14)
            assert torch.equal(found.input, found.layers[-1])
            torch.testing.assert_close(found.input.sum(), torch.tensor(1.0, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_model_keeps_in_fewer_bits_gives_the_same_chain(dtype: torch.dtype) -> None:
    patterns = model(layers=12, mask=Causal(), dtype=dtype)
    found = rollout(patterns, 59, batch=1)
    torch.testing.assert_close(found.layers[-1], dense(patterns, 1)[-1][59], rtol=1e-5, atol=1e-12)


def test_heads_may_be_weighted_or_one_a_layer() -> None:
    patterns = model(layers=3, mask=Causal())
    weights = torch.rand(3, 4, dtype=torch.float64)
    one = torch.zeros(3, 4, dtype=torch.float64)
    one[torch.arange(3), torch.tensor([2, 0, 3])] = 1
    for heads, wanted in ((weights, weights), (weights.tolist(), weights), ([2, 0, 3], one), (one, one)):
        for given in (heads, torch.tensor([2, 0, 3])) if heads == [2, 0, 3] else (heads,):
            found = rollout(patterns, 33, heads=given)
            torch.testing.assert_close(found.layers[-1], dense(patterns, 0, wanted)[-1][33], rtol=1e-11, atol=1e-14)
    for n, pattern in enumerate(patterns):  # a head alone is that head of the whole
        torch.testing.assert_close(
            rollout([pattern], 5, heads=[n]).input, rollout([pattern.head(n)], 5).input, rtol=1e-13, atol=0
        )


@pytest.mark.tiny
def test_by_hand() -> None:
    """Uniform causal attention over two tokens: Â = [[1, 0], [1/4, 3/4]], whose square has 7/16 and 9/16 below."""
    q = torch.zeros(2, 4)
    found = rollout([Pattern(q, q, mask=Causal())] * 2, 1)
    assert found.layers.tolist() == [[1 / 4, 3 / 4], [7 / 16, 9 / 16]]
    assert repr(found) == "Rollout(layers (2, 2), position 1)"
    assert isinstance(found, Rollout)


def test_what_learned_sinks_take_is_missing_from_the_sum() -> None:
    q = torch.zeros(1, 1, 3, 4)
    found = rollout([Pattern(q, q, sinks=torch.zeros(1))], 2)  # the sink takes a quarter of what attention carries
    torch.testing.assert_close(found.input, torch.tensor([1, 1, 5]).double() / 8)


def test_the_first_layer_stands_first() -> None:
    """Layer 0 looks at token 0 alone, layer 1 only at the token itself: seen from the top, the first step moves nothing."""
    T = 4
    first = Pattern(torch.ones(T, 1) * 50, torch.eye(T)[:, :1] * 1.0, scale=1.0)
    second = Pattern(torch.eye(T) * 50, torch.eye(T), scale=1.0)
    found = rollout([first, second], 3)
    torch.testing.assert_close(found.layers[0], torch.tensor([0.0, 0, 0, 1], dtype=torch.float64))
    torch.testing.assert_close(found.layers[1], torch.tensor([0.5, 0, 0, 0.5], dtype=torch.float64))


SAME = torch.zeros(1, 2, 6, 4)
ONE = Pattern(SAME, SAME)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "nothing": (lambda: rollout([], 0), "patterns: expected one pattern a layer, got none. Keep query and key"),
    "a cache": (
        lambda: rollout([ONE, Pattern(SAME[:, :, :1], SAME)], 0),
        "patterns: expected Tq = Tk = 6 in every layer, a row for every token, got Tq = 1 and Tk = 6 in layer 1. Run the",
    ),
    "position": (
        lambda: rollout([ONE], 6),
        "position: expected a token from 0 to T - 1 = 5 (or negative, from the end), got 6. Name the token",
    ),
    "padding": (
        lambda: rollout([Pattern(SAME, SAME, mask=Padding(torch.tensor([4])))], -1),
        "position: expected a token that is not padding, got 5, which is padding in sample 0. Padding stands behind",
    ),
    "batch": (lambda: rollout([ONE], 0, batch=1), "batch: expected an integer from 0 to B - 1 = 0"),
    "layers": (
        lambda: rollout([ONE], 0, heads=[0, 1]),
        "heads: expected an entry for each of the 1 layers, got 2. Leave it out for the mean over all heads.",
    ),
    "head": (
        lambda: rollout([ONE, ONE], 0, heads=[0, 2]),
        "heads: expected a head from 0 to Hq - 1 = 1 in layer 1, got 2. Heads are counted from 0 in every layer.",
    ),
    "weights": (
        lambda: rollout([ONE], 0, heads=[[1.0, -1.0]]),
        "heads: expected a head number, or Hq = 2 weights >= 0 that are not all 0, in layer 0, got [1.0, -1.0]. Weights",
    ),
    "no weight": (
        lambda: rollout([ONE], 0, heads=torch.zeros(1, 2)),
        "heads: expected a head number, or Hq = 2 weights >= 0 that are not all 0, in layer 0, got [0.0, 0.0]. Weights",
    ),
    "a number": (
        lambda: rollout([ONE], 0, heads=torch.zeros(1)),
        "heads: expected a head number, or Hq = 2 weights >= 0 that are not all 0, in layer 0, got 0.0. Weights",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_in_words(name: str) -> None:
    ask, text = WRONG[name]
    with pytest.raises(ArgumentError, match="^" + re.escape(text)):
        ask()
