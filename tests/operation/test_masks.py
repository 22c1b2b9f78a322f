"""Masks: every one states its rule twice, and both say the same; what `tighten` narrows it narrows exactly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operation_cases import masks, single_masks
from torch import Tensor

from clearhead import All, Causal, Documents, Padding, Prefix, Window
from clearhead.kernels.problem import tighten
from clearhead.masks import Dense, Mask, Sizes
from clearhead.plans import Plan


def sizes(B: int, Tq: int, Tk: int) -> Sizes:
    return Sizes(B, Tq, Tk, torch.device("cpu"))


def spelt_out(plan: Plan, Tk: int) -> Tensor:
    """A plan as a bool tensor, by the three conditions in its docstring."""
    j = torch.arange(Tk)
    seen = ((j >= plan.lo[..., None]) & (j < plan.hi[..., None]))[:, None]
    if plan.query_labels is not None and plan.key_labels is not None:
        for queries, keys in zip(plan.query_labels, plan.key_labels, strict=True):
            seen = seen & (queries[:, None, :, None] == keys[:, None, None, :])
    return seen if plan.dense is None else seen & plan.dense


def rows(mask: Mask, Tq: int, Tk: int, B: int = 1) -> list[str]:
    """A mask as text, one row a query: x where it may look. The first sample and head."""
    return ["".join("x" if seen else "." for seen in row) for row in mask.dense(Tq, Tk, B=B)[0, 0].tolist()]


shapes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 9), st.integers(0, 11))


@given(data=st.data(), shape=shapes)
def test_plan_says_what_dense_says(data: st.DataObject, shape: tuple[int, int, int, int]) -> None:
    B, Hq, Tq, Tk = shape
    mask = data.draw(masks(B, Hq, Tq, Tk))
    dense, planned = mask.dense(Tq, Tk, B=B), spelt_out(mask.plan(sizes(B, Tq, Tk)), Tk)
    assert torch.equal(*torch.broadcast_tensors(dense, planned))


EACH = {
    "causal": Causal(),
    "offsets": Causal(align=torch.tensor([-1, 3])),
    "window": Window(3, right=1),
    "prefix": Prefix(torch.tensor([2, 5])),
    "documents": Documents(torch.tensor([0, 1, 0, 2, 2, 1, 0])),
    "more documents": Documents(
        torch.tensor([[0, 0, 0, 1, 1, 1, 2], [3, 1, 3, 1, 3, 1, 3]]), torch.tensor([0, 1, 1, 3, 1])
    ),
    "padding": Padding(torch.tensor([4, 7]), side="left"),
    "dense": Dense(torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(1)) < 0.7),
    "one row": Dense(torch.rand(2, 1, 1, 7, generator=torch.Generator().manual_seed(2)) < 0.7),
}


@pytest.mark.parametrize("second", EACH)
@pytest.mark.parametrize("first", EACH)
def test_every_pair_of_masks_allows_what_both_allow(first: str, second: str) -> None:
    B, Tq, Tk = 2, 5, 7
    both = EACH[first].dense(Tq, Tk, B=B) & EACH[second].dense(Tq, Tk, B=B)
    mask = EACH[first] & EACH[second]
    plan = mask.plan(sizes(B, Tq, Tk))
    for found in (mask.dense(Tq, Tk, B=B), spelt_out(plan, Tk), spelt_out(tighten(plan), Tk)):
        assert torch.equal(*torch.broadcast_tensors(found, both))


@pytest.mark.parametrize(("B", "Tq", "Tk"), [(1, 0, 0), (2, 3, 0), (2, 0, 3), (0, 2, 3), (0, 0, 0)])
def test_every_mask_takes_lengths_of_zero(B: int, Tq: int, Tk: int) -> None:
    ids, query_ids = torch.zeros(Tk, dtype=torch.int64), torch.zeros(B, Tq, dtype=torch.int64)
    counts = torch.zeros(B, dtype=torch.int64)
    documents = Documents(ids, query_ids)
    every = [All(), Causal(), Causal(align=counts), Window(2), Prefix(1), Prefix(counts), documents, Padding(counts)]
    for mask in [*every, *(Causal() & one for one in every), *([Documents(ids)] if Tq <= Tk else [])]:
        plan = tighten(mask.plan(sizes(B, Tq, Tk)))
        found = torch.broadcast_tensors(mask.dense(Tq, Tk, B=B), spelt_out(plan, Tk))
        assert torch.equal(*found), mask
        mask.padded(sizes(B, Tq, Tk))


@given(data=st.data(), shape=shapes)
def test_tighten_changes_no_pair_and_leaves_no_looser_interval(
    data: st.DataObject, shape: tuple[int, int, int, int]
) -> None:
    B, Hq, Tq, Tk = shape
    mask = data.draw(masks(B, Hq, Tq, Tk))
    plan = tighten(mask.plan(sizes(B, Tq, Tk)))
    dense = mask.dense(Tq, Tk, B=B)
    assert torch.equal(*torch.broadcast_tensors(dense, spelt_out(plan, Tk)))
    assert bool((plan.lo >= 0).all())
    assert bool((plan.hi <= Tk).all())


@given(data=st.data(), shape=shapes)
def test_a_single_tightened_interval_is_the_hull_of_what_may_be_seen(
    data: st.DataObject, shape: tuple[int, int, int, int]
) -> None:
    """So that a tile outside the intervals holds nothing, and one inside them is worth the work."""
    B, Hq, Tq, Tk = shape
    mask = data.draw(single_masks(B, Hq, Tq, Tk))
    plan = tighten(mask.plan(sizes(B, Tq, Tk)))
    seen = mask.dense(Tq, Tk, B=B).any(1)
    if Tk == 0:
        return
    j = torch.arange(Tk)
    first, end = torch.where(seen, j, Tk).amin(-1), torch.where(seen, j + 1, 0).amax(-1)
    lo, hi, first, end = torch.broadcast_tensors(plan.lo, plan.hi, first, end)
    some = first < end
    assert torch.equal(lo[some], first[some])
    assert torch.equal(hi[some], end[some])
    assert bool((hi[~some] <= lo[~some]).all())


@pytest.mark.parametrize("ids", [[3, 3, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0]])
def test_documents_packed_in_order_become_plain_intervals(ids: list[int]) -> None:
    plan = tighten(Documents(torch.tensor(ids)).plan(sizes(1, 6, 6)))
    assert plan.query_labels is None
    assert plan.key_labels is None


def test_shuffled_documents_keep_their_labels() -> None:
    assert tighten(Documents(torch.tensor([0, 1, 0, 1])).plan(sizes(1, 4, 4))).query_labels is not None


def test_a_dense_mask_that_is_causal_in_disguise_becomes_intervals() -> None:
    plan = tighten(Dense(torch.ones(5, 5).tril().bool()).plan(sizes(1, 5, 5)))
    assert plan.dense is None
    assert plan.hi.tolist() == [[1, 2, 3, 4, 5]]


@pytest.mark.parametrize("mask", [All(), Causal(), Window(100, right=3), Prefix(7), Padding(torch.tensor([900]))])
def test_a_plan_costs_memory_in_proportion_to_the_length(mask: Mask) -> None:
    plan = mask.plan(sizes(1, 1000, 1000))
    parts = [x for x in (plan.lo, plan.hi, plan.query_labels, plan.key_labels, plan.dense) if x is not None]
    assert sum(x.numel() for x in parts) <= 4 * 1000


def test_causal_aligns_at_the_end_and_at_the_start_when_told() -> None:
    assert rows(Causal(), 2, 4) == ["xxx.", "xxxx"]
    assert rows(Causal(align="start"), 2, 4) == ["x...", "xx.."]
    assert rows(Causal(), 4, 2) == ["..", "..", "x.", "xx"]
    assert rows(Causal(align=1), 2, 4) == ["xx..", "xxx."]


def test_causal_takes_an_offset_for_every_sample() -> None:
    dense = Causal(align=torch.tensor([0, 2, -5])).dense(2, 4, B=3)
    assert dense[:, 0].sum(-1).tolist() == [[1, 2], [3, 4], [0, 0]]


def test_a_window_counts_the_query_itself_and_keys_to_the_right_apart() -> None:
    assert rows(Window(1), 3, 3) == ["x..", ".x.", "..x"]
    assert rows(Window(2), 4, 4) == ["x...", "xx..", ".xx.", "..xx"]
    assert rows(Window(1, right=1), 3, 3) == ["xx.", ".xx", "..x"]
    assert rows(Window(2, align="start"), 2, 4) == ["x...", "xx.."]


def test_a_prefix_is_seen_by_everyone() -> None:
    assert rows(Prefix(2), 4, 4) == ["xx..", "xx..", "xxx.", "xxxx"]
    assert Prefix(torch.tensor([0, 3])).dense(3, 3, B=2).sum((1, 2, 3)).tolist() == [6, 9]


def test_documents_align_their_queries_at_the_end() -> None:
    assert rows(Documents(torch.tensor([4, 4, 9])), 2, 3) == ["xx.", "..x"]
    assert rows(Documents(torch.tensor([4, 4, 9]), torch.tensor([9, 4])), 2, 3) == ["..x", "xx."]


def test_padding_hides_keys_on_its_side() -> None:
    lengths = torch.tensor([1, 3])
    assert Padding(lengths).dense(1, 3, B=2)[:, 0, 0].int().tolist() == [[1, 0, 0], [1, 1, 1]]
    assert Padding(lengths, side="left").dense(1, 3, B=2)[:, 0, 0].int().tolist() == [[0, 0, 1], [1, 1, 1]]


def test_padding_names_the_padding_queries() -> None:
    lengths = torch.tensor([1, 3])
    assert Padding(lengths).padded(sizes(2, 3, 3)).int().tolist() == [[0, 1, 1], [0, 0, 0]]
    assert Padding(lengths, side="left").padded(sizes(2, 3, 3)).int().tolist() == [[1, 1, 0], [0, 0, 0]]
    assert Padding(lengths).padded(sizes(2, 1, 3)).int().tolist() == [[1], [0]]  # decoding: the query is the last key
    cross = Padding(lengths, queries=torch.tensor([2, 1]))
    assert cross.padded(sizes(2, 2, 3)).int().tolist() == [[0, 0], [0, 1]]
    assert (Causal() & cross & All()).padded(sizes(2, 2, 3)).int().tolist() == [[0, 0], [0, 1]]
    assert Causal().padded(sizes(2, 2, 3)) is None


def test_a_combination_prints_as_it_is_written() -> None:
    assert repr(Causal() & Window(3)) == "Causal(align='end') & Window(keys=3, right=0, align='end')"
    assert repr(Dense(torch.ones(2, 3, dtype=torch.bool))) == "Dense((2, 3))"
