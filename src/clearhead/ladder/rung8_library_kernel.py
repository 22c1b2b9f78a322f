"""Rung 8. And when it has to be fast? The same numbers from the library's kernel, in one call."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from clearhead.attention import attention
from clearhead.ladder.inputs import check_heads
from clearhead.masks import Causal


class LibraryKernel(NamedTuple):
    """What rung 8 makes: the result. What every head looks at is asked of `clearhead.observe`, in the same pass."""

    out: Tensor  # (B, Hq, T, Dv)


def library_kernel(q: Tensor, k: Tensor, v: Tensor) -> LibraryKernel:
    """Causal attention by `clearhead.attention`: everything the rungs before it found, under one name.

    >>> import torch
    >>> q, k, v = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    >>> library_kernel(q, k, v).out.shape
    torch.Size([1, 4, 9, 8])

    Arguments: q (B, Hq, T, D), k (B, Hk, T, D), v (B, Hk, T, Dv), floating, Hq a multiple of Hk.
    Returns: `out` (B, Hq, T, Dv) = rung 7's. Raises: ArgumentError when shapes or dtypes do not fit.
    Time O(B·Hq·T²·(D + Dv)), memory O(T) beyond inputs and output; `clearhead.explain` says which kernel runs and why.
    """
    check_heads(q, k, v)
    # The mask is a rule, not a matrix, so tiles of future are skipped (rung 6); key heads are shared, not copied
    # (rung 5); the scale is D^−½ unless another is asked for (rung 4); and what is hidden cannot leak, not even a NaN.
    out = attention(q, k, v, mask=Causal())  # (B, Hq, T, D), (B, Hk, T, D), (B, Hk, T, Dv) -> (B, Hq, T, Dv)
    return LibraryKernel(out)
