"""Functions of query, key and value whose scale or softmax is wrong."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.mutants.registry import wrong
from torch.nn import functional as F

# Scale -------------------------------------------------------------------------------------------------------------------


@wrong("scale:1")
def no_scale(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


@wrong("scale:1/D")
def divided_by_d(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / k.size(-1), dim=-1) @ v


@wrong("scale:1/D")
def scaled_twice(q, k, v):
    q = q / math.sqrt(q.size(-1))
    scores = q @ k.transpose(-2, -1)
    return F.softmax(scores / math.sqrt(k.size(-1)), dim=-1) @ v


@wrong("scale:sqrt(D)")
def multiplied(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) * math.sqrt(k.size(-1)), dim=-1) @ v


@wrong("scale:1/sqrt(C)", "scale:1/sqrt(D*H)")
def by_all_heads_together(q, k, v):
    c = q.size(1) * q.size(-1)
    return F.softmax(q @ k.transpose(-2, -1) * c**-0.5, dim=-1) @ v


@wrong("scale:1/sqrt(T)")
def by_root_of_length(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(k.size(-2)), dim=-1) @ v


@wrong("scale:1/sqrt(H)")
def by_root_of_heads(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(1)), dim=-1) @ v


@wrong("scale:1/H")
def by_heads(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / q.shape[1], dim=-1) @ v


@wrong("scale:D**-0.25")
def root_of_scale_on_query_only(q, k, v):
    q = q * q.size(-1) ** -0.25
    return F.softmax(q @ k.transpose(-2, -1), dim=-1) @ v


@wrong("scale:=0.125")
def literal_scale(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) * 0.125, dim=-1) @ v


@wrong("scale:-1/sqrt(D)")
def turned_sign(q, k, v):
    return F.softmin(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1) @ v


@wrong("scale:log(2)/sqrt(D)")
def base_two(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


# Softmax -----------------------------------------------------------------------------------------------------------------


@wrong("axis:queries")
def softmax_over_queries(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-2) @ v


@wrong("axis:heads")
def softmax_over_heads(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=1) @ v


@wrong("axis:batch")
def softmax_over_batch(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=0) @ v


@wrong("axis:none")
def no_softmax(q, k, v):
    return (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5) @ v


@wrong("axis:sigmoid")
def sigmoid(q, k, v):
    return torch.sigmoid(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5) @ v


@wrong("axis:twice")
def softmax_twice(q, k, v):
    return F.softmax(F.softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1), dim=-1) @ v


@wrong("axis:plus one")
def one_more_in_the_denominator(q, k, v):
    e = torch.exp(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5)
    return e / (1 + e.sum(-1, keepdim=True)) @ v


@wrong("axis:overflow")
def exp_as_it_is(q, k, v):
    e = torch.exp(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5)
    return e / e.sum(-1, keepdim=True) @ v


@wrong("axis:log")
def log_softmax(q, k, v):
    return F.log_softmax(q @ k.transpose(-2, -1) / q.size(-1) ** 0.5, dim=-1) @ v


@wrong("axis:both")
def softmax_over_everything(q, k, v):
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    return F.softmax(scores.flatten(-2), dim=-1).view_as(scores) @ v


# NumPy without keepdims: one number a row meets the matrix as if it were one a column ------------------------------------


@wrong("axis:turned sums")
def sums_without_keepdims(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=-1)) @ v


@wrong("axis:turned raw sums")
def raw_sums_without_keepdims(q, k, v):
    e = np.exp(q @ k.T / np.sqrt(q.shape[-1]))
    return (e / e.sum(axis=1)) @ v


@wrong("axis:turned maxima")
def maxima_without_keepdims(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(axis=-1))
    return (e / e.sum(axis=-1, keepdims=True)) @ v


@wrong("axis:turned both")
def neither_with_keepdims(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(axis=-1))
    return (e / e.sum(axis=-1)) @ v


@wrong("axis:columns")
def maxima_of_rows_and_sums_of_columns(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return (e / e.sum(axis=0)) @ v


@wrong("axis:one maximum")
def one_maximum_for_all_rows(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[-1])
    e = np.exp(s - s.max())
    return (e / e.sum(axis=-1, keepdims=True)) @ v
