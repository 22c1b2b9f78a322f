"""Rung 3. Where could unequal weights come from? From scores, any numbers at all, that softmax turns into shares."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.ladder.inputs import check_sequence


class MeanBySoftmax(NamedTuple):
    """What rung 3 makes, in the order in which it is made."""

    tril: Tensor  # (T, T)
    scores: Tensor  # (T, T)
    weights: Tensor  # (T, T)
    out: Tensor  # (B, T, C)


def mean_by_softmax(x: Tensor) -> MeanBySoftmax:
    """The mean of the past once more: every score 0, the future −inf, softmax along each row, times x.

    >>> mean_by_softmax(torch.tensor([[[1.0], [3.0], [8.0]]])).out.flatten()
    tensor([1., 2., 4.])

    Arguments: x (B, T, C), floating.
    Returns: `tril`, `scores` (after masking) and `weights` (T, T), `out` (B, T, C) = rung 2's.
    Raises: ArgumentError when x is not (B, T, C).
    Time O(B·T²·C), memory O(T² + B·T·C).
    """
    check_sequence(x)
    T = x.shape[1]
    tril = torch.tril(x.new_ones(T, T))  # (T, T)
    # A score says how much token t would like to hear token j. For now nobody prefers anybody: all zero.
    scores = x.new_zeros(T, T)  # (T, T)
    # Softmax takes e to the power of each score and divides by the row's sum. What must not be heard gets the one
    # score that leaves nothing behind: e^−inf is exactly 0. (A large negative number is only nearly as good.)
    scores = scores.masked_fill(tril == 0, float("-inf"))  # (T, T)
    # Equal scores, equal shares: e^0 / (t+1 times e^0) = 1 / (t+1). The matrix of rung 2 is back.
    weights = torch.softmax(scores, dim=-1)  # (T, T)
    out = weights @ x  # (T, T) @ (B, T, C) -> (B, T, C)
    return MeanBySoftmax(tril, scores, weights, out)
