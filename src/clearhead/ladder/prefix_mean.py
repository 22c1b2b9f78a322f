"""Aside to rungs 1 to 3. Did the mean of the past ever need T² steps? No. So why does attention?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, message
from clearhead.ladder.inputs import check_sequence


class PrefixMean(NamedTuple):
    """What the aside makes, in the order in which it is made."""

    sums: Tensor  # (B, T, C)
    out: Tensor  # (B, T, C)


def prefix_mean(x: Tensor) -> PrefixMean:
    """The mean of the past in one walk along the sequence: running sums, each divided by its length.

    >>> prefix_mean(torch.tensor([[[1.0], [3.0], [8.0]]])).out.flatten()
    tensor([1., 2., 4.])

    Arguments: x (B, T, C), floating. Returns: `sums` and `out` (B, T, C), `out` = rung 1's.
    Raises: ArgumentError when x is not (B, T, C).
    Time O(B·T·C), where rungs 1 to 3 take O(B·T²·C); memory O(B·T·C).
    """
    check_sequence(x)
    T = x.shape[1]
    # The sum of the past of t+1 is the sum of the past of t and one token more: nothing is ever added twice. That
    # works because the token before gave the same share to everybody, and so do we: only the share changed.
    sums = x.cumsum(dim=1)  # (B, T, C)
    lengths = torch.arange(1, T + 1, device=x.device)  # (T,)
    out = sums / lengths[:, None]  # (B, T, C) / (T, 1) -> (B, T, C)
    # In rung 4 each query brings scores of its own. Its row of weights is not its neighbour's row with one entry more,
    # so there is nothing to carry over, and T queries cost T rows: the T² of attention buys the right to choose.
    return PrefixMean(sums, out)


class Additions(NamedTuple):
    """How many numbers each way of taking the mean of the past adds up, for one sequence."""

    by_loop: int
    by_matmul: int
    by_prefix: int


def additions(T: int, C: int) -> Additions:
    """Count the terms that rung 1, rung 2 (or 3) and the aside add up for T tokens of width C.

    >>> additions(T=1000, C=1)
    Additions(by_loop=500500, by_matmul=1000000, by_prefix=1000)

    Arguments: T and C, integers >= 1. Raises: ArgumentError when they are not.
    """
    for name, count in (("T", T), ("C", C)):
        if count < 1:
            raise ArgumentError(message(name, expected="an integer >= 1", got=str(count), remedy="Count something."))
    return Additions(
        by_loop=T * (T + 1) // 2 * C,  # 1 + 2 + ... + T tokens
        by_matmul=T * T * C,  # all T tokens T times; the future is multiplied by 0 and added all the same
        by_prefix=T * C,  # every token once
    )
