"""Rung 6. Must the T×T matrix ever exist? No: a softmax can be taken tile by tile, with a running max and sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from clearhead.ladder.inputs import check_heads, check_tile


class Tile(NamedTuple):
    """What is known after one tile of scores, for whoever wants to look on."""

    row: int  # the tile's first query
    column: int  # the tile's first key
    scores: Tensor  # (B, Hq, rows, columns)
    top: Tensor  # (B, Hq, rows, 1)
    total: Tensor  # (B, Hq, rows, 1)
    summed: Tensor  # (B, Hq, rows, Dv)


class OnlineSoftmax(NamedTuple):
    """What rung 6 makes. With lse any weight can be had again: weight = e^(score − lse)."""

    lse: Tensor  # (B, Hq, T)
    out: Tensor  # (B, Hq, T, Dv)


def online_softmax(
    q: Tensor, k: Tensor, v: Tensor, *, tile: int = 4, look: Callable[[Tile], None] | None = None
) -> OnlineSoftmax:
    """Causal attention without its matrix: tiles of scores are made, used and dropped. Exact, not an approximation.

    >>> q, k, v = torch.randn(3, 1, 2, 10, 4)
    >>> online_softmax(q, k, v).out.allclose(online_softmax(q, k, v, tile=10).out, atol=1e-5)
    True

    Arguments: q (B, Hq, T, D), k (B, Hk, T, D), v (B, Hk, T, Dv), floating, Hq a multiple of Hk; tile, how many queries
    and keys make a tile, >= 1, default 4; look, called with a `Tile` after each, default nobody.
    Returns: `lse` (B, Hq, T), log of the sum of e^score, natural; `out` (B, Hq, T, Dv) = rung 5's heads.
    Raises: ArgumentError when shapes or dtypes do not fit or tile < 1.
    Time O(B·Hq·T²·(D + Dv)), about half of rung 5; memory O(B·Hq·T·(D + Dv) + B·Hq·tile²).
    Sources: Milakov and Gimelshein 2018 (online softmax); Dao et al. 2022, "FlashAttention".
    """
    check_heads(q, k, v)
    check_tile(tile)
    B, Hq, T, D = q.shape
    group = Hq // k.shape[1]
    k = k.repeat_interleave(group, dim=1)  # (B, Hk, T, D) -> (B, Hq, T, D)
    v = v.repeat_interleave(group, dim=1)  # (B, Hk, T, Dv) -> (B, Hq, T, Dv)
    position = torch.arange(T, device=q.device)  # (T,)
    lses, outs = [], []
    for row in range(0, T, tile):
        rows = slice(row, row + tile)
        i = position[rows, None]  # (rows, 1)
        # Three things are carried along for each query: the largest score so far, the sum of e^(score − largest), and
        # the sum of the values with those same weights.
        top = q.new_full((B, Hq, len(i), 1), float("-inf"))  # (B, Hq, rows, 1)
        total = q.new_zeros(B, Hq, len(i), 1)  # (B, Hq, rows, 1)
        summed = q.new_zeros(B, Hq, len(i), v.shape[-1])  # (B, Hq, rows, Dv)
        # Tiles to the right of the diagonal hold nothing but future: they are not even made.
        for column in range(0, row + len(i), tile):
            columns = slice(column, column + tile)
            j = position[None, columns]  # (1, columns)
            scores = q[:, :, rows] @ k[:, :, columns].transpose(-2, -1) * D**-0.5  # (B, Hq, rows, columns)
            scores = scores.masked_fill(j > i, float("-inf"))  # (B, Hq, rows, columns)
            # Softmax does not mind what is subtracted from all scores of a row. The largest one is a good choice: no
            # power of e is then above 1, and none can overflow. But the largest of all is not known yet ...
            higher = torch.maximum(top, scores.amax(dim=-1, keepdim=True))  # (B, Hq, rows, 1)
            # ... so when a larger one turns up, what was summed under the old one shrinks by e^(old − new).
            shrink = torch.exp(top - higher)  # (B, Hq, rows, 1)
            weights = torch.exp(scores - higher)  # (B, Hq, rows, columns)
            total = total * shrink + weights.sum(dim=-1, keepdim=True)  # (B, Hq, rows, 1)
            summed = summed * shrink + weights @ v[:, :, columns]  # (B, Hq, rows, Dv)
            top = higher  # (B, Hq, rows, 1)
            if look is not None:
                look(Tile(row, column, scores, top, total, summed))
        # The division that makes shares out of weights waits until the row is complete, and is done once.
        outs.append(summed / total)  # (B, Hq, rows, Dv)
        lses.append((top + torch.log(total)).squeeze(-1))  # (B, Hq, rows)
    return OnlineSoftmax(torch.cat(lses, dim=2), torch.cat(outs, dim=2))  # (B, Hq, T), (B, Hq, T, Dv)
