"""Functions of query, key and value that are wrong, one way or two ways at once."""

from __future__ import annotations

import math

import numpy as np
import torch
from tests.mutants.registry import wrong
from torch.nn import functional as F

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


# Masks -------------------------------------------------------------------------------------------------------------------


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


@wrong("empty:nan")
def nan_where_nothing_is_seen(q, k, v, mask=None):
    scores = scaled(q, k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


@wrong("empty:nan")
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


# Roles, heads, options ---------------------------------------------------------------------------------------------------


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


# Habits ------------------------------------------------------------------------------------------------------------------


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
