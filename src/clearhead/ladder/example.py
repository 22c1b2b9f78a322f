"""The inputs that the ladder is shown on, and that its tests know the figures of."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class Projected(NamedTuple):
    """A sequence and the three layers that look at it."""

    x: Tensor  # (B, T, C)
    query: nn.Linear  # C -> heads · head_size
    key: nn.Linear  # C -> kv_heads · head_size
    value: nn.Linear  # C -> kv_heads · head_size


def three_rows(*, seed: int = 42) -> Tensor:
    """Three rows of two small whole numbers for `three_by_three`.

    >>> three_rows().tolist()
    [[2.0, 7.0], [6.0, 4.0], [6.0, 5.0]]

    The caller's random state is left as it was. Returns: (3, 2), float32, whole numbers from 0 to 9.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.randint(low=0, high=10, size=(3, 2)).float()  # (3, 2)


def sequence(*, B: int = 4, T: int = 8, C: int = 2, seed: int = 1337) -> Tensor:
    """B sequences of T tokens of width C, from the normal distribution, for rungs 1 to 3.

    >>> sequence().shape
    torch.Size([4, 8, 2])

    The caller's random state is left as it was. Returns: (B, T, C), float32.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return torch.randn(B, T, C)  # (B, T, C)


def projected(
    *,
    B: int = 4,
    T: int = 8,
    C: int = 32,
    head_size: int = 16,
    heads: int = 1,
    kv_heads: int | None = None,
    seed: int = 1337,
) -> Projected:
    """A sequence and untrained layers to project it, for rungs 4 to 8.

    >>> example = projected(heads=4, kv_heads=2)
    >>> example.x.shape, example.query.out_features, example.key.out_features
    (torch.Size([4, 8, 32]), 64, 32)

    The caller's random state is left as it was. kv_heads: default as many as heads.
    """
    kv_heads = heads if kv_heads is None else kv_heads
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        x = torch.randn(B, T, C)  # (B, T, C)
        # Drawn in this order the default layers are those whose figures the tests hold: key before query.
        key = nn.Linear(C, kv_heads * head_size, bias=False)
        query = nn.Linear(C, heads * head_size, bias=False)
        value = nn.Linear(C, kv_heads * head_size, bias=False)
    return Projected(x, query, key, value)
