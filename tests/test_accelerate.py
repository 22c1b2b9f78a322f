"""`accelerate()` changes how fast `scaled_dot_product_attention` is, and nothing else."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from accelerate_models import MODELS, WORDS, logits, losses
from clearhead import accelerate, attention, watch
from clearhead.errors import ArgumentError, ImplementationError
from clearhead.testing.tolerance import assert_within_tolerance

home = importlib.import_module("clearhead.accelerate")  # the module; the public name is the function in it
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test begins and ends with PyTorch's own kernels; in between, ours take calls of any size."""
    monkeypatch.setattr(home, "SMALL", dict.fromkeys(home.SMALL, 0))
    before = registered()
    assert "RegisterCPU" in before
    yield
    assert registered() == before
    assert not home._in_force
    assert not home._installed


def test_a_call_too_small_to_gain_is_handed_back(ran: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "SMALL", {torch.float32: 2 * 3 * 5 * 5 * 8})
    with accelerate():
        for T, ours in ((4, 0), (5, 1)):
            q = torch.randn(2, 3, T, 8)
            sdpa(q, q, q)
            assert ran["forward"] == ours


def registered() -> str:
    """What the dispatcher says about both operators."""
    return "".join(torch._C._dispatch_dump(f"aten::{name}") for name in (home.FORWARD, home.BACKWARD))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often our own kernels ran: a call that was handed back would agree with PyTorch without proving anything."""
    counts: Counter[str] = Counter()

    def counted(what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            counts[what] += 1
            return method(*args)

        return run

    for what, name in (("forward", "attend"), ("backward", "attend_backward")):
        monkeypatch.setattr(home._Override, name, counted(what, getattr(home._Override, name)))
    return counts


def inputs(B: int = 2, Hq: int = 4, Hk: int = 4, Tq: int = 33, Tk: int = 33, D: int = 16) -> tuple[Tensor, ...]:
    return torch.randn(B, Hq, Tq, D), torch.randn(B, Hk, Tk, D), torch.randn(B, Hk, Tk, D)


def with_gradients(args: tuple[Tensor, ...], **options: Any) -> list[Tensor]:
    """Output and gradients of query, key and value, whose strides stay as they are."""
    leaves = [x.detach().requires_grad_() for x in args]
    out = sdpa(*leaves, enable_gqa=args[0].shape[1:2] != args[1].shape[1:2], **options)
    return [out.detach(), *torch.autograd.grad((out * ramp(out)).sum(), leaves)]


def ramp(out: Tensor) -> Tensor:
    """The gradient that comes in from above."""
    return torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)


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


def test_autocast_no_grad_and_inference_mode(ran: Counter[str]) -> None:
    args, grad = [x.requires_grad_() for x in inputs()], torch.randn(2, 4, 33, 16)

    def under_autocast() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = sdpa(*args, attn_mask=torch.zeros(33, 33), is_causal=True)
            return [out, *torch.autograd.grad(out, args, grad.bfloat16())]  # autocast is on in backward too

    def without_gradients() -> list[Tensor]:
        found = []
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found.append(sdpa(*args, is_causal=True))
        return found

    wanted = under_autocast(), without_gradients()
    with accelerate():
        got = under_autocast(), without_gradients()
    assert ran == {"forward": 3, "backward": 1}
    assert [x.dtype for x in got[0]] == [x.dtype for x in wanted[0]]
    assert [x.requires_grad for x in got[1]] == [False, False]
    torch.testing.assert_close(got[1], wanted[1])
    truth = with_truth(args, grad.bfloat16())
    for n, (mine, exact, theirs) in enumerate(zip(got[0], truth, wanted[0], strict=True)):
        assert_within_tolerance(mine, exact, theirs, gradient=n > 0)


def test_a_backward_under_autocast_keeps_its_dtype() -> None:
    args, grad = [x.requires_grad_() for x in inputs()], torch.randn(2, 4, 33, 16)

    def gradients() -> tuple[Tensor, ...]:
        out = sdpa(*args)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.autograd.grad(out, args, grad)

    wanted = gradients()
    with accelerate():
        torch.testing.assert_close(gradients(), wanted)


def with_truth(args: list[Tensor], grad: Tensor) -> list[Tensor]:
    """In float64, of what autocast to bfloat16 computes from."""
    leaves = [x.detach().bfloat16().double().requires_grad_() for x in args]
    out = sdpa(*leaves, is_causal=True)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's, with or without us
def test_vmap_functional_gradients_checkpointing_and_tracing(ran: Counter[str]) -> None:
    q, k, v = inputs()

    def loss(q: Tensor) -> Tensor:
        return sdpa(q, k, v, is_causal=True).square().sum()

    def each_way() -> list[Tensor]:
        leaf = q.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(loss, leaf, use_reentrant=False).backward()
        assert leaf.grad is not None
        return [
            torch.vmap(lambda q: sdpa(q, k, v))(torch.stack([q, q + 1])),
            torch.func.grad(loss)(q),
            torch.vmap(torch.func.grad(loss))(torch.stack([q, q + 1])),
            leaf.grad,
        ]

    wanted = each_way()
    with accelerate():
        got = each_way()
    assert ran == {"forward": 7, "backward": 4}
    torch.testing.assert_close(got, wanted)


def test_compiled_graphs_follow_the_switch(ran: Counter[str]) -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q.sin(), k, v, is_causal=True).square()

    def compiled() -> Callable[..., Tensor]:
        torch._dynamo.reset()
        return torch.compile(layer, backend="aot_eager", fullgraph=True)

    args = inputs()
    before = compiled()
    wanted = before(*args)
    with accelerate():
        torch.testing.assert_close(before(*args), wanted)
        assert ran["forward"] == 1
        inside = compiled()
        q = args[0].clone().requires_grad_()
        inside(q, *args[1:]).sum().backward()
        assert ran == {"forward": 2, "backward": 1}
    assert torch.equal(inside(*args), wanted)
    assert torch.equal(before(*args), wanted)
    assert ran["forward"] == 2


class Opaque:
    """A context that the compiler cannot look through: what runs inside runs as it is, the compiler still at work."""

    def __enter__(self) -> None:
        torch._dynamo.graph_break()

    def __exit__(self, *_: object) -> None:
        torch._dynamo.graph_break()


def test_the_compiler_leaves_our_kernels_alone(ran: Counter[str]) -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with Opaque():
            torch._dynamo.graph_break()
            return sdpa(q, k, v, is_causal=True)

    def frames() -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.compile(layer, backend="eager")(*inputs())
        return int(torch._dynamo.utils.counters["frames"]["total"])

    wanted = frames()
    with accelerate():
        assert frames() == wanted
    assert ran["forward"] == 1


def test_undone_it_is_as_if_it_had_never_been() -> None:
    args = inputs()
    wanted = with_gradients(args, is_causal=True)
    for _ in range(3):
        with accelerate():
            sdpa(*args)
    for x, y in zip(with_gradients(args, is_causal=True), wanted, strict=True):
        assert torch.equal(x, y)


@pytest.mark.tiny
def test_a_switch_without_a_block(ran: Counter[str]) -> None:
    handle = accelerate()
    assert repr(handle) == f"<accelerate(impl={handle.impl!r}), in force: 0 calls, 0 handed back>"
    sdpa(*inputs())
    assert repr(handle) == f"<accelerate(impl={handle.impl!r}), in force: 1 call, 0 handed back>"
    handle.undo()
    handle.undo()
    assert repr(handle) == f"<accelerate(impl={handle.impl!r}), undone: 1 call, 0 handed back>"
    sdpa(*inputs())
    assert handle.calls == 1
    assert ran["forward"] == 1
    with (
        pytest.raises(ArgumentError, match="accelerate: expected a handle that is in force, got one that was undone"),
        handle,
    ):
        pass


def test_a_handle_counts_the_calls_of_its_own_time_and_those_handed_back() -> None:
    exact = tuple(t.double() for t in inputs())
    with accelerate() as outer:
        sdpa(*inputs())
        sdpa(*exact)
        with accelerate() as inner:
            sdpa(*inputs())
        assert (inner.calls, inner.handed_back) == (1, 0)
        sdpa(*exact)
        assert (inner.calls, inner.handed_back) == (1, 0)  # it has left
    assert (outer.calls, outer.handed_back) == (2, 2)
    with accelerate() as later:
        assert (later.calls, later.handed_back) == (0, 0)


def test_the_fast_path_of_torch_layers_goes_by_and_can_be_switched_off() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 128, 64)
    with torch.no_grad(), accelerate() as handle:
        past = model(x)
        assert handle.calls == 0
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            ours = model(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        assert handle.calls == 2
    torch.testing.assert_close(ours, past, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("outer_first", [True, False])
def test_nested_uses_end_with_the_last(outer_first: bool, ran: Counter[str]) -> None:
    outer, inner = accelerate(), accelerate()
    for n, handle in enumerate((outer, inner) if outer_first else (inner, outer)):
        sdpa(*inputs())
        assert ran["forward"] == n + 1
        handle.undo()
    sdpa(*inputs())
    assert ran["forward"] == 2


def test_an_exception_inside_leaves_nothing_installed() -> None:
    with pytest.raises(KeyError), accelerate():
        raise KeyError


def test_an_exception_of_a_kernel_reaches_the_caller_and_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no room")

    args = inputs()
    wanted = sdpa(*args)
    monkeypatch.setattr(home.select, "kernels", lambda _: home.select.Kernels(fails, fails, fails))
    with accelerate(), pytest.raises(MemoryError, match="no room"):
        sdpa(*args)
    assert torch.equal(sdpa(*args), wanted)


def test_half_an_installation_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.library.Library.impl

    def only_the_first(self: Any, name: str, *args: Any, **options: Any) -> None:
        if name == home.BACKWARD:
            raise RuntimeError("the dispatcher is full")
        real(self, name, *args, **options)

    monkeypatch.setattr(torch.library.Library, "impl", only_the_first)
    with pytest.raises(RuntimeError, match="the dispatcher is full"):
        accelerate()


def test_what_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match=r"impl: expected one of .* got 'fast'"):
        accelerate(impl="fast")
    with pytest.raises(ImplementationError, match='impl: expected an implementation made for speed, got "reference"'):
        accelerate(impl="reference")
    with (
        accelerate(impl="tiled"),
        pytest.raises(ArgumentError, match=r'expected "tiled", which this .* already, got "reference"'),
    ):
        accelerate(impl="reference")
    monkeypatch.setenv("CLEARHEAD_IMPL", "reference")
    with pytest.raises(ImplementationError, match="Unset CLEARHEAD_IMPL"):
        accelerate()
    monkeypatch.delenv("CLEARHEAD_IMPL")
    monkeypatch.delattr(torch.library, "get_kernel")
    with pytest.raises(ImplementationError, match=rf"expected PyTorch 2.9 or newer, .* got {torch.__version__[:4]}"):
        accelerate()


def test_all_threads_are_accelerated_and_may_overlap(ran: Counter[str]) -> None:
    """Eight threads enter and leave as they please, and every result is right."""
    args = inputs()
    wanted = sdpa(*args, is_causal=True)
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(12):
                with accelerate():
                    torch.testing.assert_close(sdpa(*args, is_causal=True), wanted)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    with accelerate():
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert ran["forward"] == 8 * 12


def test_switching_while_others_compute_breaks_nothing() -> None:
    args = inputs()
    wanted = sdpa(*args, is_causal=True)
    done, wrong = threading.Event(), []

    def work() -> None:
        try:
            while not done.is_set():
                torch.testing.assert_close(sdpa(*args, is_causal=True), wanted)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        with accelerate():
            sdpa(*args)
    done.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_acceleration_watched_sees_what_watch_sees(ran: Counter[str]) -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attention(x, x, x) + sdpa(x, x, x)

    model, x = Both(), torch.randn(2, 4, 9, 16)
    plain = model(x)
    with accelerate(), watch(model) as trace:
        torch.testing.assert_close(model(x), plain)
    with watch(model) as other, accelerate():
        model(x)
    assert [len(t.calls) for t in (trace, other)] == [2, 2]  # each call once, whoever makes it
    assert ran["forward"] == 0  # what is watched is computed while it is observed


def test_nothing_is_said_and_nothing_hangs_at_exit() -> None:
    code = (
        "import torch, clearhead\n"
        "clearhead.accelerate()\n"
        "x = torch.randn(1, 2, 5, 8, requires_grad=True)\n"
        "torch.nn.functional.scaled_dot_product_attention(x, x, x).sum().backward()"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def twin(name: str) -> nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    return MODELS[name]()


PADDED = torch.tensor([[1] * 20, [1] * 13 + [0] * 7, [0] * 5 + [1] * 15])


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_logits_they_gave(name: str, training: bool, padded: bool, ran: Counter[str]) -> None:
    ids, mask = torch.randint(2, WORDS, (3, 20)), PADDED if padded else None
    model = twin(name).train(training)
    with torch.no_grad():
        with sdpa_kernel(SDPBackend.MATH):
            baseline = logits(model, ids, mask)
        with accelerate():
            got = logits(model, ids, mask)
        truth = logits(model.double(), ids, mask)
    # In eval PyTorch's own layers have a path of their own that knows no scaled_dot_product_attention.
    assert ran["forward"] == (0 if name == "torch" and not training else 2)
    real = slice(None) if mask is None else mask.bool()  # what stands at padding is nobody's
    assert_within_tolerance(got[real], truth[real], baseline[real], what=name)


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_as_they_did(name: str, ran: Counter[str]) -> None:
    """Fifty steps of training: the loss curve is PyTorch's."""
    ids = torch.randint(2, WORDS, (2, 16))
    truth = losses(twin(name).double(), ids)
    with sdpa_kernel(SDPBackend.MATH):
        baseline = losses(twin(name), ids)
    with accelerate():
        got = losses(twin(name), ids)
    assert ran == {"forward": 100, "backward": 100}
    assert truth[-1] < 0.9 * truth[0]
    assert_within_tolerance(got, truth, baseline, gradient=True, what=f"{name}'s losses")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_write_what_they_wrote(name: str, ran: Counter[str]) -> None:
    """`generate` of a padded batch: a prompt, then one query at a time against the cache."""
    ids, mask = torch.randint(2, WORDS, (3, 20)), PADDED.sort(dim=1).values

    def write(model: nn.Module) -> tuple[Tensor, Tensor]:
        done = model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        return done.sequences, torch.stack(done.logits)

    model = twin(name).eval()
    with sdpa_kernel(SDPBackend.MATH):
        _, baseline = write(model)
    with accelerate():
        tokens, got = write(model)
    assert ran["forward"] == 2 * 8
    wanted, truth = write(model.double())
    assert torch.equal(tokens, wanted)
    assert_within_tolerance(got, truth, baseline, what=f"{name}'s logits")


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["plain", "causal", "padding", "numbers"])
def test_multihead_attention(kind: str, batch_first: bool, ran: Counter[str]) -> None:
    layer, x = nn.MultiheadAttention(32, 4, batch_first=batch_first), torch.randn(6, 9, 32, requires_grad=True)
    T, B = (9, 6) if batch_first else (6, 9)
    past = torch.ones(T, T, dtype=torch.bool).triu(1)
    options: dict[str, Any] = {
        "plain": {},
        "causal": {"attn_mask": past, "is_causal": True},
        "padding": {"key_padding_mask": torch.arange(T) >= torch.randint(1, T, (B, 1))},
        "numbers": {"attn_mask": torch.randn(B * 4, T, T)},
    }[kind]

    def both_ways() -> tuple[Tensor, ...]:
        out, _ = layer(x, x, x, need_weights=False, **options)
        return out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])

    wanted = both_ways()
    with accelerate():
        got = both_ways()
    assert ran == {"forward": 1, "backward": 1}
    torch.testing.assert_close(got, wanted)
