"""How large the largest thing is that a candidate makes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead.check.functions import FunctionSubject
from clearhead.check.inputs import Sizes, inputs
from clearhead.check.state import Reading


class _Largest(TorchFunctionMode):
    """Keeps the number of elements of the largest tensor that any torch function returns."""

    def __init__(self) -> None:
        self.numel = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, tuple | list) else (out,):
            if type(t) is Tensor and "__get__" not in str(func):
                self.numel = max(self.numel, t.numel())
        return out


def largest_made(reading: Reading, length: int) -> float:
    """Elements of the largest tensor made for one sequence of that length (NumPy: peak bytes / 8). Raises `Failed`."""
    subject = reading.subject
    if isinstance(subject, FunctionSubject):
        sizes = subject.limited(Sizes(1, 1, 1, length, length, reading.ordinary.D, reading.ordinary.Dv))
        given: tuple[Tensor, ...] = inputs(sizes, 0)
    else:
        given = (subject.inputs(1, length, 0),)
    if subject.framework == "torch":
        seen = _Largest()
        with torch.no_grad(), seen:
            subject.run(*given)
        return float(seen.numel)
    tracemalloc.start()
    try:
        subject.run(*given)
        return tracemalloc.get_traced_memory()[1] / 8
    finally:
        tracemalloc.stop()
