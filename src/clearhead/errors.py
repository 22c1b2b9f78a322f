"""The error classes, and the one way a message is put together.

Every message says four things: which argument, what was expected (with the caller's own numbers filled in), what
came instead, and one remedy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


__all__ = [
    "ArgumentError",
    "ClearheadError",
    "ImplementationError",
    "InputError",
    "NotMeasuredError",
    "NothingSeenWarning",
    "RanksError",
]


class ClearheadError(ValueError):
    """Base of every error this library raises on purpose; a `ValueError`."""


class ArgumentError(ClearheadError):
    """An argument has a shape, dtype or value that cannot be used."""


class ImplementationError(ClearheadError):
    """An implementation that was asked for by name cannot do this call; nothing else was tried."""


class NotMeasuredError(ClearheadError, AttributeError):
    """An observation was asked for a quantity that was not measured. Also an `AttributeError`, so `hasattr` works."""


class InputError(ClearheadError):
    """Something a person typed or named (a file, a text, a head, a model) cannot be used."""


class RanksError(ClearheadError):
    """Ranks of a distributed job did not meet: one failed, left, or did not come in time."""


class NothingSeenWarning(UserWarning):
    """A watched model ran, and no attention call was seen."""


def message(argument: str, *, expected: str, got: str, remedy: str) -> str:
    """Put one error message together.

    >>> message("top_k", expected="an integer >= 0", got="-1", remedy="Use 0 to switch it off.")
    'top_k: expected an integer >= 0, got -1. Use 0 to switch it off.'
    """
    return f"{argument}: expected {expected}, got {got}. {remedy}"


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as people write it.

    >>> import torch
    >>> dtype_name(torch.float32)
    'float32'
    """
    return str(dtype).removeprefix("torch.")


def shape_of(tensor: Tensor, letters: str) -> str:
    """A shape with its letters: `shape_of(zeros(1, 8), "B T")` is `(B=1, T=8)`; leading dims without a letter are bare.

    >>> import torch
    >>> shape_of(torch.zeros(2, 1, 8), "T D")
    '(2, T=1, D=8)'
    """
    names = letters.split()
    sizes = list(tensor.shape)
    bare = len(sizes) - len(names)
    if bare < 0:
        return str(tuple(sizes))
    parts = [str(n) for n in sizes[:bare]] + [f"{a}={n}" for a, n in zip(names, sizes[bare:], strict=True)]
    return "(" + ", ".join(parts) + ")"
