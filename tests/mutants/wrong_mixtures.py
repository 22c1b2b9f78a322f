"""Functions that are wrong in two ways at once, in NumPy or plain Python, or in ways thought of after the search was made."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.mutants.registry import wrong
from torch.nn import functional as F

# Each file has its own: the checker looks for a mistake in the functions of a candidate's file, as people write them.


def triangle(q, k, diagonal=0):
    tq, tk = q.shape[-2], k.shape[-2]
    return torch.tril(torch.ones(tq, tk, dtype=torch.bool), diagonal=tk - tq + diagonal)


def scaled(q, k):
    return q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))


# Two at once -------------------------------------------------------------------------------------------------------------


@wrong("scale:1/D + axis:queries")
def divided_by_d_and_over_queries(q, k, v):
    return F.softmax(scaled(q, k).masked_fill(~triangle(q, k), -1e9) / q.size(-1) ** 0.5, dim=-2) @ v


@wrong("scale:1 + hide:after")
def no_scale_and_masked_after(q, k, v):
    return (F.softmax(q @ k.mT, dim=-1) * triangle(q, k)) @ v


@wrong("sees:strict + scale:1/sqrt(T)")
def strict_and_by_length(q, k, v):
    scores = q @ k.mT / k.shape[-2] ** 0.5
    return F.softmax(scores.masked_fill(~triangle(q, k, -1), -1e9), dim=-1) @ v


@wrong("roles:qkk + scale:sqrt(D)")
def key_as_value_and_multiplied(q, k, v):
    return F.softmax(q @ k.mT * q.shape[-1] ** 0.5, dim=-1) @ k


@wrong("heads:tiled + scale:1")
def tiled_and_no_scale(q, k, v):
    group = q.shape[1] // k.shape[1]
    return F.softmax(q @ k.repeat(1, group, 1, 1).mT, dim=-1) @ v.repeat(1, group, 1, 1)


@wrong("hide:zero + scale:1/D")
def multiplied_by_mask_and_by_d(q, k, v):
    return F.softmax(q @ k.mT / q.shape[-1] * triangle(q, k), dim=-1) @ v


# NumPy and plain Python --------------------------------------------------------------------------------------------------


@wrong("axis:queries")
def numpy_axis(Q, K, V):
    s = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    e = np.exp(s - s.max(axis=-2, keepdims=True))
    return (e / e.sum(axis=-2, keepdims=True)) @ V


@wrong("scale:1")
def numpy_2d_no_scale(Q, K, V):
    assert Q.ndim == 2
    s = np.dot(Q, K.T)
    e = np.exp(s - s.max(axis=1, keepdims=True))
    return np.dot(e / e.sum(axis=1, keepdims=True), V)


@wrong("scale:1/D")
def loops_by_d(q, k, v):
    out = []
    for i in range(len(q)):
        scores = [sum(float(a) * float(b) for a, b in zip(q[i], row, strict=True)) / len(q[i]) for row in k]
        top = max(scores)
        e = [math.exp(s - top) for s in scores]
        total = sum(e)
        out.append([sum(w / total * float(row[d]) for w, row in zip(e, v, strict=True)) for d in range(len(v[0]))])
    return out


@wrong(check="permutations")
def heads_are_not_alike(q, k, v):
    gain = torch.linspace(0.9, 1.1, q.shape[1], dtype=q.dtype)[:, None, None]
    return F.softmax(scaled(q, k), dim=-1) @ v * gain


@wrong(check="result_kind", strict=True)
def float64_whatever_comes(q, k, v):
    q, k, v = q.double(), k.double(), v.double()
    return F.softmax(scaled(q, k), dim=-1) @ v


# Written after the search, to see what it misses --------------------------------------------------------------------------


@wrong("scale:1/int(sqrt(D))")
def root_cut_to_a_whole_number(q, k, v):
    return F.softmax(q @ k.mT / int(math.sqrt(q.size(-1))), dim=-1) @ v


@wrong("scale:1 + result:scaled")
def scaled_after_softmax(q, k, v):
    return F.softmax(q @ k.mT, dim=-1) / math.sqrt(q.size(-1)) @ v


@wrong("result:scaled by value width")
def value_scaled(q, k, v):
    return F.softmax(scaled(q, k), dim=-1) @ (v / math.sqrt(v.size(-1)))


@wrong("mask:rows")
def padding_hides_queries(q, k, v, key_padding_mask=None):
    scores = scaled(q, k)
    if key_padding_mask is not None:
        scores = scores.masked_fill(key_padding_mask[:, None, :, None], -1e9)
    return F.softmax(scores, dim=-1) @ v


@wrong("heads:v-tiled")
def only_values_tiled(q, k, v):
    n = q.shape[1] // k.shape[1]
    return F.softmax(scaled(q, k.repeat_interleave(n, 1)), dim=-1) @ v.repeat(1, n, 1, 1)


@wrong("heads:next")
def key_head_of_the_next_group(q, k, v):
    n = q.shape[1] // k.shape[1]
    at = (torch.arange(q.shape[1]) // n + 1) % k.shape[1]
    return F.softmax(scaled(q, k[:, at]), dim=-1) @ v[:, at]


@wrong("unit:l2")
def cosine(q, k, v):
    return F.softmax(scaled(F.normalize(q, dim=-1), F.normalize(k, dim=-1)), dim=-1) @ v


@wrong("precision:bfloat16")
def softmax_in_bfloat16(q, k, v):
    return F.softmax(scaled(q, k).bfloat16(), dim=-1).to(v.dtype) @ v


@wrong("scale:1/D + hide:=-20")
def by_d_and_filled_with_minus_20(q, k, v):
    return F.softmax((q @ k.mT / q.size(-1)).masked_fill(~triangle(q, k), -20.0), dim=-1) @ v


@wrong("scale:1/D + sees:strict + roles:qkk")
def three_at_once(q, k, v):
    return F.softmax((q @ k.mT / q.size(-1)).masked_fill(~triangle(q, k, -1), -1e9), dim=-1) @ k


@wrong(check="values")
def only_the_three_largest(q, k, v):
    scores = scaled(q, k)
    least = scores.topk(min(3, scores.shape[-1]), dim=-1).values[..., -1:]
    return F.softmax(scores.masked_fill(scores < least, float("-inf")), dim=-1) @ v


@wrong(check="values")
def last_tile_dropped(q, k, v):
    n = k.shape[-2] // 4 * 4 or k.shape[-2]
    return F.softmax(scaled(q, k[..., :n, :]), dim=-1) @ v[..., :n, :]


@wrong("unit:reshaped key")
def key_reshaped(q, k, v):
    turned = k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])
    return F.softmax(q @ turned / math.sqrt(q.size(-1)), dim=-1) @ v


@wrong("result:weights")
def weights_alone(q, k, v):
    return F.softmax(scaled(q, k), dim=-1)


@wrong("hide:add=-10000")
def minus_ten_thousand_added(q, k, v):
    return F.softmax(scaled(q, k) + (~triangle(q, k)) * -1e4, dim=-1) @ v


@wrong("scale:1/(D//2)")
def by_half_the_width(q, k, v):
    return F.softmax(q @ k.mT / (q.size(-1) // 2), dim=-1) @ v


@wrong("axis:tiles=3")
def values_never_rescaled(q, k, v):
    top, total, out = q.new_full((*q.shape[:3], 1), float("-inf")), 0.0, 0.0
    for j in range(0, k.shape[2], 3):
        scores = scaled(q, k[:, :, j : j + 3])
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        e = torch.exp(scores - new)
        total = total * torch.exp(top - new) + e.sum(-1, keepdim=True)
        out = out + e @ v[:, :, j : j + 3]
        top = new
    return out / total


@wrong("axis:tiles both=1")
def nothing_rescaled(q, k, v):
    top, total, out = q.new_full((*q.shape[:3], 1), float("-inf")), 0.0, 0.0
    for j in range(k.shape[2]):
        scores = scaled(q, k[:, :, j : j + 1])
        top = torch.maximum(top, scores)
        total, out = total + torch.exp(scores - top), out + torch.exp(scores - top) * v[:, :, j : j + 1]
    return out / total


@wrong("sees:window, future too")
def window_that_forgets_the_future(q, k, v, window=3):
    i, j = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2], torch.arange(k.shape[-2])
    near = (i - j) < window
    return F.softmax(scaled(q, k).masked_fill(~near, float("-inf")), dim=-1) @ v


@wrong("axis:tiles=64")
def values_never_rescaled_in_large_tiles(q, k, v):
    top, total, out = q.new_full((*q.shape[:3], 1), float("-inf")), 0.0, 0.0
    for j in range(0, k.shape[2], 64):
        scores = scaled(q, k[:, :, j : j + 64])
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        e = torch.exp(scores - new)
        total = total * torch.exp(top - new) + e.sum(-1, keepdim=True)
        out = out + e @ v[:, :, j : j + 64]
        top = new
    return out / total
