"""What the compiled kernels read and write: nothing beside their tensors, nothing uninitialised, any strides."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead import ALiBi, Causal, Documents, Observables, Padding, Window, attention, observe
from clearhead.arguments import checked_call
from clearhead.kernels.cpu import run, threads
from clearhead.kernels.problem import Problem
from clearhead.masks import Dense, Sizes
from clearhead.measuring import ready

GUARD = 4096  # bytes in front of and behind every tensor
MARK = 0xA5
# Tq, Tk, D, Dv: within a strip and a block, over several, decoding; widths that are no multiple of anything.
SHAPES = [(7, 5, 3, 1), (33, 129, 8, 12), (130, 300, 59, 40), (3, 300, 64, 64), (1, 300, 5, 7)]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


def options(Tq: int, Tk: int) -> dict[str, dict[str, Any]]:
    """Calls of two samples and four heads on two, one for each thing that is read or written."""
    return {
        "plain": {},
        "causal": {"mask": Causal()},
        "window, sinks": {"mask": Window(40, right=3), "sinks": normal(4)},
        "documents": {"mask": Documents(torch.randint(0, 3, (2, Tk)), torch.randint(0, 3, (2, Tq)))},
        "padding": {"mask": Causal() & Padding(torch.tensor([Tk // 2, Tk]), side="left")},
        "dense, softcap": {"mask": torch.rand(2, 1, Tq, Tk) > 0.4, "softcap": 3.0},
        "bias": {"bias": normal(2, 4, Tq, Tk)},
        "bias by key": {"bias": normal(1, 4, 1, Tk), "mask": Causal()},
        "alibi": {"bias": ALiBi(4), "mask": Causal()},
    }


NAMES = list(options(1, 1))


class Guarded(TorchDispatchMode):
    """Every tensor that is made begins as NaN, in the middle of a larger buffer whose rest must stay as it is."""

    MAKERS = ("empty", "new_empty", "zeros", "new_zeros", "full", "ones", "empty_like", "zeros_like", "empty_strided")

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name not in self.MAKERS or not made.numel():
            return made
        size = made.numel() * made.element_size()
        buffer = torch.full((size + 2 * GUARD,), MARK, dtype=torch.uint8)
        buffer[GUARD : GUARD + size] = 255  # NaN in every floating-point dtype
        self.buffers.append(buffer)
        inside = buffer[GUARD : GUARD + size].view(made.dtype).as_strided(made.shape, made.stride())
        return inside if "empty" in name else inside.copy_(made)

    def intact(self) -> bool:
        """Whether no byte of a guard has changed."""
        return all(bool((x[:GUARD] == MARK).all() and (x[-GUARD:] == MARK).all()) for x in self.buffers)


def surrounded(x: Tensor) -> Tensor:
    """The same numbers in the middle of NaNs, so that whoever reads further is noticed."""
    room = x.new_full((x.numel() + 2 * 512,), math.nan)
    room[512:-512] = x.flatten()
    return room[512:-512].view(x.shape)


def problem(q: Tensor, k: Tensor, v: Tensor, given: dict[str, Any]) -> Problem:
    """A call as kernels take it."""
    return checked_call(q, k, v, **given).problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_nothing_is_written_beside_the_results_and_nothing_uninitialised_is_used(
    shape: tuple[int, ...], name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tq, Tk, D, Dv = shape
    given = options(Tq, Tk)[name]
    q, k, v, upstream = (
        normal(*s, dtype=dtype) for s in ((2, 4, Tq, D), (2, 2, Tk, D), (2, 2, Tk, Dv), (2, 4, Tq, Dv))
    )
    ids = torch.arange(Tk) % 11
    wanted = Observables(
        top_k=5, map=7, rows=(0, -1), token_ids=ids, key_groups=ids % 3, group_top_k=2, sum_squares=True,
        distance_histogram=True, contributions=True, row_weights=torch.linspace(-1, 1, Tq),
    )  # fmt: skip

    def everything(p: Problem, grad: Tensor) -> dict[str, Tensor]:
        out, lse = run.attention(p)
        found = {"output": out, "lse": lse}
        for with_bias in (False, True):
            gradients = run.backward(p, out, lse, grad, torch.ones_like(lse), with_bias)
            found |= {f"d_{n} {with_bias}": x for n, x in gradients._asdict().items() if x is not None}
        return found | run.observe(p, ready(wanted, p.query, p.key, p.value, None, torch.float32))[1]

    guarded = {n: surrounded(x) if isinstance(x, Tensor) and x.is_floating_point() else x for n, x in given.items()}
    p = problem(*(surrounded(x) for x in (q, k, v)), guarded)
    monkeypatch.setattr(threads, "_kept", threading.local())
    with Guarded() as guards:
        found = everything(p, surrounded(upstream))
    assert len(guards.buffers) > 10
    assert guards.intact()
    for what, x in everything(problem(q, k, v, given), upstream).items():
        assert torch.equal(found[what], x), what


def test_the_guards_notice_a_byte() -> None:
    with Guarded() as guards:
        x = torch.empty(3)
    assert bool(x.isnan().all())
    assert guards.intact()
    guards.buffers[0][GUARD - 1] = 0
    assert not guards.intact()


# ------------------------------------------------------------------------------------------------ what is hidden


HIDING: dict[str, Callable[[int, int], Any]] = {
    "causal": lambda Tq, Tk: Causal(),
    "window": lambda Tq, Tk: Window(37, right=2),
    "padding": lambda Tq, Tk: Causal(align="start") & Padding(torch.tensor([Tk // 3, Tk])),
    "documents": lambda Tq, Tk: Documents(torch.randint(0, 3, (2, Tk)), torch.randint(0, 4, (2, Tq))),
    "dense": lambda Tq, Tk: Dense((torch.rand(2, 1, Tq, Tk) > 0.5) & (torch.rand(2, 1, Tq, 1) > 0.2)),
}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("mask", HIDING)
@pytest.mark.parametrize(("Tq", "Tk"), [(9, 7), (70, 300), (3, 300)])
def test_what_a_mask_hides_may_hold_anything(Tq: int, Tk: int, mask: str, softcap: float | None, bad: float) -> None:
    """NaN and infinities at keys that nobody sees, in queries that see nothing, in the bias of every hidden pair."""
    q, k, v, upstream = normal(2, 2, Tq, 8), normal(2, 1, Tk, 8), normal(2, 1, Tk, 6), normal(2, 2, Tq, 6)
    bias = normal(2, 2, Tq, Tk)
    hiding = HIDING[mask](Tq, Tk)
    seen = hiding.dense(Tq, Tk, B=2).expand(2, 2, -1, -1)
    unseen = ~seen.any(2).any(1)[:, None]  # (B, 1, Tk)
    blind = ~seen.any(3)  # (B, Hq, Tq)

    def everything(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, grad: Tensor) -> dict[str, Tensor]:
        leaves = [x.clone().requires_grad_() for x in (q, k, v, bias)]
        result = observe(*leaves[:3], bias=leaves[3], mask=hiding, softcap=softcap, impl="cpu")
        out = attention(*leaves[:3], bias=leaves[3], mask=hiding, softcap=softcap, impl="cpu")
        assert torch.equal(out, result.output)
        gradients = torch.autograd.grad(out, leaves, grad)
        return {**result.values, **dict(zip(("d_query", "d_key", "d_value", "d_bias"), gradients, strict=True))}

    def poisoned(x: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, bad, x)

    clean = everything(q, k, v, bias, upstream)
    dirty = everything(
        poisoned(q, blind[..., None]),
        poisoned(k, unseen[..., None]),
        poisoned(v, unseen[..., None]),
        poisoned(bias, ~seen),
        poisoned(upstream, blind[..., None]),
    )
    for name, x in clean.items():
        assert torch.equal(dirty[name], x), name
        assert name in ("lse", "max_logit") or bool(torch.isfinite(x).all()), name


# Query 70 sees keys 41 to 70 and key 70 is seen by queries 70 to 99: where NaN at row 70 arrives, and nowhere else.
ALONE, MINE, SEERS, AROUND, NOBODY = range(70, 71), range(41, 71), range(70, 100), range(41, 100), range(0)
ARRIVES = {
    "query": (ALONE, ALONE, MINE, MINE),
    "key": (SEERS, SEERS, AROUND, AROUND),
    "value": (SEERS, SEERS, AROUND, NOBODY),
    "grad": (NOBODY, ALONE, MINE, MINE),
}


@pytest.mark.parametrize("where", ARRIVES)
def test_nan_that_is_seen_arrives_where_it_is_seen_and_nowhere_else(where: str) -> None:
    tensors = {name: normal(1, 1, 140, 8) for name in ("query", "key", "value", "grad")}
    tensors[where][0, 0, 70, 3] = math.nan
    *inputs, upstream = tensors.values()
    leaves = [x.requires_grad_() for x in inputs]
    out = attention(*leaves, mask=Window(30), impl="cpu")
    found = (out, *torch.autograd.grad(out, leaves, upstream))
    for name, x, rows in zip(("output", "d_query", "d_key", "d_value"), found, ARRIVES[where], strict=True):
        assert x[0, 0].isnan().any(-1).nonzero().flatten().tolist() == list(rows), name


# ---------------------------------------------------------------------------------------------------------- strides


def far_apart(x: Tensor, dimension: int, folder: Path) -> Tensor:
    """The same numbers in a sparse file, with more than 2^31 elements between the ends of a dimension."""
    kind = {1: np.bool_, 2: np.int16, 4: np.float32}[x.element_size()]
    steps, size = [0, 0, 0, 0], 1
    for n in (d for d in (3, 2, 1, 0) if d != dimension):
        steps[n], size = size, size * x.shape[n]
    steps[dimension] = max(size, 2**31 // (x.shape[dimension] - 1) + 1)
    length = steps[dimension] * (x.shape[dimension] - 1) + size
    assert length > 2**31
    number = len(list(folder.iterdir()))
    file = np.memmap(folder / str(number), dtype=kind, mode="w+", shape=(length,))  # only what is written takes space
    return torch.from_numpy(file).view(x.dtype).as_strided(x.shape, steps).copy_(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("dimension", [0, 1, 2], ids=["samples", "heads", "rows"])
@pytest.mark.parametrize("Tq", [3, 40])
def test_tensors_that_reach_past_two_to_the_31_elements_are_addressed_right(
    Tq: int, dimension: int, dtype: torch.dtype, tmp_path: Path
) -> None:
    given = {"mask": torch.rand(2, 2, Tq, 140) > 0.3, "bias": normal(2, 2, Tq, 140, dtype=dtype)}
    tensors = [normal(2, 2, n, 8, dtype=dtype) for n in (Tq, 140, 140, Tq)]

    def everything(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, **given: Tensor) -> list[Tensor]:
        leaves = [x.requires_grad_() for x in (q, k, v, given["bias"])]
        seen = observe(*leaves[:3], **given, impl="cpu")
        out = attention(*leaves[:3], **given, impl="cpu")
        return [*seen.values.values(), out, *torch.autograd.grad(out, leaves, grad)]

    wanted = everything(*(x.clone() for x in tensors), **given)
    far = everything(
        *(far_apart(x, dimension, tmp_path) for x in tensors),
        **{n: far_apart(x.detach(), dimension, tmp_path) for n, x in given.items()},
    )
    for got, x in zip(far, wanted, strict=True):
        assert torch.equal(got, x)


@pytest.mark.parametrize("Tq", [3, 40])
@pytest.mark.parametrize("expanded", [(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)], ids=str)
def test_strides_of_zero_are_the_same_number_again(expanded: tuple[int, ...], Tq: int) -> None:
    def wide(*shape: int) -> Tensor:
        return normal(*(1 if n in expanded else size for n, size in enumerate(shape))).expand(shape)

    tensors = [wide(2, 2, n, 8) for n in (Tq, 140, 140, Tq)]
    given = {"mask": wide(2, 2, Tq, 140) > -1, "bias": wide(2, 2, Tq, 140)}
    runs = []
    for copy in (False, True):
        q, k, v, grad, bias = (x.contiguous() if copy else x for x in (*tensors, given["bias"]))
        mask = given["mask"].contiguous() if copy else given["mask"]
        leaves = [x.detach().requires_grad_() for x in (q, k, v, bias)]
        out = attention(*leaves[:3], bias=leaves[3], mask=mask, impl="cpu")
        seen = observe(*leaves[:3], bias=leaves[3], mask=mask, impl="cpu")
        runs.append([out, *seen.values.values(), *torch.autograd.grad(out, leaves, grad)])
    for got, wanted in zip(*runs, strict=True):
        assert torch.equal(got, wanted)


def test_masks_that_say_the_same_give_the_same_bits() -> None:
    """A mask of any kind becomes one plan; that of a dense one is found by looking."""
    q, k, v = normal(1, 2, 50, 8), normal(1, 2, 50, 8), normal(1, 2, 50, 8)
    spelt = Causal().plan(Sizes(1, 50, 50, q.device))
    dense = torch.arange(50) < spelt.hi[0, :, None]
    assert torch.equal(attention(q, k, v, mask=dense, impl="cpu"), attention(q, k, v, mask=Causal(), impl="cpu"))
