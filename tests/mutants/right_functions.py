"""Functions of query, key and value that are right, in many styles. None of them may ever be rejected."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from tests.mutants.registry import right
from torch import nn
from torch.nn import functional as F


@right
def plain(q, k, v):
    return F.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.size(-1)), dim=-1) @ v


@right
def prescaled_query(q, k, v):
    q = q * q.shape[-1] ** -0.5
    return torch.softmax(q @ k.mT, dim=-1) @ v


@right
def root_of_scale_on_both(q, k, v):
    r = q.shape[-1] ** -0.25
    return torch.softmax((q * r) @ (k * r).mT, dim=-1) @ v


@right
def einsum(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


@right
def minus_a_billion(q, k, v):
    tq, tk = q.shape[-2], k.shape[-2]
    seen = torch.ones(tq, tk).tril(tk - tq)
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(seen == 0, -1e9)
    return scores.softmax(-1) @ v


@right
def finfo_min(q, k, v):
    tq, tk = q.shape[-2], k.shape[-2]
    hidden = torch.ones(tq, tk, dtype=torch.bool).triu(tk - tq + 1)
    scores = (q @ k.mT / math.sqrt(q.size(-1))).masked_fill(hidden, torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v


@right
def masked_after_and_renormalised(q, k, v):
    tq, tk = q.shape[-2], k.shape[-2]
    seen = torch.ones(tq, tk, dtype=torch.bool).tril(tk - tq)
    scores = q @ k.mT / math.sqrt(q.size(-1))
    scores = scores - scores.masked_fill(~seen, float("-inf")).amax(-1, keepdim=True)
    e = torch.exp(scores.clamp(max=0)) * seen
    return e / e.sum(-1, keepdim=True) @ v


@right
def library(q, k, v):
    return F.scaled_dot_product_attention(q, k, v)


@right
def library_causal_at_the_start(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@right
def library_with_options(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    if is_causal:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(key.shape[-2] - query.shape[-2])
        attn_mask = seen if attn_mask is None else attn_mask & seen
    return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, scale=scale)


@right
def mask_of_ones_and_zeros(q, k, v, mask=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(dim=-1)
    return torch.matmul(weights, v), weights


@right
def mask_added(q, k, v, attn_mask=None):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if attn_mask is not None:
        scores = scores + attn_mask
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ v


@right
def true_is_hidden(q, k, v, key_padding_mask=None):
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, None, :], -1e30)
    return scores.softmax(-1) @ v


@right
def grouped_by_expand(q, k, v):
    b, hq, t, d = q.shape
    hk, s = k.shape[1], k.shape[2]
    q = q.reshape(b, hk, hq // hk, t, d)
    scores = q @ k[:, :, None].mT / d**0.5
    return (scores.softmax(-1) @ v[:, :, None].expand(b, hk, hq // hk, s, v.shape[-1])).reshape(b, hq, t, -1)


@right
def grouped_by_repeat_interleave(q, k, v):
    n = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
    return F.scaled_dot_product_attention(q, k, v)


@right
def tiles_with_running_maximum(q, k, v):
    tq, tk, d = q.shape[-2], k.shape[-2], q.shape[-1]
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    top = torch.full((*q.shape[:-1], 1), float("-inf"), dtype=q.dtype)
    total = torch.zeros_like(top)
    rows = torch.arange(tq)[:, None] + tk - tq
    for start in range(0, tk, 3):
        s = q @ k[..., start : start + 3, :].mT * d**-0.5
        s = s.masked_fill(torch.arange(start, min(start + 3, tk))[None] > rows, float("-inf"))
        new = torch.maximum(top, s.amax(-1, keepdim=True))
        new_safe = new.masked_fill(new == float("-inf"), 0.0)
        p = torch.exp(s - new_safe)
        shrink = torch.exp(top - new_safe)
        total = total * shrink + p.sum(-1, keepdim=True)
        out = out * shrink + p @ v[..., start : start + 3, :]
        top = new
    return out / total


@right
def loops_over_everything(q, k, v):
    out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=v.dtype)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                scores = torch.stack([q[b, h, i] @ k[b, h, j] for j in range(k.shape[2])]) / math.sqrt(q.shape[-1])
                out[b, h, i] = torch.softmax(scores, 0) @ v[b, h]
    return out


@right
def numpy_style(Q, K, V):
    s = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True) @ V


@right
def numpy_causal_2d(Q, K, V):
    assert Q.ndim == 2
    s = Q @ K.T / np.sqrt(Q.shape[1])
    s = np.where(np.tril(np.ones(s.shape), K.shape[0] - Q.shape[0]) == 0, -np.inf, s)
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True) @ V


@right
def plain_python_lists(q, k, v):
    d = len(q[0])
    out = []
    for row in q:
        scores = [sum(float(a) * float(b) for a, b in zip(row, other, strict=True)) / math.sqrt(d) for other in k]
        top = max(scores)
        e = [math.exp(s - top) for s in scores]
        out.append([sum(w * float(r[c]) for w, r in zip(e, v, strict=True)) / sum(e) for c in range(len(v[0]))])
    return out


@right
def single_head(q, k, v):
    """(B, T, D) only."""
    b, t, d = q.shape
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)) / d**0.5, dim=2), v)


@right
def tokens_before_heads(q, k, v):
    """(B, T, H, D), as some kernels want it."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


@right
def float32_inside(q, k, v):
    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


@right
def softcapped(q, k, v, softcap=30.0):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (softcap * torch.tanh(scores / softcap)).softmax(-1) @ v


@right
def with_sinks(q, k, v, sinks):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    column = sinks[None, :, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v


@right
def sliding_window(q, k, v, window=4):
    i, j = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2], torch.arange(k.shape[-2])[None]
    hidden = (j > i) | (j <= i - window)
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v


@right
def causal_by_flag(q, k, v, causal=True):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None]
        scores = scores.masked_fill(j > i + k.shape[-2] - q.shape[-2], float("-inf"))
    return scores.softmax(-1) @ v


@right
def a_constant_subtracted_from_every_row(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return (scores - scores.mean(-1, keepdim=True) - 3).softmax(-1) @ v


@right
def log_space(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True)) @ v


@right
def base_two_with_the_factor(q, k, v):
    scores = q @ k.mT * (q.shape[-1] ** -0.5 * math.log2(math.e))
    e = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True) @ v


@right
def scale_given(q, k, v, scale):
    return (q @ k.mT * scale).softmax(-1) @ v


@right
def heads_split_inside(q, k, v, num_heads):
    b, t, c = q.shape

    def split(x):
        return x.view(b, -1, num_heads, x.shape[-1] // num_heads).transpose(1, 2)

    out = F.scaled_dot_product_attention(split(q), split(k), split(v))
    return out.transpose(1, 2).reshape(b, t, -1)


class ScaledDotProductAttention(nn.Module):
    def __init__(self, dropout=0.1):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        weights = self.dropout(F.softmax(scores, dim=-1))
        return weights @ v, weights


right(ScaledDotProductAttention)
right(functools.partial(library_with_options, is_causal=True))


@right
def refuses_what_it_cannot(q, k, v):
    if q.shape[-2] != k.shape[-2]:
        raise ValueError("self-attention only")
    if not q.is_contiguous():
        raise ValueError("contiguous inputs only")
    return F.scaled_dot_product_attention(q, k, v)


@right
def window_to_both_sides(q, k, v, window_size=3):
    i, j = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2], torch.arange(k.shape[-2])[None]
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill((i - j).abs() >= window_size, -1e9).softmax(-1) @ v


@right
def numpy_mask_added(q, k, v):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    s = s + np.triu(np.full((q.shape[-2], k.shape[-2]), -1e9), 1)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@right
def growing_loop(q, k, v):
    out = torch.zeros_like(v)
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            p = torch.softmax(k[b, : t + 1] @ q[b, t] / q.shape[-1] ** 0.5, 0)
            out[b, t] = p @ v[b, : t + 1]
    return out


@right
def flag_off_by_default(q, k, v, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)


@right
def dropout_as_a_layer(query, key, value, mask=None, dropout=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(dim=-1)
    if dropout is not None:
        weights = dropout(weights)
    return weights @ value, weights


@right
def window_of_its_own(q, k, v, w=3):
    """Square only; one query runs too, by broadcasting, and then sees more than the window."""
    i = torch.arange(q.shape[-2])
    seen = (i[:, None] >= i[None]) & (i[:, None] - i[None] < w)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def shares(z):
    e = np.exp(z - np.max(z, axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@right
def numpy_weights_given(x, Wq, Wk, Wv):
    queries, keys, values = x @ Wq, x @ Wk, x @ Wv
    return shares(queries @ keys.T / np.sqrt(keys.shape[1])) @ values


@right
def numpy_weights_given_causal(x, Wq, Wk, Wv):
    queries, keys, values = x @ Wq, x @ Wk, x @ Wv
    scores = queries @ keys.T / np.sqrt(keys.shape[1])
    scores[np.triu_indices(len(x), 1)] = -np.inf
    return shares(scores) @ values


@right
def mask_that_must_be_given(query, key, value, mask):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    return scores.masked_fill(mask == 0, -1e9).softmax(dim=-1) @ value


@right
def weights_come_first(q, k, v):
    weights = F.softmax(q @ k.mT / math.sqrt(q.size(-1)), dim=-1)
    return weights, weights @ v


class ArraysHeld:
    """No module: matrices are NumPy's, and what runs is called forward."""

    def __init__(self, d_model=32, d_k=8):
        drawn = np.random.default_rng(7)
        self.Wq, self.Wk, self.Wv = (drawn.standard_normal((d_model, d_k)) / np.sqrt(d_model) for _ in range(3))
        self.d_k = d_k

    def forward(self, x):
        return shares(x @ self.Wq @ (x @ self.Wk).T / np.sqrt(self.d_k)) @ (x @ self.Wv)


right(ArraysHeld)
