"""Accelerated, `scaled_dot_product_attention` gives what PyTorch gives: numbers, gradients, strides, errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from accelerated import BACKWARD, FORWARD, home, inputs, ramp, with_gradients
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from clearhead import accelerate
from clearhead.testing.tolerance import assert_within_tolerance


def test_a_call_too_small_to_gain_is_handed_back(ran: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "SMALL", {torch.float32: 2 * 3 * 5 * 5 * 8})
    with accelerate():
        for T, ours in ((4, 0), (5, 1)):
            q = torch.randn(2, 3, T, 8)
            sdpa(q, q, q)
            assert ran["forward"] == ours


def size_of_terms(q: Tensor, k: Tensor, v: Tensor, scale: float) -> float:
    """How large the terms are that a gradient of query or key adds up, which may cancel to nothing: |dO·v| · |k| · scale."""
    groups = q.shape[1] // k.shape[1]
    dots = ramp(q) @ v.repeat_interleave(groups, dim=1).mT
    return float(dots.abs().max() * max(k.abs().max(), q.abs().max())) * abs(scale)


def cast(x: Any, dtype: torch.dtype) -> Any:
    """Numbers in another dtype, at the same strides."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    whole = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
    return whole.copy_(x) if 0 not in x.stride() else x.to(dtype).as_strided(x.shape, x.stride())


def check(args: tuple[Tensor, ...], options: dict[str, Any], dtype: torch.dtype, ran: Counter[str]) -> None:
    """Accelerated, `args` give what PyTorch gives: numbers within the rule, shapes, strides and dtypes the same."""
    args, options = tuple(cast(x, dtype) for x in args), {n: cast(x, dtype) for n, x in options.items()}
    wide = {n: cast(x, torch.float64) for n, x in options.items()}
    truth = with_gradients(tuple(cast(x, torch.float64) for x in args), **wide)
    stock = with_gradients(args, **options)
    with sdpa_kernel(SDPBackend.MATH):
        baseline = with_gradients(args, **without_both(args, options))
    with accelerate():
        got = with_gradients(args, **options)
    assert ran["forward"] == ran["backward"] == 1
    terms = size_of_terms(*args, options.get("scale") or args[0].shape[-1] ** -0.5)
    for what, mine, exact, plain, theirs in zip(
        ("output", "query", "key", "value"), got, truth, baseline, stock, strict=True
    ):
        gradient = what != "output"
        magnitude = terms if gradient else 0.0
        assert_within_tolerance(mine, exact, plain, gradient=gradient, magnitude=magnitude, what=what)
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype), what


def without_both(args: tuple[Tensor, ...], options: dict[str, Any]) -> dict[str, Any]:
    """The options with `is_causal` written into the mask where there are both, which the math path refuses."""
    mask = options.get("attn_mask")
    if mask is None or not options.get("is_causal"):
        return options
    past = torch.ones(args[0].shape[2], args[1].shape[2], dtype=torch.bool).tril()
    merged = mask & past if mask.dtype == torch.bool else mask.masked_fill(~past, -torch.inf)
    return options | {"attn_mask": merged, "is_causal": False}


def strided(kind: str) -> tuple[Tensor, ...]:
    if kind == "(B, T, H, D)":
        return tuple(torch.randn(2, 20, 4, 8).transpose(1, 2) for _ in range(3))
    if kind == "cut from one projection":
        return tuple(x.transpose(1, 2) for x in torch.randn(2, 20, 4, 24).split(8, dim=-1))
    if kind == "(T, B, H, D)":
        return tuple(torch.randn(20, 2, 4, 8).permute(1, 2, 0, 3) for _ in range(3))
    if kind == "heads expanded":
        q, k, v = inputs(Hk=1)
        return q, k.expand(-1, 4, -1, -1), v.expand(-1, 4, -1, -1)
    if kind == "batch expanded":
        return tuple(x.expand(3, -1, -1, -1) for x in inputs(B=1))
    q, k, v = inputs(Tk=66)
    return q, k[:, :, ::2], v[:, :, 1::2]  # every second key


def a_mask(kind: str) -> Tensor:
    """For `inputs(Tk=40)`. Some rows of the first see nothing."""
    return {
        "bool, rows that see nothing": torch.rand(33, 40) > torch.linspace(0, 1.3, 33)[:, None],
        "bool padding": (torch.arange(40) < torch.tensor([40, 23])[:, None])[:, None, None],
        "bool by head": torch.rand(1, 4, 33, 40) > 0.5,
        "bool expanded": (torch.rand(2, 1, 33, 40) > 0.5).expand(-1, 4, -1, -1),
        "numbers": torch.randn(33, 40),
        "numbers by sample and head": torch.randn(2, 4, 33, 40),
        "numbers by key": torch.randn(1, 1, 1, 40),
        "numbers, some of them −inf": torch.randn(33, 40).masked_fill(torch.rand(33, 40) > 0.5, -torch.inf),
        "0 and 1": (torch.rand(33, 40) > 0.5).float(),
    }[kind]


MASKS = (
    "bool, rows that see nothing", "bool padding", "bool by head", "bool expanded", "numbers", "numbers by sample and head",
    "numbers by key", "numbers, some of them −inf", "0 and 1",
)  # fmt: skip


CASES: dict[str, Callable[[], tuple[tuple[Tensor, ...], dict[str, Any]]]] = {
    "everything": lambda: (inputs(), {}),
    "causal": lambda: (inputs(), {"is_causal": True}),
    "causal, fewer queries": lambda: (inputs(Tq=9), {"is_causal": True}),
    "causal, fewer keys": lambda: (inputs(Tk=9), {"is_causal": True}),
    "causal over several tiles": lambda: (inputs(B=1, Hq=1, Hk=1, Tq=513, Tk=300), {"is_causal": True}),
    "one query": lambda: (inputs(Tq=1, Tk=239), {}),
    "one query, causal: sees one key": lambda: (inputs(Tq=1, Tk=239), {"is_causal": True}),
    "one of everything": lambda: (inputs(1, 1, 1, 1, 1, 1), {}),
    "(127, 513)": lambda: (inputs(1, 2, 2, 127, 513, 8), {}),
    "(113, 203), width 59": lambda: (inputs(1, 2, 2, 113, 203, 59), {"is_causal": True}),
    "width 5": lambda: (inputs(D=5), {}),
    "width 256": lambda: (inputs(D=256), {}),
    "grouped heads": lambda: (inputs(Hq=6, Hk=2), {"is_causal": True}),
    "one key head": lambda: (inputs(Hk=1), {}),
    "scale 0": lambda: (inputs(), {"scale": 0.0}),
    "scale below 0": lambda: (inputs(), {"scale": -0.3}),
    "scale given": lambda: (inputs(), {"scale": 1.7}),
    **{f"mask: {kind}": lambda kind=kind: (inputs(Tk=40), {"attn_mask": a_mask(kind)}) for kind in MASKS},
    "mask and causal": lambda: (inputs(Tk=40), {"attn_mask": torch.randn(33, 40), "is_causal": True}),
    "mask and grouped heads": lambda: (inputs(Hk=2, Tk=40), {"attn_mask": a_mask("bool by head")}),
    **{
        kind: lambda kind=kind: (strided(kind), {"is_causal": True})
        for kind in (
            "(B, T, H, D)", "cut from one projection", "(T, B, H, D)", "heads expanded", "batch expanded", "every second key",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_outputs_gradients_and_strides_are_pytorchs(case: str, ran: Counter[str]) -> None:
    args, options = CASES[case]()
    check(args, options, torch.float32, ran)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "case", ["causal", "grouped heads", "mask: bool, rows that see nothing", "mask: numbers", "(B, T, H, D)"]
)
def test_sixteen_bits_too(case: str, dtype: torch.dtype, ran: Counter[str]) -> None:
    args, options = CASES[case]()
    check(args, options, dtype, ran)


def test_a_float32_mask_over_sixteen_bits(ran: Counter[str]) -> None:
    args, mask = tuple(x.bfloat16() for x in inputs()), torch.randn(33, 33)
    theirs = sdpa(*args, attn_mask=mask)
    with accelerate():
        mine = sdpa(*args, attn_mask=mask)
    assert ran["forward"] == 1
    truth = sdpa(*(x.double() for x in args), attn_mask=mask.double())
    assert_within_tolerance(mine, truth, theirs)


def test_a_row_of_the_most_negative_number_is_the_mean_of_all_values(ran: Counter[str]) -> None:
    q, k, v = inputs()
    mask = torch.zeros(33, 33)
    mask[3] = torch.finfo(torch.float32).min
    with accelerate():
        out = sdpa(q, k, v, attn_mask=mask)
    torch.testing.assert_close(out[:, :, 3], sdpa(q, k, v, attn_mask=mask)[:, :, 3])
    torch.testing.assert_close(out[:, :, 3], v.mean(2))


def test_nan_in_a_query_stays_and_nan_at_an_unseen_key_reaches_nobody() -> None:
    q, k, v = inputs(1, 1, 1, 5, 5, 4)
    q[0, 0, 1, 2] = torch.nan
    k[0, 0, 4] = v[0, 0, 4] = torch.nan
    with accelerate():
        out = sdpa(q, k, v, is_causal=True)[0, 0].isnan().all(-1)
    assert out.tolist() == [False, True, False, False, True]


def hiding(mask: Tensor | None) -> Tensor | None:
    if mask is not None:
        mask[2] = -torch.inf
    return mask


def test_the_operator_itself_on_no_samples_and_on_sixteen_bits(ran: Counter[str]) -> None:
    empty, args = inputs(B=0), tuple(x.bfloat16() for x in inputs())
    grad = torch.ones_like(args[0])
    wanted, theirs = FORWARD(*empty), FORWARD(*args)
    dtypes = [x.dtype for x in BACKWARD(grad, *args, *theirs, 0.0, False)]
    with accelerate():
        torch.testing.assert_close(FORWARD(*empty), wanted)
        assert not ran
        mine = FORWARD(*args)
        assert [x.dtype for x in mine] == [x.dtype for x in theirs]
        assert [x.dtype for x in BACKWARD(grad, *args, *mine, 0.0, False)] == dtypes


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("inside", ["forward", "backward"])
def test_a_forward_inside_may_have_its_backward_outside_and_the_other_way_round(
    inside: str, masked: bool, ran: Counter[str]
) -> None:
    q, k, v = inputs()
    mask = hiding(torch.randn(33, 33) if masked else None)
    grad = torch.randn(2, 4, 33, 16)
    out, lse = FORWARD(q, k, v, attn_mask=mask)
    wanted = BACKWARD(grad, q, k, v, out, lse, 0.0, False, attn_mask=mask)
    with accelerate() if inside == "forward" else nullcontext():
        mine, my_lse = FORWARD(q, k, v, attn_mask=mask)
    assert (my_lse.shape, my_lse.stride(), my_lse.dtype) == (lse.shape, lse.stride(), lse.dtype)
    torch.testing.assert_close(my_lse, lse)
    with accelerate() if inside == "backward" else nullcontext():
        found = BACKWARD(grad, q, k, v, mine, my_lse, 0.0, False, attn_mask=mask)
    assert ran == {inside: 1}
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(x, y)


def test_non_contiguous_and_expanded_incoming_gradients() -> None:
    args = [x.requires_grad_() for x in inputs()]

    def gradients() -> list[list[Tensor]]:
        out = sdpa(*args, is_causal=True)
        ways = [out.sum(), out.transpose(1, 2).reshape(2, 33, 64).tanh().sum(), (out * out.mT.mT.flip(2)).sum()]
        return [list(torch.autograd.grad(way, args, retain_graph=True)) for way in ways]

    wanted = gradients()
    with accelerate():
        torch.testing.assert_close(gradients(), wanted)


HANDED_BACK: dict[str, Callable[[], tuple[tuple[Tensor, ...], dict[str, Any]]]] = {
    "float64": lambda: (tuple(x.double() for x in inputs()), {"is_causal": True}),
    "no batch": lambda: (tuple(x[0] for x in inputs()), {}),
    "five dimensions": lambda: (tuple(x[None] for x in inputs()), {}),
    "Dv other than D": lambda: ((*inputs()[:2], torch.randn(2, 4, 33, 3)), {"is_causal": True}),
    "last stride other than 1": lambda: (tuple(x.mT.contiguous().mT for x in inputs()), {}),
    "no samples": lambda: (inputs(B=0), {}),
    "no heads": lambda: (inputs(Hq=0, Hk=0), {}),
    "no queries": lambda: (inputs(Tq=0), {}),
    "no keys": lambda: (inputs(Tk=0), {}),
    "no width": lambda: (inputs(D=0), {}),
    "dropout": lambda: (inputs(), {"dropout_p": 0.5}),
    "a mask of three dimensions": lambda: (inputs(), {"attn_mask": torch.randn(4, 33, 33)}),
}


@pytest.mark.parametrize("case", HANDED_BACK)
def test_what_is_handed_back_has_pytorchs_bits(case: str, ran: Counter[str]) -> None:
    args, options = HANDED_BACK[case]()
    torch.manual_seed(1)
    wanted = with_gradients(args, **options)
    with accelerate():
        torch.manual_seed(1)
        got = with_gradients(args, **options)
    assert not ran
    for x, y in zip(got, wanted, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0, check_stride=True)


def test_a_mask_that_requires_a_gradient_gets_it_as_before(ran: Counter[str]) -> None:
    mask = torch.randn(33, 33, requires_grad=True)
    args = inputs()
    (wanted,) = torch.autograd.grad(sdpa(*args, attn_mask=mask).square().sum(), mask)
    with accelerate():
        (got,) = torch.autograd.grad(sdpa(*args, attn_mask=mask).square().sum(), mask)
    assert not ran
    assert torch.equal(got, wanted)


q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)

REFUSED: dict[str, Callable[[], object]] = {
    "a dtype of its own": lambda: sdpa(q, k.half(), v),
    "heads that do not divide": lambda: sdpa(q, k[:, :3], v[:, :3], enable_gqa=True),
    "widths": lambda: sdpa(q, k[..., :4], v),
    "the mask's shape": lambda: sdpa(q, k, v, attn_mask=torch.randn(5, 6)),
    "the mask's dtype": lambda: sdpa(q, k, v, attn_mask=torch.randn(5, 7).double()),
    "an integer mask": lambda: sdpa(q, k, v, attn_mask=torch.ones(5, 7, dtype=torch.int64)),
    "integers": lambda: sdpa(q.long(), k.long(), v.long()),
    "dropout out of range": lambda: sdpa(q, k, v, dropout_p=1.5),
    "dropout, to the operator": lambda: FORWARD(q, k, v, 0.5),
    "Dv, to the operator": lambda: FORWARD(q, k, v[..., :3]),
    "three dimensions, to the operator": lambda: FORWARD(q[0], k[0], v[0]),
    "three and four dimensions, to the operator": lambda: FORWARD(q[:, 0], k, v),
    "the mask's dtype, to the operator": lambda: FORWARD(q, k, v, attn_mask=torch.randn(5, 7).double()),
    "the mask's dimensions, to the operator": lambda: FORWARD(q, k, v, attn_mask=torch.randn(4, 5, 7)),
    "a second derivative": lambda: second_derivative(),
}


def second_derivative() -> Tensor:
    x = q.clone().requires_grad_()
    (first,) = torch.autograd.grad(sdpa(x, k, v).square().sum(), x, create_graph=True)
    return torch.autograd.grad(first.sum(), x)[0]


@pytest.mark.parametrize("case", REFUSED)
def test_errors_are_pytorchs(case: str, ran: Counter[str]) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        REFUSED[case]()
    with accelerate(), pytest.raises(type(theirs.value)) as mine:
        REFUSED[case]()
    assert str(mine.value).split("Exception raised from")[0] == str(theirs.value).split("Exception raised from")[0]
    assert ran["forward"] == (case == "a second derivative")
