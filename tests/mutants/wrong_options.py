"""Functions that take the wrong thing for query, key or value, or that use heads, softcaps, sinks or a scale wrongly."""

from __future__ import annotations

import math

import torch
from tests.mutants.registry import wrong
from torch.nn import functional as F

# Each file has its own: the checker looks for a mistake in the functions of a candidate's file, as people write them.


def triangle(q, k, diagonal=0):
    tq, tk = q.shape[-2], k.shape[-2]
    return torch.tril(torch.ones(tq, tk, dtype=torch.bool), diagonal=tk - tq + diagonal)


def scaled(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


@wrong("roles:kqv")
def query_and_key_swapped(q, k, v):
    return F.softmax(k @ q.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


@wrong("roles:qkk")
def key_as_value(q, k, v):
    return F.softmax(scaled(q, k), dim=-1) @ k


@wrong("result:weights transposed")
def weights_transposed(q, k, v):
    return F.softmax(scaled(q, k), dim=-1).transpose(-2, -1) @ v


@wrong("over:batch")
def along_the_batch(q, k, v):
    q, k, v = (t.transpose(0, 2) for t in (q, k, v))
    return (F.softmax(scaled(q, k), dim=-1) @ v).transpose(0, 2)


@wrong("heads:tiled")
def heads_tiled(q, k, v):
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
    return F.softmax(scaled(q, k), dim=-1) @ v


@wrong("heads:first")
def only_the_first_key_head(q, k, v):
    if k.shape[1] != q.shape[1]:
        k, v = k[:, :1], v[:, :1]
    return F.softmax(scaled(q, k), dim=-1) @ v


@wrong("cap:after")
def softcap_after_mask(q, k, v, softcap=None):
    scores = scaled(q, k).masked_fill(~triangle(q, k), float("-inf"))
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return F.softmax(scores, dim=-1) @ v


@wrong("cap:no-divide")
def softcap_without_dividing(q, k, v, softcap=50.0):
    return F.softmax(softcap * torch.tanh(scaled(q, k)), dim=-1) @ v


@wrong("sinks:dropped")
def sinks_dropped(q, k, v, sinks):
    scores = scaled(q, k)
    with_sink = torch.cat([scores, sinks[None, :, None, None].expand(*scores.shape[:-1], 1)], dim=-1)
    return F.softmax(with_sink[..., :-1], dim=-1) @ v


@wrong("sinks:first value")
def sinks_given_a_value(q, k, v, sinks):
    scores = scaled(q, k)
    column = sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
    weights = F.softmax(torch.cat([column, scores], dim=-1), dim=-1)
    return weights @ torch.cat([v[:, :, :1], v], dim=2)


@wrong("scale:ignored")
def given_scale_ignored(q, k, v, scale=None):
    return F.softmax(scaled(q, k), dim=-1) @ v
