"""Rung 4. What if every token decides for itself whom to listen to? Self-attention: scores out of the tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.ladder.inputs import check_projections, check_sequence


class SingleHead(NamedTuple):
    """What rung 4 makes, in the order in which it is made."""

    q: Tensor  # (B, T, D)
    k: Tensor  # (B, T, D)
    v: Tensor  # (B, T, Dv)
    scores: Tensor  # (B, T, T)
    masked: Tensor  # (B, T, T)
    weights: Tensor  # (B, T, T)
    out: Tensor  # (B, T, Dv)


def single_head(x: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> SingleHead:
    """One head of causal self-attention: softmax(q kᵀ · D^−½, the future hidden) v.

    >>> x, to = torch.randn(4, 8, 32), lambda: nn.Linear(32, 16, bias=False)
    >>> step = single_head(x, query=to(), key=to(), value=to())
    >>> step.weights.shape, step.out.shape
    (torch.Size([4, 8, 8]), torch.Size([4, 8, 16]))

    Arguments: x (B, T, C), floating; query, key (C → D) and value (C → Dv), linear layers without bias.
    Returns: `q`, `k` (B, T, D), `v` (B, T, Dv), `scores`, `masked` and `weights` (B, T, T), `out` (B, T, Dv).
    Raises: ArgumentError when shapes, dtypes or layers do not fit.
    Time O(B·T²·(D + Dv) + B·T·C·(D + Dv)), memory O(B·T²).
    Source of the formula: Vaswani et al. 2017, "Attention is all you need", equation 1.
    """
    check_sequence(x)
    check_projections(x, query, key, value)
    T = x.shape[1]
    # Three views of every token, each learned. The query: what am I looking for?
    q = query(x)  # (B, T, C) -> (B, T, D)
    # The key: what do I contain?
    k = key(x)  # (B, T, C) -> (B, T, D)
    # The value: what do I tell those who listen to me?
    v = value(x)  # (B, T, C) -> (B, T, Dv)
    # A query meets every key. Their dot product is large where what is sought and what is there point the same way.
    scores = q @ k.transpose(-2, -1)  # (B, T, D) @ (B, D, T) -> (B, T, T)
    # A dot product of D numbers spreads like √D. Left so, wide heads would give softmax scores so far apart that one
    # token takes everything. D is the width of the head, the length of the dot product; not C, the width of x.
    D = q.shape[-1]
    scores = scores * D**-0.5  # (B, T, T)
    # From here on it is rung 3, with scores that are no longer all zero and are different for every sequence.
    tril = torch.tril(x.new_ones(T, T))  # (T, T)
    masked = scores.masked_fill(tril == 0, float("-inf"))  # (B, T, T)
    weights = torch.softmax(masked, dim=-1)  # (B, T, T)
    out = weights @ v  # (B, T, T) @ (B, T, Dv) -> (B, T, Dv)
    return SingleHead(q, k, v, scores, masked, weights, out)
