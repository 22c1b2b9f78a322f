"""Rung 5. What if a token has more than one question? Several heads, side by side; groups of them may share keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from clearhead.ladder.inputs import check_head_counts, check_projections, check_sequence


class MultiHead(NamedTuple):
    """What rung 5 makes, in the order in which it is made. Rungs 6 to 8 start from its q, k, v and end at its heads."""

    q: Tensor  # (B, Hq, T, D)
    k: Tensor  # (B, Hk, T, D)
    v: Tensor  # (B, Hk, T, Dv)
    scores: Tensor  # (B, Hq, T, T)
    masked: Tensor  # (B, Hq, T, T)
    weights: Tensor  # (B, Hq, T, T)
    heads: Tensor  # (B, Hq, T, Dv)
    out: Tensor  # (B, T, Hq·Dv)


def split_heads(projected: Tensor, heads: int) -> Tensor:
    """Cut the last dimension into heads: (B, T, H·D) → (B, H, T, D). Nothing is computed or copied.

    >>> split_heads(torch.arange(4.0).view(1, 1, 4), 2).tolist()
    [[[[0.0, 1.0]], [[2.0, 3.0]]]]
    """
    B, T, width = projected.shape
    projected = projected.view(B, T, heads, width // heads)  # (B, T, H·D) -> (B, T, H, D)
    return projected.transpose(1, 2)  # (B, T, H, D) -> (B, H, T, D)


def merge_heads(heads: Tensor) -> Tensor:
    """Lay the heads side by side again: (B, H, T, D) → (B, T, H·D).

    >>> merge_heads(split_heads(torch.arange(4.0).view(1, 1, 4), 2)).tolist()
    [[[0.0, 1.0, 2.0, 3.0]]]
    """
    return heads.transpose(1, 2).flatten(2)  # (B, H, T, D) -> (B, T, H, D) -> (B, T, H·D)


def multi_head(
    x: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear, *, heads: int = 1, kv_heads: int | None = None
) -> MultiHead:
    """Rung 4 in every head, all heads in one product; with one head it is rung 4.

    >>> x, to = torch.randn(4, 8, 32), lambda width: nn.Linear(32, width, bias=False)
    >>> step = multi_head(x, query=to(64), key=to(32), value=to(32), heads=4, kv_heads=2)
    >>> step.q.shape, step.k.shape, step.out.shape
    (torch.Size([4, 4, 8, 16]), torch.Size([4, 2, 8, 16]), torch.Size([4, 8, 64]))

    Arguments: x (B, T, C), floating; query (C → Hq·D), key (C → Hk·D), value (C → Hk·Dv), linear layers without bias;
    heads = Hq, default 1; kv_heads = Hk, which divides Hq, default Hq.
    Returns: `q` (B, Hq, T, D), `k` (B, Hk, T, D), `v` (B, Hk, T, Dv), `scores`, `masked` and `weights` (B, Hq, T, T),
    `heads` (B, Hq, T, Dv), `out` (B, T, Hq·Dv). Raises: ArgumentError when shapes, dtypes, layers or counts do not fit.
    Time O(B·Hq·T²·(D + Dv)) and the projections, memory O(B·Hq·T²).
    Sources: Vaswani et al. 2017 (heads); Ainslie et al. 2023, "GQA" (grouped heads).
    """
    check_sequence(x)
    Hq = heads
    Hk = heads if kv_heads is None else kv_heads
    check_head_counts(query, key, value, Hq, Hk)
    check_projections(x, query, key, value, heads=Hq, kv_heads=Hk)
    T = x.shape[1]
    # One wide projection is many narrow ones: each head owns a slice of it.
    q = split_heads(query(x), Hq)  # (B, T, Hq·D) -> (B, Hq, T, D)
    k = split_heads(key(x), Hk)  # (B, T, Hk·D) -> (B, Hk, T, D)
    v = split_heads(value(x), Hk)  # (B, T, Hk·Dv) -> (B, Hk, T, Dv)
    # Grouped heads: Hq / Hk neighbours ask different questions of the same keys. Query head h reads key head
    # h // (Hq / Hk), so each key head is repeated for its whole group before the next one comes.
    group = Hq // Hk
    k_for_each = k.repeat_interleave(group, dim=1)  # (B, Hk, T, D) -> (B, Hq, T, D)
    v_for_each = v.repeat_interleave(group, dim=1)  # (B, Hk, T, Dv) -> (B, Hq, T, Dv)
    # From here on it is rung 4. Products act on the last two dimensions, so heads are just more of a batch. The scale
    # is that of one head: D, not Hq·D.
    D = q.shape[-1]
    scores = q @ k_for_each.transpose(-2, -1) * D**-0.5  # (B, Hq, T, D) @ (B, Hq, D, T) -> (B, Hq, T, T)
    tril = torch.tril(x.new_ones(T, T))  # (T, T)
    masked = scores.masked_fill(tril == 0, float("-inf"))  # (B, Hq, T, T)
    weights = torch.softmax(masked, dim=-1)  # (B, Hq, T, T)
    each = weights @ v_for_each  # (B, Hq, T, T) @ (B, Hq, T, Dv) -> (B, Hq, T, Dv)
    # What the heads found is laid side by side. (A layer of a model then mixes it with one more projection.)
    out = merge_heads(each)  # (B, Hq, T, Dv) -> (B, T, Hq·Dv)
    return MultiHead(q, k, v, scores, masked, weights, each, out)
