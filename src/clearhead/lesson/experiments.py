"""The code of the asides: small functions that measure what their page claims."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Spread(NamedTuple):
    """What a scale does to scores and weights."""

    variance: float  # of the scores, measured
    strongest: float  # the largest of 16 weights, a mean over all queries
    weights: Tensor  # (16,) of the first query, largest first


def spread(D: int, scale: float) -> Spread:
    """Scores of random queries and keys of width D, multiplied by scale, and the weights they give.

    >>> spread(D=64, scale=1 / 8).strongest < 0.3 < 0.8 < spread(D=64, scale=1.0).strongest
    True
    """
    generator = torch.Generator().manual_seed(0)
    # 4096 queries, each with 16 keys; every number has mean 0 and variance 1.
    q = torch.randn(4096, 1, D, generator=generator)  # (N, 1, D)
    k = torch.randn(4096, 16, D, generator=generator)  # (N, 16, D)
    scores = q @ k.transpose(-2, -1) * scale  # (N, 1, D) @ (N, D, 16) -> (N, 1, 16)
    weights = torch.softmax(scores, dim=-1)  # (N, 1, 16)
    first = weights[0, 0].sort(descending=True).values  # (16,)
    return Spread(float(scores.var()), float(weights.amax(dim=-1).mean()), first)


def filled(scores: Tensor, hidden: Tensor, fill: float) -> Tensor:
    """Weights (T, T) from scores (T, T), with `fill` in place of every score that is hidden.

    >>> filled(torch.tensor([[0.0, 5.0]]), torch.tensor([[False, True]]), float("-inf"))
    tensor([[1., 0.]])
    """
    return torch.softmax(scores.masked_fill(hidden, fill), dim=-1)  # (T, T)


class Head(NamedTuple):
    """What a head of the asides makes."""

    weights: Tensor  # (B, T, T), or (B, T, S) with S other tokens
    out: Tensor  # (B, T, Dv)


def encoder_head(x: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> Head:
    """Rung 4 without the line that hides the future.

    >>> to = nn.Linear(8, 4, bias=False)
    >>> encoder_head(torch.randn(1, 5, 8), to, to, to).weights.shape
    torch.Size([1, 5, 5])
    """
    q, k, v = query(x), key(x), value(x)  # (B, T, D), (B, T, D), (B, T, Dv)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, T, T)
    weights = torch.softmax(scores, dim=-1)  # (B, T, T)
    return Head(weights, weights @ v)


def cross_head(x: Tensor, other: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear) -> Head:
    """Queries from x, keys and values from another sequence (B, S, C).

    >>> to = nn.Linear(8, 4, bias=False)
    >>> cross_head(torch.randn(1, 5, 8), torch.randn(1, 3, 8), to, to, to).weights.shape
    torch.Size([1, 5, 3])
    """
    q, k, v = query(x), key(other), value(other)  # (B, T, D), (B, S, D), (B, S, Dv)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, T, S)
    weights = torch.softmax(scores, dim=-1)  # (B, T, S)
    return Head(weights, weights @ v)


def cache_bytes(layers: int, kv_heads: int, D: int, T: int, bytes_each: int = 2) -> int:
    """What a cache holds: a key and a value of D numbers for every token, key head and layer.

    >>> cache_bytes(layers=32, kv_heads=32, D=128, T=8192)
    4294967296
    """
    return 2 * layers * kv_heads * D * T * bytes_each


def carried(weights: Tensor, values: Tensor) -> Tensor:
    """How much of what a query hears comes from each key: its weight times the length of its value, (T, T).

    >>> carried(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.0, 0.1], [3.0, 4.0]]))
    tensor([[0.0900, 0.5000]])
    """
    lengths: Tensor = values.norm(dim=-1)  # (T,)
    return weights * lengths  # (T, T) * (T,) -> (T, T)


def moved(weights: Tensor, source: int, target: int) -> Tensor:
    """The same weights, but all that went to key `source` goes to key `target`.

    >>> moved(torch.tensor([[0.2, 0.5, 0.3]]), source=0, target=2)
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    other = weights.clone()
    other[..., target] += other[..., source]
    other[..., source] = 0
    return other
