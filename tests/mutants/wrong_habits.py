"""Functions whose formula may be right, and which do something that no attention should: draw, remember, round, detach."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.mutants.registry import wrong
from torch.nn import functional as F

# Each file has its own: the checker looks for a mistake in the functions of a candidate's file, as people write them.


def scaled(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


@wrong("calls:dropout is always on")
def dropout_always_on(q, k, v):
    return F.dropout(F.softmax(scaled(q, k), dim=-1), 0.1) @ v


@wrong("calls:dropout is always on + scale:1")
def dropout_always_on_and_no_scale(q, k, v):
    return F.dropout(F.softmax(q @ k.mT, dim=-1), 0.1) @ v


@wrong("dropout:on scores")
def dropout_on_scores(q, k, v, dropout=0.0):
    return F.softmax(F.dropout(scaled(q, k), dropout), dim=-1) @ v


@wrong("calls:random")
def noise(q, k, v):
    return F.softmax(scaled(q, k) + 0.1 * torch.from_numpy(np.random.randn(q.shape[-2], k.shape[-2])), dim=-1) @ v


@wrong("calls:changes its input")
def scaled_in_place(q, k, v):
    q *= q.shape[-1] ** -0.5
    return F.softmax(q @ k.mT, dim=-1) @ v


_seen = []


@wrong("calls:keeps something")
def remembers(q, k, v):
    _seen.append(float(v.flatten()[0]))
    return F.softmax(scaled(q, k), dim=-1) @ v + 0.01 * (len(_seen) % 2)


@wrong("gradient:cut")
def detached(q, k, v):
    return F.softmax(scaled(q, k.detach()), dim=-1) @ v


@wrong("weights:returned ones are others")
def scores_returned_for_weights(q, k, v):
    scores = scaled(q, k)
    return F.softmax(scores, dim=-1) @ v, scores


@wrong("precision:float16")
def half_inside(q, k, v):
    q, k, v = q.half(), k.half(), v.half()
    return (F.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1) @ v).double()


@wrong("precision:half")
def sums_in_half(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    e = (
        torch.exp(scores * 4 - 4 * scores.amax(-1, keepdim=True) + 11)
        if q.dtype == torch.float16
        else torch.exp(scores - scores.amax(-1, keepdim=True))
    )
    return e / e.sum(-1, keepdim=True) @ v


@wrong("calls:assumes contiguous memory")
def assumes_memory(q, k, v):
    k = torch.as_strided(k, k.shape, torch.empty(k.shape).stride())
    return F.softmax(scaled(q, k), dim=-1) @ v


@wrong(check="batch_isolation")
def mean_over_the_batch_leaks(q, k, v):
    return F.softmax(scaled(q, k), dim=-1) @ v + 0.1 * v.mean(0, keepdim=True)


_MASK = torch.tril(torch.ones(8, 8, dtype=torch.bool))


@wrong("sees:not cropped")
def mask_not_cropped(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~_MASK, float("-inf")), dim=-1) @ v
