"""Observations of parts, put together, are the observation of the whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from operation_cases import IMPLS, PRECISE
from torch import Tensor

from clearhead import Causal, Documents, Observables, Observation, Padding, Window, observe
from clearhead.errors import ArgumentError, NotMeasuredError
from clearhead.masks import Mask
from clearhead.merging import join_keys, join_queries

T, CUTS = 70, (0, 20, 53, 70)
GENERATOR = torch.Generator().manual_seed(5)
IDS, GROUPS = (torch.randint(0, n, (T,), generator=GENERATOR) for n in (5, 3))


def inputs(impl: str, *, B: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((B, 4, T, 8), (B, 2, T, 8), (B, 2, T, 5))
    q, k, v = (torch.randn(s, dtype=PRECISE[impl]) for s in shapes)
    return q, k, v


def everything(**more: Any) -> Observables:
    return dataclasses.replace(Observables.full(token_ids=IDS, key_groups=GROUPS), group_top_k=2, **more)


def same(got: Observation, wanted: Observation, leaving: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    assert set(wanted.values) - set(got.values) == leaving
    assert set(got.values) <= set(wanted.values)
    assert (got.offset, got.first_key) == (wanted.offset, wanted.first_key)
    for name, x in got.values.items():
        other = wanted.values[name]
        if name == "output":
            x, other = x.flatten(end_dim=-4), other.flatten(end_dim=-4)
        x, other = torch.broadcast_tensors(x, other)
        torch.testing.assert_close(x, other, atol=2e-5, rtol=1e-4, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    "mask", [Causal(), Window(9), Causal() & Documents(GROUPS)], ids=lambda mask: type(mask).__name__
)
@pytest.mark.parametrize("sinks", [False, True])
def test_pieces_of_the_keys_join_to_the_whole(impl: str, mask: Mask, sinks: bool) -> None:
    q, k, v = inputs(impl)
    more = {"sinks": torch.randn(4, dtype=PRECISE[impl])} if sinks else {}
    whole = observe(q, k, v, mask=mask, observables=everything(), impl=impl, **more)
    dense = mask.dense(T, T)
    parts, received = [], []

    def look(n: int, row_weights: Tensor | None = None) -> Observation:
        a, b = CUTS[n : n + 2]
        wanted = everything(
            first_key=a, first_query=0, key_groups=GROUPS[a:b], query_groups=GROUPS, row_weights=row_weights
        )
        given = more if n == 1 else {}
        return observe(q, k[:, :, a:b], v[:, :, a:b], mask=dense[..., a:b], observables=wanted, impl=impl, **given)

    parts = [look(n) for n in range(3)]
    joined = join_keys(parts)
    lost = {"received", "viewers", "received_by_group", "map_mean", "map_max", "group_mean", "group_queries"}
    same(joined, whole, lost)
    with pytest.raises(NotMeasuredError, match=r"^received is not in this observation: it adds up over queries"):
        _ = joined.received
    # What keys receive takes a second pass, with the shares of the pieces as row weights.
    received = [look(n, torch.exp(part.lse - joined.lse)).weighted_received for n, part in enumerate(parts)]
    torch.testing.assert_close(torch.cat(received, -1), whole.received, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("mask", [Causal(), Window(9)], ids=repr)
def test_chunks_of_queries_join_to_the_whole(impl: str, mask: Mask) -> None:
    q, k, v = inputs(impl)
    rows = torch.randn(T, dtype=PRECISE[impl])
    whole = observe(q, k, v, mask=mask, observables=everything(rows=(1, 30), row_weights=rows), impl=impl)
    parts = []
    for a, b, chosen in ((0, 20, (1,)), (20, 53, (10,)), (53, 70, ())):
        wanted = everything(rows=chosen, key_groups=GROUPS[:b], token_ids=IDS[:b], row_weights=rows[a:b])
        if not chosen:
            wanted = dataclasses.replace(wanted, rows=(0,))
        parts.append(observe(q[:, :, a:b], k[:, :, :b], v[:, :, :b], mask=mask, observables=wanted, impl=impl))
    joined = join_queries(parts)
    assert torch.equal(joined.rows[:, :, 2, :54], parts[2].rows[:, :, 0, :54])  # row 53, which the whole did not keep
    joined = dataclasses.replace(joined, values={**joined.values, "rows": joined.rows[:, :, :2]})
    same(joined, whole, {"map_mean", "map_max"})
    with pytest.raises(
        NotMeasuredError, match=r"^map_mean is not in this observation: its cells are those of a shorter"
    ):
        _ = joined.map_mean


def test_decoding_token_by_token_with_a_cache_that_forgets() -> None:
    q, k, v = inputs("cpu", B=1)
    whole = observe(q, k, v, mask=Window(16))
    parts = [observe(q[:, :, :30], k[:, :, :30], v[:, :, :30], mask=Window(16))]
    for t in range(30, T):
        kept = slice(t - 15, t + 1)
        parts.append(
            observe(q[:, :, t : t + 1], k[:, :, kept], v[:, :, kept], observables=Observables(first_key=t - 15))
        )
    same(join_queries(parts), whole, {"map_mean", "map_max"})


def test_padding_is_joined_too() -> None:
    q, k, v = inputs("cpu")
    lengths = torch.tensor([T, 40])
    whole = observe(q, k, v, mask=Causal() & Padding(lengths))
    first = observe(q[:, :, :30], k[:, :, :30], v[:, :, :30], mask=Causal())
    last_mask = Causal() & Padding(lengths, queries=torch.tensor([40, 10]))
    last = observe(q[:, :, 30:], k, v, mask=last_mask)
    joined = join_queries([first, last])
    assert joined.padded is not None
    assert torch.equal(joined.padded, whole.padded)
    torch.testing.assert_close(joined.mean("entropy"), whole.mean("entropy"))
    torch.testing.assert_close(joined.received, whole.received)


def test_one_part_is_itself() -> None:
    q, k, v = inputs("cpu")
    seen = observe(q, k, v, mask=Causal(), observables=Observables(map=0))
    same(join_queries([seen]), seen)
    same(join_keys([seen]), seen, {"received", "viewers"})


def test_parts_that_do_not_fit_are_refused() -> None:
    q, k, v = inputs("cpu")
    a = observe(q[:, :, :30], k[:, :, :30], v[:, :, :30], mask=Causal())
    b = observe(q[:, :, 31:], k, v, mask=Causal())
    light = observe(q[:, :, 30:], k, v, mask=Causal(), observables=Observables.light())
    with pytest.raises(ArgumentError, match=r"^parts: expected one observation or more, got none"):
        join_queries([])
    with pytest.raises(ArgumentError, match=r"^parts: expected part 1 to begin at query 30, .* begins at query 31"):
        join_queries([a, b])
    with pytest.raises(
        ArgumentError, match=r"^parts: expected the same quantities .* got distance, entropy, .* 0 and 1"
    ):
        join_queries([a, light])
    with pytest.raises(
        ArgumentError, match=r"^parts: expected part 1 to begin after key 0, .* got one that begins at key 0"
    ):
        join_keys([a, a])
    with pytest.raises(
        ArgumentError, match=r"^parts: expected part 1 to hold the queries of part 0, \(2, 4, 30\) from 0, got"
    ):
        join_keys([a, b])


def test_parts_with_fewer_largest_keys_are_filled_up_with_none() -> None:
    q, k, v = inputs("tiled", B=1)
    few = observe(q[:, :, :20], k[:, :, :20], v[:, :, :20], mask=Causal(), observables=Observables(top_k=2, map=0))
    many = observe(q[:, :, 20:], k, v, mask=Causal(), observables=Observables(top_k=4, map=0))
    both = join_queries([few, many])
    assert both.top_keys.shape == (1, 4, T, 4)
    assert both.top_keys[:, :, :20, 2:].eq(-1).all()
    assert both.top_weights[:, :, :20, 2:].eq(0).all()
    assert torch.equal(both.top_keys[:, :, 20:], many.top_keys)
