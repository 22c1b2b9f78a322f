"""Heads whose pattern is planted: queries and keys written by hand so that a head does one thing and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clearhead import Causal, attention

STRENGTH = 30.0  # logit of the planted key over all others: e^30 to 1


class Planted(nn.Module):
    """One attention layer whose head h looks where `patterns[h](ids, i)` says: a key for every query, or None for uniform."""

    def __init__(self, patterns) -> None:
        super().__init__()
        self.patterns = patterns
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, ids: Tensor) -> Tensor:
        B, T = ids.shape
        H = len(self.patterns)
        key = torch.eye(T).expand(B, H, T, T)
        query = torch.zeros(B, H, T, T)
        for b in range(B):
            for h, pattern in enumerate(self.patterns):
                for i in range(T):
                    target = pattern(ids[b].tolist(), i)
                    if target is not None:
                        query[b, h, i, target] = STRENGTH
        return attention(query, key, torch.eye(T).expand(B, H, T, T), mask=Causal(), scale=1.0)


def previous(ids, i):
    return max(0, i - 1)


def itself(ids, i):
    return i


def first(ids, i):
    return 0


def uniform(ids, i):
    return None


def _earlier(ids, i):
    return [j for j in range(i) if ids[j] == ids[i]]


def duplicate(ids, i):
    """The last earlier equal token; nothing in particular where there is none."""
    return _earlier(ids, i)[-1] if _earlier(ids, i) else None


def induction(ids, i):
    """What followed the last earlier equal token."""
    return _earlier(ids, i)[-1] + 1 if _earlier(ids, i) else None


PATTERNS = {
    "previous-token": previous,
    "induction": induction,
    "duplicate-token": duplicate,
    "first-token": first,
    "self": itself,
    "broad": uniform,
}
