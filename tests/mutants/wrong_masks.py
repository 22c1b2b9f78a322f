"""Functions of query, key and value that hide the wrong keys, or hide them in a wrong way."""

from __future__ import annotations

import math

import torch
from tests.mutants.registry import right, wrong
from torch.nn import functional as F

# Each file has its own: the checker looks for a mistake in the functions of a candidate's file, as people write them.


def triangle(q, k, diagonal=0):
    tq, tk = q.shape[-2], k.shape[-2]
    return torch.tril(torch.ones(tq, tk, dtype=torch.bool), diagonal=tk - tq + diagonal)


def scaled(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


@wrong("sees:all", causal=True)
def no_mask_at_all(q, k, v):
    return F.softmax(scaled(q, k), dim=-1) @ v


@wrong("sees:all")
def result_of_masked_fill_thrown_away(q, k, v):
    scores = scaled(q, k)
    scores.masked_fill(~triangle(q, k), float("-inf"))
    return F.softmax(scores, dim=-1) @ v


@wrong("hide:after")
def masked_after_softmax(q, k, v):
    weights = F.softmax(scaled(q, k), dim=-1)
    return (weights * triangle(q, k)) @ v


@wrong("hide:zero")
def scores_multiplied_by_mask(q, k, v):
    return F.softmax(scaled(q, k) * triangle(q, k), dim=-1) @ v


@wrong("hide:zero")
def filled_with_tiny(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), -1e-9), dim=-1) @ v


@wrong("hide:plus-inf")
def filled_with_plus_inf(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), float("inf")), dim=-1) @ v


@wrong("hide:plus")
def filled_with_plus_a_billion(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), 1e9), dim=-1) @ v


@wrong("hide:=-10")
def filled_with_minus_10(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), -10.0), dim=-1) @ v


@wrong("hide:=-100")
def filled_with_minus_100(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), -100.0), dim=-1) @ v


@wrong("hide:=-10000", "hide:=-1000")
def filled_with_minus_1e4(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), -1e4), dim=-1) @ v


@wrong("hide:=-100000")
def filled_with_minus_1e5(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), -1e5), dim=-1) @ v


@wrong("hide:added")
def mask_added(q, k, v):
    return F.softmax(scaled(q, k) + triangle(q, k).to(q.dtype), dim=-1) @ v


@wrong("sees:future")
def upper_triangle(q, k, v):
    seen = torch.triu(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool), diagonal=k.shape[-2] - q.shape[-2])
    return F.softmax(scaled(q, k).masked_fill(~seen, float("-inf")), dim=-1) @ v


@wrong("sees:strict")
def diagonal_hidden(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k, -1), float("-inf")), dim=-1) @ v


@wrong("sees:strict")
def diagonal_hidden_finite(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k, -1), -1e9), dim=-1) @ v


@wrong("sees:ahead")
def one_ahead(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k, 1), float("-inf")), dim=-1) @ v


@wrong("align:start", causal="end")
def aligned_at_the_start(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@wrong("sees:diagonal")
def only_itself(q, k, v):
    t = q.shape[-2]
    return F.softmax(scaled(q, k).masked_fill(torch.eye(t) == 0, float("-inf")), dim=-1) @ v


@wrong("mask:ignored", "mask:ignored + sees:all")
def given_mask_ignored(q, k, v, mask=None):
    scores = scaled(q, k)
    if mask is not None:
        scores.masked_fill(mask == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


@wrong("hide:added")
def given_mask_added(q, k, v, mask=None):
    scores = scaled(q, k)
    if mask is not None:
        scores = scores + mask.to(scores.dtype).clamp(min=0)
    return F.softmax(scores, dim=-1) @ v


@wrong("mask:transposed")
def given_mask_transposed(q, k, v, mask=None):
    scores = scaled(q, k)
    if mask is not None:
        scores = scores.masked_fill(mask.transpose(-1, -2) == 0, -1e9)
    return F.softmax(scores, dim=-1) @ v


@wrong("hide:after")
def given_mask_after_softmax(q, k, v, mask=None):
    weights = F.softmax(scaled(q, k), dim=-1)
    if mask is not None:
        weights = weights.masked_fill(mask == 0, 0.0)
    return weights @ v


@wrong("mask:instead")
def given_mask_instead_of_causal(q, k, v, mask=None):
    seen = triangle(q, k) if mask is None else mask.bool()
    return F.softmax(scaled(q, k).masked_fill(~seen, -1e9), dim=-1) @ v


@right  # frameworks differ in what such a query gets: by itself it is a warning
@wrong("empty:nan", strict=True)
def nan_where_nothing_is_seen(q, k, v, mask=None):
    scores = scaled(q, k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


@right
@wrong("empty:nan", strict=True)
def nan_in_the_gradient_where_nothing_is_seen(q, k, v, mask=None):
    scores = scaled(q, k)
    if mask is not None:
        scores = scores + torch.where(mask == 1, 0.0, float("-inf"))
    return F.softmax(scores, dim=-1).nan_to_num(0.0) @ v


@wrong("sees:always past")
def causal_flag_ignored(q, k, v, causal=False):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), float("-inf")), dim=-1) @ v


@wrong("sees:window+1", window=3)
def window_one_too_wide(q, k, v):
    tq, tk = q.shape[-2], k.shape[-2]
    i, j = torch.arange(tq)[:, None] + tk - tq, torch.arange(tk)[None]
    seen = (j <= i) & (j >= i - 3)
    return F.softmax(scaled(q, k).masked_fill(~seen, float("-inf")), dim=-1) @ v


@wrong("sees:window-1")
def window_one_too_narrow(q, k, v, window=7):
    tq, tk = q.shape[-2], k.shape[-2]
    i, j = torch.arange(tq)[:, None] + tk - tq, torch.arange(tk)[None]
    seen = (j <= i) & (j > i - window + 1)
    return F.softmax(scaled(q, k).masked_fill(~seen, -1e9), dim=-1) @ v


@wrong("hide:0/0")
def brought_back_to_one(q, k, v):
    weights = F.softmax(scaled(q, k), dim=-1) * triangle(q, k)
    return weights / weights.sum(-1, keepdim=True) @ v


@wrong("hide:0/0")
def brought_back_to_one_beside_what_is_hidden(q, k, v, mask=None):
    scores = scaled(q, k)
    e = torch.exp(scores - scores.amax(-1, keepdim=True))
    if mask is not None:
        e = e * mask
    return e / (e.sum(-1, keepdim=True) + 1e-9) @ v
