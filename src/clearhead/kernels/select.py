"""Which implementation runs, and why not the others."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import platform
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, ImplementationError, dtype_name, message
from clearhead.kernels.problem import Gradients, Problem

NAMES = ("cpu", "tiled", "reference")
ABOUT = {
    "cpu": "vector kernels compiled by Numba: float32, bfloat16 and float16 on CPUs",
    "tiled": "blocked PyTorch: any device and dtype, O(T) memory, twice differentiable",
    "reference": "the definition in plain PyTorch: O(Tq·Tk) memory, for checking",
}
CPU_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Without fused multiply-add and 16-bit conversion (x86 before 2013) the kernels' code would call functions that are not there.
_OLD = platform.machine().lower() in ("x86_64", "amd64") and "AVX" not in torch.backends.cpu.get_cpu_capability()
_NUMBA = importlib.util.find_spec("numba") is not None  # looked for, not imported


class Kernels(NamedTuple):
    """What an implementation consists of."""

    attention: Callable[[Problem], tuple[Tensor, Tensor]]
    backward: Callable[..., Gradients]
    observe: Callable[..., tuple[Tensor, dict[str, Tensor]]]


@functools.cache
def kernels(name: str) -> Kernels:
    """The functions of "cpu" or "tiled"; loads what they need."""
    modules = {"cpu": ("cpu.run",) * 3, "tiled": ("tiled", "tiled_backward", "tiled_observe")}[name]
    found = [importlib.import_module(f"clearhead.kernels.{module}") for module in modules]
    return Kernels(found[0].attention, found[1].backward, found[2].observe)


def choose(impl: str, problem: Problem | None = None) -> str:
    """The implementation to use for `impl`, "auto" meaning CLEARHEAD_IMPL when set, else the best one that can.

    Raises `ArgumentError` for an unknown name, `ImplementationError` where one was named that cannot do this problem: an
    explicit name is never replaced by another.
    """
    asked, where = impl, "impl"
    if impl == "auto":
        asked, where = os.environ.get("CLEARHEAD_IMPL") or "auto", "CLEARHEAD_IMPL"
    if asked == "auto":
        return "tiled" if why_not_cpu(problem) else "cpu"
    if asked not in NAMES:
        raise ArgumentError(
            message(
                where,
                expected=f'one of "auto", {", ".join(map(repr, NAMES))}'.replace("'", '"'),
                got=repr(asked),
                remedy='Use "auto" and read clearhead.explain(query, key, value) for what it chooses.',
            )
        )
    missing = why_not_cpu(problem) if asked == "cpu" else None
    if missing:
        raise ImplementationError(
            message(
                where,
                expected="a call that the CPU kernels can do",
                got=f'"cpu", but {missing}',
                remedy='Use "auto", which takes "tiled" then.',
            )
        )
    return asked


def why_not_cpu(problem: Problem | None) -> str | None:
    """What keeps the CPU kernels from this problem (or from any, without one); None where nothing does."""
    if not _NUMBA:
        return "numba, which compiles them, is not installed"
    if _OLD:
        return "this processor has no AVX2, or ATEN_CPU_CAPABILITY hides it"
    if problem is not None:
        if problem.query.device.type != "cpu":
            return f"the tensors are on {problem.query.device}"
        if problem.query.dtype not in CPU_DTYPES:
            return f"they have no {dtype_name(problem.query.dtype)}"
    return None


def table(chosen: str, impl: str, problem: Problem) -> str:
    """What runs and why each other one does not, a line each."""
    lines = []
    for name in NAMES:
        missing = why_not_cpu(problem) if name == "cpu" else None
        if name != chosen and missing:
            why = f"cannot: {missing}"
        elif name != chosen:
            why = "not chosen: quadratic memory" if name == "reference" else "not chosen: another one was asked for"
            if name == "tiled" and impl == "auto" and not os.environ.get("CLEARHEAD_IMPL"):
                why = "not chosen: slower here"
        elif impl != "auto":
            why = "runs: asked for by impl"
        elif os.environ.get("CLEARHEAD_IMPL"):
            why = "runs: asked for by CLEARHEAD_IMPL"
        else:
            why = "runs"
        lines.append(f"{name:<10} {why} ({ABOUT[name]})")
    return "\n".join(lines)
