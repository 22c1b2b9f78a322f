"""Rung 1. How can a token hear from the tokens before it? By averaging them, one token after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.ladder.inputs import check_sequence


class MeanByLoop(NamedTuple):
    """What rung 1 makes: only its result. No matrix of weights is in sight yet; finding it is rung 2."""

    out: Tensor  # (B, T, C)


def mean_by_loop(x: Tensor) -> MeanByLoop:
    """Every token becomes the mean of itself and all tokens before it: out[b, t] = mean of x[b, 0..t].

    >>> mean_by_loop(torch.tensor([[[1.0], [3.0], [8.0]]])).out
    tensor([[[1.],
             [2.],
             [4.]]])

    Arguments: x (B, T, C), B sequences of T tokens, each token C numbers; any floating dtype.
    Returns: `out`, (B, T, C). Raises: ArgumentError when x is not that.
    Time O(B·T²·C): the past is added up again from its beginning for every token. Memory O(B·T·C).
    """
    check_sequence(x)
    B, T = x.shape[:2]
    out = torch.zeros_like(x)  # (B, T, C)
    # The sequences of a batch are strangers: nothing ever crosses from one to another.
    for b in range(B):
        # The token at t may listen to the tokens 0..t: itself and its past. The future has not been written yet.
        for t in range(T):
            past = x[b, : t + 1]  # (t+1, C)
            # A mean forgets order: "dog bites man" and "man bites dog" end alike. A bag of words, and a start.
            out[b, t] = past.mean(dim=0)  # (C,)
    return MeanByLoop(out)
