"""Kernels on torch's own threads.

torch's workers still spin for a while after each of its operators. Threads of our own would share the cores with them, and run
at half speed inside a model; so the kernels ask the same pool, through a C function that libtorch exports for extensions
(`torch_parallel_for`, torch 2.10 and later). Where it is missing, kernels run on the calling thread.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from clearhead.kernels.cpu import build
from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.call import Builder

_forked = False


def _after_fork() -> None:
    # The workers of the parent do not exist in the child, and waiting for them would never end.
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def parallel_for() -> Callable[..., None] | None:
    """libtorch's parallel loop, or None where this torch does not export it."""
    libraries = Path(torch.__file__).parent / "lib"
    for path in sorted(libraries.glob("*torch_cpu.*")):
        try:
            found = ctypes.CDLL(str(path)).torch_parallel_for
        except (OSError, AttributeError):
            continue
        found.argtypes = [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 2
        found.restype = ctypes.c_int32
        return found
    return None


KEPT_BYTES = 16 << 20  # of each kind of numbers that are kept for the next call
_kept = threading.local()


def scratch(floats: int) -> torch.Tensor:
    """Scratch memory of this Python thread, kept between calls: fresh pages cost more than the arithmetic."""
    held: torch.Tensor | None = getattr(_kept, "memory", None)
    if held is None or held.numel() < floats:
        held = _kept.memory = torch.empty(floats)
    return held


def room(name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
    """The same for numbers that outlive a kernel but not a call. Where there are many, they are not kept."""
    if count * dtype.itemsize > KEPT_BYTES:
        return torch.empty(count, dtype=dtype)
    held: dict[str, torch.Tensor] = _kept.__dict__.setdefault("rooms", {})
    if name not in held or held[name].numel() < count:
        held[name] = torch.empty(count, dtype=dtype)
    return held[name]


def workers() -> int:
    """How many threads a kernel would use."""
    return 1 if _forked or parallel_for() is None else torch.get_num_threads()


def run(kernel: str, call: Builder, floats: int, tasks: int, most: int | None = None) -> None:
    """Run a kernel that has so many tasks, with `floats` of scratch for each of at most `most` workers."""
    count = max(1, min(workers(), tasks if most is None else most))
    call.put(at.TICKETS, tasks)
    each = (floats + 63) // 64 * 64  # workers never share a cache line
    call.address(at.SCRATCH, scratch(count * each))
    call.put(at.SCRATCH_SIZE, each)
    call.put(at.NEXT_TICKET, 0)
    place, _ = call.numbers.buffer_info()
    address = build.kernel(kernel)
    spread = parallel_for()
    if count > 1 and spread is not None:
        if spread(0, count, 1, address, place):
            raise RuntimeError("torch_parallel_for failed")
    else:
        _direct(address)(0, count, place)


@functools.cache
def _direct(address: int) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(address)
