"""The compiled kernels on any number of threads, on many Python threads at once, and after a fork."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch
from processes import finished
from torch import Tensor

from clearhead import ALiBi, Causal, Documents, Observables, Window, attention, observe

HAMMER = float(os.environ.get("CLEARHEAD_HAMMER_SECONDS", "4"))
# B, Hq, Hk, Tq, Tk, D: many tasks and few, more threads than heads, decoding with and without groups.
SIZES = [
    (1, 1, 1, 700, 700, 16),
    (2, 4, 2, 130, 130, 24),
    (1, 1, 1, 5, 3000, 64),
    (1, 8, 2, 1, 5000, 64),
    (3, 2, 1, 33, 9, 5),
]


def masks(Tq: int, Tk: int) -> dict[str, dict[str, Any]]:
    bias = torch.randn(1, 1, Tq, Tk)
    return {
        "plain": {},
        "causal, bias": {"mask": Causal(), "bias": bias},
        "documents": {"mask": Documents(torch.arange(Tk) % 3, torch.arange(Tq) % 3)},
        "bias by key": {"mask": Window(150), "bias": torch.randn(1, 1, 1, Tk)},
    }


def everything(tensors: list[Tensor], given: dict[str, Any]) -> dict[str, Tensor]:
    """Output, gradients and observations of one call."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    extra = [x.detach().clone().requires_grad_() for x in given.values() if isinstance(x, Tensor)]
    out = attention(*leaves, **{**given, **dict(zip(["bias"], extra, strict=False))}, impl="cpu")
    upstream = torch.linspace(-1, 1, out.numel()).view(out.shape).to(out.dtype)
    gradients = torch.autograd.grad(out, [*leaves, *extra], upstream)
    seen = observe(*tensors, **given, observables=Observables(rows=(-1,)), impl="cpu")
    names = ("d_query", "d_key", "d_value", "d_bias")
    return {"attention": out.detach(), **dict(zip(names, gradients, strict=False)), **seen.values}


def differing(got: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    return [name for name, x in wanted.items() if not torch.equal(got[name], x)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", masks(1, 1))
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_same_bits_on_one_two_and_three_threads(size: tuple[int, ...], name: str, dtype: torch.dtype) -> None:
    B, Hq, Hk, Tq, Tk, D = size
    tensors = [torch.randn(B, h, T, D).to(dtype) for h, T in ((Hq, Tq), (Hk, Tk), (Hk, Tk))]
    given = masks(Tq, Tk)[name]
    runs = []
    for threads in (1, 2, 3, 2):
        torch.set_num_threads(threads)
        runs.append(everything(tensors, given))
    for n, run in enumerate(runs[1:], start=1):
        assert not differing(run, runs[0]), f"run {n}"


def test_many_python_threads_at_once_each_get_their_own_results() -> None:
    torch.set_num_threads(2)
    jobs = []
    for n in range(8):
        B, Hq, Hk, Tq, Tk, D = SIZES[n % len(SIZES)]
        tensors = [torch.randn(B, h, T, D) for h, T in ((Hq, Tq), (Hk, Tk), (Hk, Tk))]
        given = {**list(masks(Tq, Tk).values())[n % 4]}
        jobs.append((tensors, given, everything(tensors, given)))
    end, wrong, rounds = time.monotonic() + HAMMER, [], [0] * 8

    def hammer(n: int) -> None:
        torch.set_num_threads(2)
        tensors, given, wanted = jobs[n]
        while (time.monotonic() < end or not rounds[n]) and not wrong:
            names = differing(everything(tensors, given), wanted)
            rounds[n] += 1
            if names:
                wrong.append((n, names))

    workers = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=HAMMER + 300)
    assert not any(worker.is_alive() for worker in workers), "a thread hangs"
    assert not wrong
    assert min(rounds) >= 1


def test_alibi_and_sinks_on_several_threads() -> None:
    tensors = [torch.randn(1, 4, 300, 8) for _ in range(3)]
    runs = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        sinks = torch.zeros(4, requires_grad=True)
        out = attention(*tensors, bias=ALiBi(4), sinks=sinks, mask=Causal(), impl="cpu")
        runs.append([out, *torch.autograd.grad(out.sum(), sinks)])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


FORKED = """
    import os, signal, sys, threading, time
    import torch
    from clearhead import Causal, attention, observe

    torch.set_num_threads(2)
    q, k, v = torch.randn(3, 1, 4, 300, 16).unbind(0)

    def call():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = attention(*leaves, mask=Causal(), impl="cpu")
        return [out, *torch.autograd.grad(out.sum(), leaves), observe(q, k, v, impl="cpu").entropy]

    before = call()
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # a child that waits for threads that do not exist waits for ever
        os._exit(0 if all(torch.equal(a, b) for a, b in zip(call(), before)) else 3)
    _, status = os.waitpid(child, 0)
    again = all(torch.equal(a, b) for a, b in zip(call(), before))
    print(os.waitstatus_to_exitcode(status), again)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_computes_the_same_and_does_not_hang() -> None:
    done = finished(FORKED, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "True"]
