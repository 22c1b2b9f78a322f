"""What must hold on each rung by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ladder_cases import DTYPES, assert_equal, make_case
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from clearhead import ladder
from clearhead.ladder.rung6_online_softmax import Tile

CASE = make_case(2, 9, 4, 3, 5, kv_heads=2, group=2, dtype=torch.float32, seed=7)
ONE = make_case(2, 9, 4, 3, 5, kv_heads=1, group=1, dtype=torch.float32, seed=7)
MEANS = (ladder.mean_by_loop, ladder.mean_by_matmul, ladder.mean_by_softmax, ladder.prefix_mean)
HEADS = (ladder.online_softmax, ladder.with_cache, ladder.library_kernel)


def from_x(function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """Any rung as a function of x alone."""
    if function in MEANS:
        return lambda x: function(x).out
    if function is ladder.single_head:
        return lambda x: function(x, *ONE.layers).out
    if function is ladder.multi_head:
        return lambda x: function(x, *CASE.layers, heads=4, kv_heads=2).out
    return lambda x: function(*ladder.multi_head(x, *CASE.layers, heads=4, kv_heads=2)[:3]).out.transpose(1, 2)


EVERY = [pytest.param(function, id=function.__name__) for function in (*(r.function for r in ladder.RUNGS), MEANS[-1])]


@pytest.mark.tiny
@pytest.mark.parametrize("function", EVERY)
@pytest.mark.parametrize("t", [1, 4, 8])
def test_changing_the_future_never_changes_the_past(function: Callable[..., Any], t: int) -> None:
    rung = from_x(function)
    future = CASE.x.clone()
    future[:, t:] = future[:, t:] * 100 + 1000
    before, after = rung(CASE.x), rung(future)
    assert torch.equal(before[:, :t], after[:, :t])
    assert not torch.allclose(before[:, t:], after[:, t:])


@pytest.mark.parametrize("function", EVERY)
def test_changing_the_past_changes_what_comes_after(function: Callable[..., Any]) -> None:
    rung = from_x(function)
    past = CASE.x.clone()
    past[:, 0] += 3
    assert (rung(past) != rung(CASE.x)).any(dim=-1).all()


@pytest.mark.parametrize("function", EVERY)
def test_sequences_of_a_batch_are_strangers(function: Callable[..., Any]) -> None:
    rung = from_x(function)
    other = CASE.x.clone()
    other[1] += 3
    assert torch.equal(rung(other)[0], rung(CASE.x)[0])
    assert not torch.equal(rung(other)[1], rung(CASE.x)[1])


@pytest.mark.parametrize("function", EVERY)
def test_inputs_are_left_as_they_were(function: Callable[..., Any]) -> None:
    x = CASE.x.clone()
    from_x(function)(x)
    assert torch.equal(x, CASE.x)


def test_weights_of_every_row_sum_to_one_and_give_nothing_to_the_future() -> None:
    four = ladder.single_head(CASE.x, *ONE.layers)
    five = ladder.multi_head(CASE.x, *CASE.layers, heads=4, kv_heads=2)
    for weights in (
        ladder.mean_by_matmul(CASE.x).weights,
        ladder.mean_by_softmax(CASE.x).weights,
        four.weights,
        five.weights,
    ):
        assert_equal(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert torch.equal(weights, weights.tril())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tile", [1, 3, 4, 100])
@pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
def test_online_softmax_bears_scores_of_ten_thousand(order: str, tile: int, dtype: torch.dtype) -> None:
    """Whole-number scores up to ±1e4, exact in float32, so that even there the result is exact to rounding."""
    T = 10
    steps = torch.arange(T, dtype=dtype) * 2000 - 10_000  # −10000, −8000, …, 8000
    steps = {"rising": steps, "falling": steps.flip(0), "mixed": steps[torch.tensor([3, 9, 0, 9, 9, 1, 4, 9, 8, 2])]}[
        order
    ]
    q = torch.ones(1, 1, T, 1, dtype=dtype)
    k = steps.view(1, 1, T, 1)
    v = torch.randn(1, 1, T, 4, dtype=dtype)
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = (q @ k.mT).masked_fill(hidden, -math.inf).softmax(-1) @ v
    found = ladder.online_softmax(q, k, v, tile=tile)
    assert_equal(found.out, expected)
    assert torch.isfinite(found.lse).all()


@pytest.mark.parametrize("tile", [1, 2, 5, 9, 10, 1000])
def test_any_tile_size_gives_the_same(tile: int) -> None:
    five = ladder.multi_head(CASE.x, *CASE.layers, heads=4, kv_heads=2)
    assert_equal(ladder.online_softmax(five.q, five.k, five.v, tile=tile).out, five.heads)


def test_weights_can_be_had_again_from_lse() -> None:
    five = ladder.multi_head(CASE.x, *CASE.layers, heads=4, kv_heads=2)
    lse = ladder.online_softmax(five.q, five.k, five.v).lse
    assert_equal((five.masked - lse[..., None]).exp(), five.weights)


def test_tiles_right_of_the_diagonal_are_never_made() -> None:
    five = ladder.multi_head(CASE.x, *CASE.layers, heads=4, kv_heads=2)
    seen: list[Tile] = []
    ladder.online_softmax(five.q, five.k, five.v, tile=3, look=seen.append)
    assert [(tile.row, tile.column) for tile in seen] == [(0, 0), (3, 0), (3, 3), (6, 0), (6, 3), (6, 6)]


def test_running_max_and_sum_are_those_of_the_scores_so_far() -> None:
    five = ladder.multi_head(CASE.x, *CASE.layers, heads=4, kv_heads=2)

    def check(tile: Tile) -> None:
        so_far = five.masked[:, :, tile.row : tile.row + 4, : tile.column + 4]
        top = so_far.amax(-1, keepdim=True)
        weights = (so_far - top).exp()
        values = five.v.repeat_interleave(2, dim=1)[:, :, : tile.column + 4]
        assert torch.equal(tile.scores, so_far[..., tile.column :]) or torch.allclose(
            tile.scores, so_far[..., tile.column :]
        )
        assert_equal(tile.top, top)
        torch.testing.assert_close(tile.total, weights.sum(-1, keepdim=True))
        torch.testing.assert_close(tile.summed, weights @ values, rtol=1e-5, atol=1e-5)

    ladder.online_softmax(five.q, five.k, five.v, tile=4, look=check)


def test_cache_holds_key_heads_not_query_heads() -> None:
    five = ladder.multi_head(CASE.x, *CASE.layers, heads=4, kv_heads=2)
    seven = ladder.with_cache(five.q, five.k, five.v)
    assert seven.keys.shape == (2, 2, 9, 3)
    assert seven.values.shape == (2, 2, 9, 5)
    assert [row.shape for row in seven.rows] == [(2, 4, 1, t + 1) for t in range(9)]


def test_library_kernel_keeps_even_a_hidden_nan_from_the_past() -> None:
    """A product with the whole matrix does not: 0 · NaN is NaN. The page on the ladder says so."""
    x = CASE.x.clone()
    x[:, -1] = math.nan
    assert torch.isfinite(from_x(ladder.library_kernel)(x)[:, :-1]).all()
    assert torch.isnan(from_x(ladder.library_kernel)(x)[:, -1]).all()
    assert torch.isnan(from_x(ladder.multi_head)(x)).all()


class Terms(TorchDispatchMode):
    """Counts the numbers that go into means and running sums."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mean.dim, torch.ops.aten.cumsum.default):
            self.count += args[0].numel()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("T", "C"), [(1, 1), (2, 3), (8, 2), (33, 5)])
def test_additions_are_those_that_really_happen(T: int, C: int) -> None:
    x = torch.randn(1, T, C)
    expected = ladder.additions(T, C)
    for function, count in ((ladder.mean_by_loop, expected.by_loop), (ladder.prefix_mean, expected.by_prefix)):
        with Terms() as terms:
            function(x)
        assert terms.count == count
    for function in (ladder.mean_by_matmul, ladder.mean_by_softmax):
        with FlopCounterMode(display=False) as flops:
            function(x)
        assert flops.get_total_flops() == 2 * expected.by_matmul  # a multiplication and an addition each


def test_rungs_are_listed_in_order_with_their_functions() -> None:
    assert [rung.number for rung in ladder.RUNGS] == list(range(1, 9))
    for rung in ladder.RUNGS:
        assert getattr(ladder, rung.name) is rung.function
        assert rung.function.__module__ == f"clearhead.ladder.rung{rung.number}_{rung.name}"
        assert rung.question.endswith("?")


@pytest.mark.parametrize("rung", ladder.RUNGS, ids=lambda rung: rung.name)
def test_every_result_ends_with_out(rung: ladder.Rung) -> None:
    five = ladder.multi_head(CASE.x, *CASE.layers, heads=4, kv_heads=2)
    if rung.number <= 3:
        result = rung.function(CASE.x)
    elif rung.number <= 5:
        result = rung.function(CASE.x, *ONE.layers)
    else:
        result = rung.function(five.q, five.k, five.v)
    assert result._fields[-1] == "out"
