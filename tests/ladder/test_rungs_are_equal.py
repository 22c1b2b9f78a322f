"""Every rung gives what the rung below it gives, on the same input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ladder_cases import DTYPES, TOLERANCE, Case, assert_equal, cases, make_case, sequences
from torch import Tensor, nn

from clearhead import ladder


@given(sequences())
def test_matmul_equals_loop(x: Tensor) -> None:
    assert_equal(ladder.mean_by_matmul(x).out, ladder.mean_by_loop(x).out)


@given(sequences())
def test_softmax_equals_matmul(x: Tensor) -> None:
    below, here = ladder.mean_by_matmul(x), ladder.mean_by_softmax(x)
    assert_equal(here.weights, below.weights)
    assert_equal(here.out, below.out)


@given(sequences())
def test_prefix_mean_equals_loop(x: Tensor) -> None:
    assert_equal(ladder.prefix_mean(x).out, ladder.mean_by_loop(x).out)


@given(sequences())
def test_head_that_seeks_nothing_and_passes_all_on_equals_mean(x: Tensor) -> None:
    C = x.shape[-1]
    nothing = nn.Linear(C, 3, bias=False, dtype=x.dtype).requires_grad_(False)
    nothing.weight.zero_()
    anything = nn.Linear(C, 3, bias=False, dtype=x.dtype).requires_grad_(False)
    itself = nn.Linear(C, C, bias=False, dtype=x.dtype).requires_grad_(False)
    nn.init.eye_(itself.weight)
    assert_equal(ladder.single_head(x, nothing, anything, itself).out, ladder.mean_by_softmax(x).out)


@given(cases())
def test_single_head_equals_its_definition_pair_by_pair(case: Case) -> None:
    """The oracle shares nothing with the rung: one query and one key at a time, in plain numbers."""
    D = case.query.out_features // case.heads
    width = case.value.out_features // case.kv_heads
    wq, wk, wv = case.query.weight[:D], case.key.weight[:D], case.value.weight[:width]
    found = ladder.single_head(case.x, *(layer_of(w) for w in (wq, wk, wv)))
    for b, t in ((b, t) for b in range(case.x.shape[0]) for t in range(case.x.shape[1])):
        scores = [float((wq @ case.x[b, t]).double() @ (wk @ case.x[b, j]).double()) / D**0.5 for j in range(t + 1)]
        powers = torch.tensor(scores, dtype=torch.float64).exp()
        shares = (powers / powers.sum()).to(case.x.dtype)
        expected = sum(shares[j] * (wv @ case.x[b, j]) for j in range(t + 1))
        torch.testing.assert_close(found.out[b, t], expected, rtol=1e-5, atol=5 * TOLERANCE[case.x.dtype])


def layer_of(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=weight.dtype).requires_grad_(False)
    layer.weight.copy_(weight)
    return layer


@given(cases(max_group=1))
def test_one_head_of_many_heads_equals_single_head(case: Case) -> None:
    one = ladder.multi_head(case.x, *case.layers)  # heads=1: the layers' whole width is one head
    alone = ladder.single_head(case.x, *case.layers)
    for name in ("scores", "masked", "weights"):
        torch.testing.assert_close(getattr(one, name)[:, 0], getattr(alone, name), rtol=0, atol=5e-6)
    assert_equal(one.heads[:, 0], alone.out)
    assert_equal(one.out, alone.out)


@given(cases())
def test_many_heads_equal_single_heads_side_by_side(case: Case) -> None:
    found = ladder.multi_head(case.x, *case.layers, heads=case.heads, kv_heads=case.kv_heads)
    group = case.heads // case.kv_heads
    for h in range(case.heads):
        parts = (
            case.query.weight.chunk(case.heads)[h],
            case.key.weight.chunk(case.kv_heads)[h // group],
            case.value.weight.chunk(case.kv_heads)[h // group],
        )
        alone = ladder.single_head(case.x, *(layer_of(w) for w in parts))
        assert_equal(found.heads[:, h], alone.out)
        assert_equal(found.out.chunk(case.heads, dim=-1)[h], alone.out)


@given(cases())
def test_grouped_heads_equal_heads_repeated_by_hand(case: Case) -> None:
    """Key heads a, b for four query heads are a, a, b, b: repeat the layers' own rows, then use ungrouped heads."""
    group = case.heads // case.kv_heads

    def repeated(layer: nn.Linear) -> nn.Linear:
        heads = layer.weight.chunk(case.kv_heads)
        return layer_of(torch.cat([head for head in heads for _ in range(group)]))

    grouped = ladder.multi_head(case.x, *case.layers, heads=case.heads, kv_heads=case.kv_heads)
    plain = ladder.multi_head(case.x, case.query, repeated(case.key), repeated(case.value), heads=case.heads)
    assert_equal(grouped.out, plain.out)
    q, k, v = plain.q, plain.k, plain.v
    for below, here in (
        (ladder.online_softmax(q, k, v), ladder.online_softmax(grouped.q, grouped.k, grouped.v)),
        (ladder.with_cache(q, k, v), ladder.with_cache(grouped.q, grouped.k, grouped.v)),
        (ladder.library_kernel(q, k, v), ladder.library_kernel(grouped.q, grouped.k, grouped.v)),
    ):
        assert_equal(here.out, below.out)


@given(cases(), st.integers(1, 16))
def test_online_softmax_equals_multi_head(case: Case, tile: int) -> None:
    five = ladder.multi_head(case.x, *case.layers, heads=case.heads, kv_heads=case.kv_heads)
    six = ladder.online_softmax(five.q, five.k, five.v, tile=tile)
    assert_equal(six.out, five.heads)
    torch.testing.assert_close(six.lse, five.masked.logsumexp(-1), rtol=1e-6, atol=5 * TOLERANCE[case.x.dtype])


@given(cases())
def test_cache_equals_online_softmax(case: Case) -> None:
    five = ladder.multi_head(case.x, *case.layers, heads=case.heads, kv_heads=case.kv_heads)
    six, seven = ladder.online_softmax(five.q, five.k, five.v), ladder.with_cache(five.q, five.k, five.v)
    assert_equal(seven.out, six.out)
    assert torch.equal(seven.keys, five.k)
    assert torch.equal(seven.values, five.v)
    for t, row in enumerate(seven.rows):
        assert_equal(row, five.weights[:, :, t : t + 1, : t + 1])


@given(cases())
def test_library_kernel_equals_cache(case: Case) -> None:
    five = ladder.multi_head(case.x, *case.layers, heads=case.heads, kv_heads=case.kv_heads)
    q, k, v = five.q, five.k, five.v
    assert_equal(ladder.library_kernel(q, k, v).out, ladder.with_cache(q, k, v).out)


@pytest.mark.tiny
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", range(2, 9))
def test_side_by_side_finds_each_rung_equal_to_the_one_below(number: int, dtype: torch.dtype) -> None:
    case = make_case(2, 9, 4, 3, 5, kv_heads=2, group=2, dtype=dtype, seed=number)
    pair = ladder.side_by_side(number, case.x, *case.layers, heads=4, kv_heads=2)
    assert pair.below.shape == pair.here.shape
    assert pair.difference == float((pair.below - pair.here).abs().max())
    assert pair.difference <= TOLERANCE[dtype]
    # Two different computations, and not one thing compared with itself.
    assert pair.below.data_ptr() != pair.here.data_ptr()


def test_one_token_alone_hears_only_itself_on_every_rung() -> None:
    case = make_case(2, 1, 4, 3, 5, kv_heads=2, group=2, dtype=torch.float64, seed=0)
    for mean in (ladder.mean_by_loop, ladder.mean_by_matmul, ladder.mean_by_softmax, ladder.prefix_mean):
        assert torch.equal(mean(case.x).out, case.x)
    one = make_case(2, 1, 4, 3, 5, kv_heads=1, group=1, dtype=torch.float64, seed=0)
    assert torch.equal(ladder.single_head(one.x, *one.layers).out, one.value(one.x))
    five = ladder.multi_head(case.x, *case.layers, heads=4, kv_heads=2)
    expected = five.v.repeat_interleave(2, dim=1)
    assert torch.equal(five.heads, expected)
    for rung in (ladder.online_softmax, ladder.with_cache, ladder.library_kernel):
        assert_equal(rung(five.q, five.k, five.v).out, expected)


@pytest.mark.parametrize("number", range(2, 9))
def test_gradients_are_equal_on_every_rung(number: int) -> None:
    """Not only the results: a model could be trained with any rung."""
    case = make_case(2, 6, 4, 3, 5, kv_heads=2, group=2, dtype=torch.float64, seed=number)
    gradients = []
    for rung in (number - 1, number):
        x = case.x.clone().requires_grad_()
        (RESULTS[rung](x, case, above=number)).square().sum().backward()
        gradients.append(x.grad)
    assert_equal(gradients[1], gradients[0])


def five(x: Tensor, case: Case) -> ladder.rung5_multi_head.MultiHead:
    return ladder.multi_head(x, *case.layers, heads=case.heads, kv_heads=case.kv_heads)


def four(x: Tensor, case: Case, *, above: int) -> Tensor:
    if above == 5:  # compared with several heads: their values in a row
        return torch.cat([ladder.single_head(x, *heads).out for heads in head_layers(case)], dim=-1)
    C = x.shape[-1]
    zero = layer_of(torch.zeros(C, C, dtype=x.dtype))
    return ladder.single_head(x, zero, zero, layer_of(torch.eye(C, dtype=x.dtype))).out


def head_layers(case: Case) -> list[tuple[nn.Linear, ...]]:
    group = case.heads // case.kv_heads
    return [
        (
            layer_of(case.query.weight.chunk(case.heads)[h]),
            layer_of(case.key.weight.chunk(case.kv_heads)[h // group]),
            layer_of(case.value.weight.chunk(case.kv_heads)[h // group]),
        )
        for h in range(case.heads)
    ]


RESULTS = {
    1: lambda x, case, above: ladder.mean_by_loop(x).out,
    2: lambda x, case, above: ladder.mean_by_matmul(x).out,
    3: lambda x, case, above: ladder.mean_by_softmax(x).out,
    4: four,
    5: lambda x, case, above: five(x, case).out if above == 5 else five(x, case).heads,
    6: lambda x, case, above: ladder.online_softmax(*five(x, case)[:3]).out,
    7: lambda x, case, above: ladder.with_cache(*five(x, case)[:3]).out,
    8: lambda x, case, above: ladder.library_kernel(*five(x, case)[:3]).out,
}
