"""The ways attention goes wrong in the field, one named test each: empty rows, NaN, masks, scale, threads, transforms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from operation_cases import IMPLS, PRECISE
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead import ALiBi, Causal, Documents, Observables, Padding, Window, attention, observe
from clearhead.errors import ArgumentError
from clearhead.masks import Dense

BAD = {"nan": math.nan, "inf": math.inf, "minus inf": -math.inf}


def three(*shape: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype) for _ in range(3)]


def grown(tensors: list[Tensor]) -> list[Tensor]:
    return [x.detach().clone().requires_grad_() for x in tensors]


# --------------------------------------------------------------------------------------- rows that see nothing

HIDING = {
    "a bool tensor": {"mask": torch.tensor([[True, True, True], [False, False, False]])},
    "a mask object": {"mask": Causal(align=torch.tensor([-1]))},
    "an infinite bias": {"bias": torch.tensor([[0.0, 1.0, 2.0], [-torch.inf, -torch.inf, -torch.inf]])},
    "no keys of its document": {"mask": Documents(torch.tensor([1, 1, 1]), torch.tensor([1, 5]))},
    "padding only": {"mask": Padding(torch.tensor([0]))},
}


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("how", HIDING)
def test_a_query_that_sees_nothing_gives_zero_and_takes_no_part_in_gradients(how: str, impl: str) -> None:
    q, k, v = torch.randn(1, 2, 2, 4), torch.randn(1, 2, 3, 4), torch.randn(1, 2, 3, 5)
    leaves = grown([q, k, v])
    seen = observe(*leaves, **HIDING[how], impl=impl)
    blind = seen.visible.expand(1, 2, 2) == 0
    assert bool(blind.any())
    assert bool((seen.output[blind] == 0).all())
    assert bool((seen.lse[blind] == -torch.inf).all())
    for name in ("max_weight", "entropy", "entropy_share", "distance", "self_weight", "first_weight", "top_weights"):
        assert bool((getattr(seen, name)[blind] == 0).all()), name
    assert bool((seen.top_keys[blind] == -1).all())
    seen.output.sin().sum().backward()
    for x in leaves:
        assert x.grad is not None
        assert bool(torch.isfinite(x.grad).all())
    assert leaves[0].grad is not None
    assert bool((leaves[0].grad[blind] == 0).all())
    assert torch.equal(attention(q, k, v, **HIDING[how], impl=impl), seen.output)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_query_that_sees_only_the_sink_gives_zero_and_the_sinks_own_lse(impl: str) -> None:
    q, k, v = three(1, 2, 3, 4)
    sinks = torch.tensor([0.5, -2.0])
    seen = observe(q, k, v, mask=Padding(torch.tensor([0])), sinks=sinks, impl=impl)
    assert bool((seen.output == 0).all())
    torch.testing.assert_close(seen.lse, sinks[None, :, None].expand(1, 2, 3))
    torch.testing.assert_close(seen.sink, torch.ones(1, 2, 3))


# ------------------------------------------------------------------------------------------ NaN and infinities


def everything(tensors: list[Tensor], impl: str, **options: Any) -> dict[str, Tensor]:
    """Output, gradients and observations of one call."""
    leaves = grown(tensors)
    seen = observe(*leaves, observables=Observables(rows=(0, 1), map=3), impl=impl, **options)
    upstream = torch.linspace(-1, 1, seen.output.numel()).reshape(seen.output.shape)
    grads = torch.autograd.grad(seen.output, leaves, upstream)
    return {**seen.values, **dict(zip(("d_query", "d_key", "d_value"), grads, strict=True))}


def equal(dirty: dict[str, Tensor], clean: dict[str, Tensor], impl: str) -> None:
    """Bit for bit; the reference adds in another order when something is not finite, and may differ by that."""
    for name, wanted in clean.items():
        if impl != "reference":
            assert torch.equal(dirty[name], wanted), name
        else:
            torch.testing.assert_close(dirty[name], wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("where", ["key", "value"])
def test_what_may_not_be_seen_cannot_reach_anything(where: str, bad: str, impl: str) -> None:
    tensors = three(2, 2, 40, 8)
    mask = Causal() & Padding(torch.tensor([30, 40]))
    at = 1 if where == "key" else 2
    poisoned = grown(tensors)
    poisoned[at].data[0, :, 30:] = BAD[bad]
    clean, dirty = everything(tensors, impl, mask=mask), everything(poisoned, impl, mask=mask)
    equal(dirty, clean, impl)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("bad", BAD)
def test_a_query_that_sees_nothing_may_hold_anything(bad: str, impl: str) -> None:
    tensors = three(1, 2, 12, 8)
    mask = torch.ones(12, 12).tril().bool()
    mask[5] = False
    poisoned = grown(tensors)
    poisoned[0].data[:, :, 5] = BAD[bad]
    clean, dirty = everything(tensors, impl, mask=mask), everything(poisoned, impl, mask=mask)
    equal(dirty, clean, impl)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("bad", BAD)
def test_a_key_hidden_by_an_infinite_bias_cannot_reach_anything_either(bad: str, impl: str) -> None:
    tensors = three(1, 2, 20, 8)
    bias = torch.randn(20, 20)
    bias[:, 7] = -torch.inf
    poisoned = grown(tensors)
    for x in poisoned[1:]:
        x.data[:, :, 7] = BAD[bad]
    equal(everything(poisoned, impl, bias=bias), everything(tensors, impl, bias=bias), impl)


@pytest.mark.parametrize("impl", ["cpu", "tiled"])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "options", [{}, {"softcap": 2.0}, {"sinks": torch.zeros(2)}], ids=["plain", "softcap", "sinks"]
)
def test_a_future_that_is_not_finite_leaves_the_past_bit_for_bit(options: dict[str, Any], bad: str, impl: str) -> None:
    tensors = three(1, 2, 300, 8)
    mask = Causal() & Window(150)
    poisoned = grown(tensors)
    for x in poisoned[1:]:
        x.data[:, :, 140] = BAD[bad]
    clean, dirty = (everything(x, impl, mask=mask, **options) for x in (tensors, poisoned))
    for name in ("output", "lse", "entropy", "top_weights", "distance", "d_query"):
        assert torch.equal(dirty[name][:, :, :140], clean[name][:, :, :140]), name
        assert torch.equal(dirty[name][:, :, 290:], clean[name][:, :, 290:]), name  # the window has moved past it


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("at", [0, 1, 2], ids=["query", "key", "value"])
def test_nan_that_may_be_seen_gives_nan_exactly_where_it_is_seen(at: int, impl: str) -> None:
    tensors = three(1, 1, 9, 4)
    tensors[at][0, 0, 4] = math.nan
    out = attention(*tensors, mask=Causal(), impl=impl)
    rows = out.isnan().any(-1)[0, 0].tolist()
    assert rows == ([i == 4 for i in range(9)] if at == 0 else [i >= 4 for i in range(9)])


@pytest.mark.parametrize("impl", IMPLS)
def test_the_future_cannot_be_noticed(impl: str) -> None:
    """By finite poison, bit for bit, at every position of a length that has several tiles."""
    q, k, v = three(1, 2, 300, 16)
    whole = attention(q, k, v, mask=Causal(), impl=impl)
    for cut in (1, 17, 128, 129, 255, 299):
        k2, v2 = k.clone(), v.clone()
        k2[:, :, cut:] *= 100
        v2[:, :, cut:] += 1000
        assert torch.equal(attention(q, k2, v2, mask=Causal(), impl=impl)[:, :, :cut], whole[:, :, :cut]), cut


@pytest.mark.parametrize("impl", IMPLS)
def test_packed_neighbours_cannot_be_noticed(impl: str) -> None:
    q, k, v = three(1, 2, 50, 8)
    mask = Documents(torch.tensor([0] * 20 + [1] * 30))
    whole = attention(q, k, v, mask=mask, impl=impl)
    k[:, :, 20:] *= 100
    v[:, :, 20:] += 1000
    assert torch.equal(attention(q, k, v, mask=mask, impl=impl)[:, :, :20], whole[:, :, :20])


# --------------------------------------------------------------------------------------------------- mask and bias


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
def test_causal_aligns_at_the_end_and_start_is_what_pytorch_means(impl: str) -> None:
    q, k, v = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 7, 4), torch.randn(1, 1, 7, 4)
    end = attention(q, k, v, mask=Causal(), impl=impl)
    torch.testing.assert_close(end[:, :, -1:], attention(q[:, :, -1:], k, v, impl=impl))
    start = attention(q, k, v, mask=Causal(align="start"), impl=impl)
    torch.testing.assert_close(start, scaled_dot_product_attention(q, k, v, is_causal=True))
    assert not torch.allclose(start, end)


@pytest.mark.parametrize("impl", IMPLS)
def test_true_means_may_attend(impl: str) -> None:
    q, k, v = three(1, 1, 4, 4)
    only_first = torch.zeros(4, 4, dtype=torch.bool)
    only_first[:, 0] = True
    torch.testing.assert_close(attention(q, k, v, mask=only_first, impl=impl), v[:, :, :1].expand(1, 1, 4, 4))


@pytest.mark.tiny
def test_a_float_mask_is_refused_not_guessed_at() -> None:
    q, k, v = three(1, 1, 4, 4)
    with pytest.raises(ArgumentError, match=r"mask: expected .* got a float32 tensor of shape \(4, 4\).* go to bias="):
        attention(q, k, v, mask=torch.ones(4, 4))


def test_a_batch_of_masks_is_never_read_as_one_a_head() -> None:
    q, k, v = three(3, 3, 4, 4)  # as many samples as heads: the shape that hides the mistake
    with pytest.raises(ArgumentError, match=r"got \(3, 4, 4\)\. A batch of masks needs a head dimension of its own"):
        attention(q, k, v, mask=torch.ones(3, 4, 4, dtype=torch.bool))


@pytest.mark.parametrize("impl", IMPLS)
def test_mask_and_bias_together_hide_and_add(impl: str) -> None:
    q, k, v = three(1, 2, 6, 4, dtype=PRECISE[impl])
    bias = torch.randn(6, 6, dtype=PRECISE[impl])
    allowed = torch.ones(6, 6).tril().bool()
    wanted = scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(~allowed, -torch.inf))
    torch.testing.assert_close(attention(q, k, v, mask=Causal(), bias=bias, impl=impl), wanted)
    torch.testing.assert_close(attention(q, k, v, mask=Causal() & Dense(allowed), bias=bias, impl=impl), wanted)


@pytest.mark.parametrize("impl", IMPLS)
def test_a_large_finite_bias_is_a_number_and_not_a_mask(impl: str) -> None:
    """−1e4 hides nothing where every score is as low."""
    dtype = PRECISE[impl]
    q, k, v = three(1, 1, 2, 4, dtype=dtype)
    everywhere = torch.full((2, 2), -1e4, dtype=dtype)
    room = {} if dtype == torch.float64 else {"rtol": 0.0, "atol": 2 * 1e4 * torch.finfo(dtype).eps}
    torch.testing.assert_close(attention(q, k, v, bias=everywhere, impl=impl), attention(q, k, v, impl=impl), **room)


@pytest.mark.parametrize("impl", ["cpu", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(5, 300), (1, 300), (1, 2, 5, 300)], ids=str)
def test_a_bias_of_the_most_negative_number_gives_the_mean_of_all_values_and_hides_beside_others(
    shape: tuple[int, ...], dtype: torch.dtype, impl: str
) -> None:
    """finfo.min is what many models write for "hidden": it must not become −inf, and where anything else is seen it is 0."""
    q, k, v = (x.to(dtype) for x in (torch.randn(1, 2, 5, 8), torch.randn(1, 2, 300, 8), torch.randn(1, 2, 300, 8)))
    bias = torch.full(shape, torch.finfo(dtype).min, dtype=dtype)
    seen = observe(q, k, v, bias=bias, impl=impl)
    if dtype != torch.float16:  # there −65504 leaves differences of scores standing
        mean = v.mean(2, keepdim=True).expand(-1, -1, 5, -1)
        torch.testing.assert_close(seen.output, mean)
        torch.testing.assert_close(attention(q, k, v, bias=bias, impl=impl), mean)
    assert bool((seen.visible == 300).all())
    bias[..., 200:] = 0  # a whole block hidden before anything is seen
    leaves = grown([q, k, v])
    for call in (attention, lambda *args, **options: observe(*args, **options).output):
        out = call(*leaves, bias=bias, impl=impl)
        torch.testing.assert_close(out, attention(q, k[:, :, 200:], v[:, :, 200:], impl=impl))
        out.sum().backward()
    assert all(x.grad is not None and bool(torch.isfinite(x.grad).all()) for x in leaves)
    seen = observe(q, k, v, bias=bias, impl=impl)
    assert all(bool(torch.isfinite(x).all()) for x in seen.values.values())


@pytest.mark.parametrize("impl", IMPLS)
def test_gradients_of_a_row_of_the_most_negative_number_are_finite(impl: str) -> None:
    leaves = grown(three(1, 2, 40, 8))
    bias = torch.full((40, 40), torch.finfo(torch.float32).min).triu(1)
    bias[7] = torch.finfo(torch.float32).min
    attention(*leaves, bias=bias, impl=impl).sin().sum().backward()
    assert all(x.grad is not None and bool(torch.isfinite(x.grad).all()) for x in leaves)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("scale", [0.0, -1.0, 1 / 3])
def test_scale_may_be_zero_or_negative_and_is_taken_literally(scale: float, impl: str) -> None:
    q, k, v = three(1, 2, 5, 4, dtype=PRECISE[impl])
    wanted = torch.softmax(q @ k.mT * scale, -1) @ v
    torch.testing.assert_close(attention(q, k, v, scale=scale, impl=impl), wanted)
    torch.testing.assert_close(attention(q, k, v, impl=impl), torch.softmax(q @ k.mT / 2, -1) @ v)


@pytest.mark.parametrize("impl", IMPLS)
def test_scores_of_two_hundred_thousand_stay_exact(impl: str) -> None:
    q, k, v = three(1, 1, 6, 4, dtype=torch.float64)
    wanted = attention(q, k, v, mask=Causal(), impl="reference", scale=2e5)
    got = attention(q.float(), k.float(), v.float(), mask=Causal(), impl=impl, scale=2e5)
    assert bool(torch.isfinite(got).all())
    winner = attention(q.float().double(), k.float().double(), v.float().double(), mask=Causal(), scale=2e5)
    torch.testing.assert_close(got.double(), winner, rtol=1e-3, atol=1e-3)
    assert wanted.shape == got.shape


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
def test_the_softcap_comes_before_bias_and_mask(impl: str) -> None:
    q, k, v = (3 * x for x in three(1, 1, 5, 4, dtype=PRECISE[impl]))
    bias = torch.randn(5, 5, dtype=PRECISE[impl]) * 4
    z = 2 * torch.tanh(q @ k.mT / 2 / 2) + bias
    z = z.masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    out = attention(q, k, v, mask=Causal(), bias=bias, softcap=2.0, impl=impl)
    torch.testing.assert_close(out, torch.softmax(z, -1) @ v)


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
def test_a_sink_takes_its_share_of_the_denominator_and_attends_to_nothing(impl: str) -> None:
    q, k, v = three(1, 2, 3, 4, dtype=PRECISE[impl])
    sinks = torch.tensor([0.3, 4.0], dtype=PRECISE[impl])
    z = torch.cat([q @ k.mT / 2, sinks[None, :, None, None].expand(1, 2, 3, 1)], dim=-1)
    torch.testing.assert_close(attention(q, k, v, sinks=sinks, impl=impl), torch.softmax(z, -1)[..., :3] @ v)


def test_alibi_slopes_for_six_heads_and_for_powers_of_two() -> None:
    assert ALiBi(6).slopes.tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert ALiBi(8).slopes.tolist() == [2.0**-n for n in range(1, 9)]
    assert ALiBi(1).slopes.tolist() == [2.0**-8]


@pytest.mark.parametrize("impl", IMPLS)
def test_a_window_holds_w_keys_and_not_one_more_or_less(impl: str) -> None:
    q, k = torch.zeros(1, 1, 30, 2), torch.zeros(1, 1, 30, 2)
    v = torch.eye(30)[None, None]
    for left, right in ((1, 0), (4, 0), (4, 3), (30, 0), (2, 30)):
        sees = attention(q, k, v, mask=Window(left, right=right), impl=impl)[0, 0] > 0
        i, j = torch.arange(30)[:, None], torch.arange(30)
        assert torch.equal(sees, (j > i - left) & (j <= i + right)), (left, right)


# --------------------------------------------------------------------------- the same bits; transforms of the call

SIZES = [
    (1, 2, 2, 33, 8),
    pytest.param((2, 4, 2, 130, 16), marks=pytest.mark.tiny),
    (1, 8, 8, 700, 32),
    (1, 1, 1, 1500, 64),
]


@pytest.mark.parametrize("impl", ["cpu", "tiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_same_bits_in_every_run_and_for_every_number_of_threads(
    size: tuple[int, ...], dtype: torch.dtype, impl: str
) -> None:
    B, Hq, Hk, T, D = size
    tensors = [torch.randn(B, h, T, D).to(dtype) for h in (Hq, Hk, Hk)]
    runs = []
    for threads in (1, 1, 2, 3):
        torch.set_num_threads(threads)
        leaves = grown(tensors)
        out = attention(*leaves, mask=Causal(), impl=impl)
        grads = torch.autograd.grad(out, leaves, torch.ones_like(out))
        seen = observe(*tensors, mask=Causal(), impl=impl)
        runs.append({"attention": out, "d_query": grads[0], "d_key": grads[1], "d_value": grads[2], **seen.values})
    for n, run in enumerate(runs[1:], start=1):
        for name, wanted in runs[0].items():
            assert torch.equal(run[name], wanted), f"{name} in run {n}"


@pytest.mark.tiny
def test_vmap_equals_a_loop() -> None:
    q, k, v = three(3, 2, 10, 4)
    mapped = torch.vmap(lambda q, k, v: attention(q, k, v, mask=Causal()))(q, k, v)
    torch.testing.assert_close(mapped, torch.stack([attention(q[n], k[n], v[n], mask=Causal()) for n in range(3)]))
    shared_key = torch.vmap(lambda q, v: attention(q, k[0], v, mask=Causal()), in_dims=(0, 0))(q, v)
    loop = torch.stack([attention(q[n], k[0], v[n], mask=Causal()) for n in range(3)])
    torch.testing.assert_close(shared_key, loop)


IDS = torch.tensor([0, 0, 1, 1, 1, 0])
BOTH_IDS = torch.stack([IDS, IDS * torch.arange(6)])
MAPPED: dict[str, tuple[tuple[int | None, ...], Any]] = {
    "a batch inside": ((0, 0, 0, None, None), lambda q, k, v, b, s: attention(q, k, v, mask=Causal() & Documents(IDS))),
    "documents inside": ((0, 0, 0, None, None), lambda q, k, v, b, s: attention(q, k, v, mask=Documents(BOTH_IDS))),
    "lengths inside": (
        (0, 0, 0, None, None),
        lambda q, k, v, b, s: attention(q, k, v, mask=Padding(torch.tensor([2, 6]))),
    ),
    "a mask tensor": ((0, 0, 0, None, None), lambda q, k, v, b, s: attention(q, k, v, mask=IDS[:, None] == IDS)),
    "another dimension": ((1, 0, 2, None, None), lambda q, k, v, b, s: attention(q, k, v, softcap=2.0)),
    "the query alone": ((0, None, None, None, None), lambda q, k, v, b, s: attention(q, k[0], v[0], mask=Window(3))),
    "the value alone": ((None, None, 0, None, None), lambda q, k, v, b, s: attention(q[0], k[0], v, bias=b[0])),
    "its own bias": ((0, 0, 0, 0, None), lambda q, k, v, b, s: attention(q, k, v, bias=b)),
    "a shared bias": ((0, 0, 0, None, None), lambda q, k, v, b, s: attention(q, k, v, bias=b[0])),
    "its own sinks": ((0, 0, 0, None, 0), lambda q, k, v, b, s: attention(q, k, v, sinks=s)),
    "shared sinks and ALiBi": (
        (0, 0, 0, None, None),
        lambda q, k, v, b, s: attention(q, k, v, sinks=s[0], bias=ALiBi(2)),
    ),
}


@pytest.mark.parametrize("what", MAPPED)
def test_whatever_is_mapped_over_equals_a_loop(what: str) -> None:
    dims, call = MAPPED[what]
    inputs = [*three(3, 2, 2, 6, 4), torch.randn(3, 6, 6), torch.randn(3, 2)]  # three maps of two samples of two heads
    moved = [x if d is None else x.movedim(0, d) for x, d in zip(inputs, dims, strict=True)]
    mapped = torch.vmap(call, in_dims=dims)(*moved)
    loop = [call(*(x if d is None else x[n] for x, d in zip(inputs, dims, strict=True))) for n in range(3)]
    torch.testing.assert_close(mapped, torch.stack(loop))


def test_maps_within_maps_equal_loops_within_loops() -> None:
    q, k, v = three(2, 3, 2, 5, 4)
    twice = torch.vmap(torch.vmap(lambda q, k, v: attention(q, k, v, mask=Causal())))(q, k, v)
    torch.testing.assert_close(twice, attention(q, k, v, mask=Causal()))


def test_gradients_pass_through_a_mapped_call() -> None:
    def mapped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.vmap(lambda q, k, v: attention(q, k, v, mask=Causal(), softcap=3.0))(q, k, v)

    tensors = three(3, 2, 6, 4, dtype=torch.float64)
    leaves = grown(tensors)
    found = torch.autograd.grad(mapped(*leaves).sin().sum(), leaves)
    for n in range(3):
        alone = grown([x[n] for x in tensors])
        wanted = torch.autograd.grad(attention(*alone, mask=Causal(), softcap=3.0).sin().sum(), alone)
        for got, one in zip(found, wanted, strict=True):
            torch.testing.assert_close(got[n], one)


def test_gradients_of_each_sample_come_from_one_mapped_backward() -> None:
    """A shared key: which sample pulls it where? One forward, and a backward mapped over one incoming gradient a sample."""
    q, k, v = three(3, 2, 6, 4, dtype=torch.float64)
    shared = k[:1].clone().requires_grad_()
    losses = attention(q, shared.expand(3, -1, -1, -1), v, mask=Causal()).sin().sum((1, 2, 3))
    each = torch.vmap(lambda g: torch.autograd.grad(losses, shared, g, retain_graph=True)[0])(torch.eye(3).double())
    for n in range(3):
        alone = shared.detach().clone().requires_grad_()
        attention(q[n : n + 1], alone, v[n : n + 1], mask=Causal()).sin().sum().backward()
        torch.testing.assert_close(each[n], alone.grad)


@pytest.mark.tiny
def test_autocast_computes_in_the_lower_dtype_as_pytorch_does() -> None:
    q, k, v = three(1, 2, 9, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(q, k, v, mask=Causal())
        theirs = scaled_dot_product_attention(q, k, v, is_causal=True)
        doubled = attention(q.double(), k.double(), v.double())
    assert out.dtype == theirs.dtype == torch.bfloat16
    assert doubled.dtype == torch.float64
    assert torch.equal(out, attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask=Causal()))


def test_autocast_lets_gradients_come_back_in_the_leaves_dtype() -> None:
    leaves = grown(three(1, 2, 9, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = attention(*leaves, mask=Causal())
    out.float().sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in leaves)


def test_a_backward_inside_autocast_gives_the_bits_of_one_outside() -> None:
    def gradients(inside: bool) -> list[Tensor]:
        torch.manual_seed(0)
        leaves = grown(three(1, 2, 9, 8))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = attention(*leaves, mask=Causal())
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            return list(torch.autograd.grad(out, leaves, torch.ones_like(out)))

    for a, b in zip(gradients(inside=True), gradients(inside=False), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("impl", IMPLS)
def test_observing_inside_autocast_still_measures_in_float32(impl: str) -> None:
    q, k, v = (x.bfloat16() for x in three(1, 2, 9, 8))
    wanted = observe(q, k, v, mask=Causal(), impl=impl)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen = observe(q.float(), k.float(), v.float(), mask=Causal(), impl=impl)
    for name, x in wanted.values.items():
        assert seen.values[name].dtype == x.dtype, name
        assert torch.equal(seen.values[name], x), name


@pytest.mark.parametrize("impl", IMPLS)
def test_a_query_that_is_nan_gives_no_weight_to_keys_it_may_not_see(impl: str) -> None:
    q, k, v = three(1, 2, 40, 8)
    q[:, :, 3] = math.nan
    seen = observe(q, k, v, mask=Window(2), observables=Observables(rows=(3,), map=0), impl=impl)
    assert bool(seen.first_weight[:, :, 3].eq(0).all())
    assert bool(seen.top_keys[:, :, 3].eq(-1).all())  # nor does it rank any
    assert bool(seen.top_weights[:, :, 3].eq(0).all())
    assert seen.received.isnan().nonzero()[:, 2].unique().tolist() == [2, 3]  # which it may see
    assert seen.rows.isnan().nonzero()[:, 3].unique().tolist() == [2, 3]
    assert bool(
        observe(q, k, v, mask=Window(2), observables=Observables(), impl=impl).map_max[:, :, 8:].isfinite().all()
    )
