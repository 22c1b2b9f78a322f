"""Rung 7. When text is written one token at a time, what need not be done again? Keys and values: they never change."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.ladder.inputs import check_heads


class WithCache(NamedTuple):
    """What rung 7 makes. Row t has t+1 weights: there is no future to hide, so nothing to mask."""

    keys: Tensor  # (B, Hk, T, D)
    values: Tensor  # (B, Hk, T, Dv)
    rows: tuple[Tensor, ...]  # T of them, (B, Hq, 1, t+1)
    out: Tensor  # (B, Hq, T, Dv)


def with_cache(q: Tensor, k: Tensor, v: Tensor) -> WithCache:
    """Causal attention as a model writes: tokens arrive one by one, keys and values are kept.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 4)
    >>> [row.shape[-1] for row in with_cache(q, k, v).rows]
    [1, 2, 3, 4, 5]

    Arguments: q (B, Hq, T, D), k (B, Hk, T, D), v (B, Hk, T, Dv), floating, Hq a multiple of Hk.
    Returns: `keys` (B, Hk, T, D) and `values` (B, Hk, T, Dv), the cache at the end; `rows`, T weights of shape
    (B, Hq, 1, t+1); `out` (B, Hq, T, Dv) = rung 6's. Raises: ArgumentError when shapes or dtypes do not fit.
    Time O(B·Hq·t·(D + Dv)) for token t, O(B·Hq·T²·(D + Dv)) for all; memory O(B·Hk·T·(D + Dv)) for the cache and, only
    because the rows are kept to be looked at, O(B·Hq·T²).
    """
    check_heads(q, k, v)
    Hq, T, D = q.shape[1:]
    group = Hq // k.shape[1]
    # The cache starts empty. It holds key heads, not query heads: grouped heads (rung 5) exist to keep it small.
    keys, values = k[:, :, :0], v[:, :, :0]  # (B, Hk, 0, D), (B, Hk, 0, Dv)
    rows, outs = [], []
    for t in range(T):
        # One token arrives. Its key and its value are computed once, and kept for all who will come after it ...
        keys = torch.cat([keys, k[:, :, t : t + 1]], dim=2)  # (B, Hk, t, D) -> (B, Hk, t+1, D)
        values = torch.cat([values, v[:, :, t : t + 1]], dim=2)  # (B, Hk, t, Dv) -> (B, Hk, t+1, Dv)
        # ... while its query is asked now and never again.
        now = q[:, :, t : t + 1]  # (B, Hq, 1, D)
        k_for_each = keys.repeat_interleave(group, dim=1)  # (B, Hk, t+1, D) -> (B, Hq, t+1, D)
        v_for_each = values.repeat_interleave(group, dim=1)  # (B, Hk, t+1, Dv) -> (B, Hq, t+1, Dv)
        # No mask: what is in the cache is the past and oneself. This is why a causal model may be trained on whole
        # texts at once and still write token by token: the masked matrix and these rows are the same numbers.
        scores = now @ k_for_each.transpose(-2, -1) * D**-0.5  # (B, Hq, 1, D) @ (B, Hq, D, t+1) -> (B, Hq, 1, t+1)
        weights = torch.softmax(scores, dim=-1)  # (B, Hq, 1, t+1)
        rows.append(weights)
        outs.append(weights @ v_for_each)  # (B, Hq, 1, t+1) @ (B, Hq, t+1, Dv) -> (B, Hq, 1, Dv)
    return WithCache(keys, values, tuple(rows), torch.cat(outs, dim=2))  # out: T times (B, Hq, 1, Dv) -> (B, Hq, T, Dv)
