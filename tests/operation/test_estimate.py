"""What looking would cost: what can be counted is counted exactly, what is timed is timed once and scaled."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from clearhead import ALiBi, Causal, Documents, Observables, Prefix, Window, estimate, observe
from clearhead.errors import ArgumentError, ImplementationError
from clearhead.estimate import Estimate


def sizes(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor of one number that has this shape."""
    return torch.zeros((), dtype=dtype).expand(shape)


@pytest.fixture
def small_calls() -> Iterator[None]:
    """Where it does not matter how long the timed calls take, they are short."""
    module = sys.modules["clearhead.estimate"]
    with mock.patch.multiple(module, SIZES=(32, 64), TRIES=1, _known={}):
        yield


ASKED = {
    "default": Observables(),
    "light": Observables.light(),
    "full": Observables.full(token_ids=torch.arange(2000) % 7, key_groups=torch.arange(2000) // 500),
    "odd": Observables(
        top_k=3,
        map=20,
        rows=(5, -1),
        contributions=True,
        output_weight=torch.zeros(5, 48),
        row_weights=torch.ones(10),
        key_groups=torch.arange(2000) // 300,
        query_groups=torch.arange(10) // 5,
        group_top_k=2,
    ),
}


@pytest.mark.usefixtures("small_calls")
@pytest.mark.parametrize("impl", ["cpu", "tiled"])
@pytest.mark.parametrize("asked", ASKED)
def test_bytes_are_those_that_observing_returns(asked: str, impl: str) -> None:
    q, k, v = torch.randn(2, 4, 10, 8), torch.randn(2, 2, 2000, 8), torch.randn(2, 2, 2000, 12)
    options: dict[str, Any] = {"mask": Causal(), "observables": ASKED[asked], "sinks": torch.zeros(4), "impl": impl}
    expected = estimate(q, k, v, **options)
    seen = observe(q, k, v, **options)
    # Counts are expected for every head; where all heads see the same there is one for all.
    shared = [x for n, x in seen.values.items() if n in ("visible", "viewers")]
    counts = sum((2 * 4 * x.shape[-1] - x.numel()) * x.dtype.itemsize for x in shared)
    assert expected.bytes == sum(x.numel() * x.dtype.itemsize for x in seen.values.values()) + counts
    assert estimate(q, k, v, **options, layers=3).bytes == 3 * expected.bytes


@pytest.mark.usefixtures("small_calls")
def test_pairs_are_those_within_the_intervals() -> None:
    q, k = sizes(2, 4, 100, 8), sizes(2, 2, 300, 8)
    for mask, pairs in (
        (None, 100 * 300),
        (Causal(), 100 * 200 + 100 * 101 // 2),
        (Window(5), 100 * 5),
        (Prefix(300), 100 * 300),
        (Documents(torch.arange(300) // 150), 100 * 150),
    ):
        expected = estimate(q, k, k, mask=mask, layers=2)
        assert expected.pairs == 2 * 2 * 4 * pairs
    assert expected.eager_bytes == 2 * 2 * 4 * 100 * 300 * 4
    assert expected.sizes == (2, 4, 100, 300)
    assert expected.impl == "cpu"


def test_time_grows_with_layers_and_with_pairs_and_is_measured_once() -> None:
    one = estimate(sizes(1, 4, 4096, 16), sizes(1, 4, 4096, 16), sizes(1, 4, 4096, 16), mask=Causal())
    assert one.seconds > 0
    with mock.patch("clearhead.attention.observe_call", side_effect=AssertionError("measured again")):
        q = sizes(1, 4, 4096, 16)
        assert estimate(q, q, q, mask=Causal(), layers=5).seconds == pytest.approx(5 * one.seconds)
        long = sizes(1, 4, 65536, 16)
        assert 16 * one.seconds < estimate(long, long, long, mask=Causal()).seconds < 257 * one.seconds
        assert estimate(q, q, q, mask=Window(64)).seconds < one.seconds < estimate(q, q, q).seconds
        with pytest.raises(AssertionError, match="measured again"):
            estimate(q, q, q, observables=Observables(top_k=2, map=3))


@pytest.mark.usefixtures("small_calls")
def test_every_kind_of_call_can_be_asked_about() -> None:
    q = torch.randn(1, 2, 300, 8)
    dense = torch.rand(300, 300) < 0.5
    for options in (
        {"mask": dense},
        {"bias": torch.randn(300, 300)},
        {"bias": torch.randn(1, 2, 1, 300)},
        {"bias": ALiBi(2), "softcap": 5.0, "scale": 0.3},
        {"sinks": torch.zeros(2), "observables": Observables(token_ids=torch.zeros(1, 300, dtype=torch.int64))},
    ):
        for dtype in (torch.float32, torch.bfloat16):
            x = q.to(dtype)
            expected = estimate(x, x, x, **options)
            assert expected.seconds > 0
            assert expected.eager_bytes == 2 * 300 * 300 * dtype.itemsize
    assert estimate(q.double(), q.double(), q.double()).impl == "tiled"


@pytest.mark.tiny
def test_it_prints_as_one_line() -> None:
    shown = str(Estimate(3.21, 42_000_000, 137_438_953_472, 1, "cpu", (1, 32, 8192, 8192), 32))
    assert shown == (
        "looking takes about 3.2 s and keeps 42 MB (32 layers, 32 heads, 8,192 tokens, cpu); "
        "the T×T weights would take 137 GB"
    )
    assert "1 layer, 1 head, 2 texts, 1 queries and 50 keys, tiled" in str(
        Estimate(0.0042, 950, 2_000, 1, "tiled", (2, 1, 1, 50), 1)
    )


def test_what_cannot_be_estimated_is_refused() -> None:
    q = torch.zeros(1, 1, 3, 4)
    text = "layers: expected an integer >= 1, got 0. One attention call counts as one."
    with pytest.raises(ArgumentError, match="^" + re.escape(text)):
        estimate(q, q, q, layers=0)
    with pytest.raises(ImplementationError, match="they have no float64"):
        estimate(q.double(), q.double(), q.double(), impl="cpu")
