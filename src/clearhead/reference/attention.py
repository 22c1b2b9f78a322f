"""Softmax attention, written down. Order: scores · scale → softcap → + bias → mask → softmax with sinks → · value."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Pattern(NamedTuple):
    """One call's full pattern and what it was made from; every field T×T but `lse`."""

    logits: Float[Tensor, "b hq tq tk"]  # z_ij, after scale, softcap, bias and mask (−inf where hidden)
    lse: Float[Tensor, "b hq tq"]  # L_i = log Σ_j e^{z_ij}, the sink's e^{s_h} included
    weights: Float[Tensor, "b hq tq tk"]  # p_ij = e^{z_ij − L_i}
    visible: Bool[Tensor, "#b #hq tq tk"]  # may query i see key j


def pattern(
    query: Float[Tensor, "b hq tq d"],
    key: Float[Tensor, "b hk tk d"],
    *,
    visible: Bool[Tensor, "#b #hq tq tk"],
    bias: Float[Tensor, "#b #hq #tq #tk"] | None = None,
    scale: float,
    softcap: float | None = None,
    sinks: Float[Tensor, " hq"] | None = None,
) -> Pattern:
    """Logits, log-sum-exp and weights of every pair, in the inputs' own dtype. O(Tq·Tk) memory."""
    groups = query.shape[1] // max(1, key.shape[1])
    key = key.repeat_interleave(
        groups, dim=1
    )  # (b, hk, tk, d) -> (b, hq, tk, d): query head h reads key head h // groups
    if bias is not None:
        visible = visible & (bias != -torch.inf)  # adding −inf is another way to hide
    logits = scores(query, key, visible) * scale  # (b, hq, tq, tk)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    if bias is not None:
        logits = logits + bias
    logits = torch.where(visible, logits, -torch.inf)
    columns = logits if sinks is None else torch.cat([logits, _sink_column(sinks, logits)], dim=-1)
    lse, top, total = _logsumexp(columns)  # (b, hq, tq)
    # Measured from the largest logit, not from L: where logits are as large as numbers go, L − z has no digits left.
    weights = torch.exp(logits - top[..., None]) / torch.where(total == 0, 1.0, total)[..., None]
    # A query that is NaN gives no weight to what it may not see either.
    weights = torch.where(visible, weights, 0.0)
    return Pattern(logits, lse, weights, visible.expand_as(logits))


def attention(
    query: Float[Tensor, "b hq tq d"],
    key: Float[Tensor, "b hk tk d"],
    value: Float[Tensor, "b hk tk dv"],
    *,
    visible: Bool[Tensor, "#b #hq tq tk"],
    bias: Float[Tensor, "#b #hq #tq #tk"] | None = None,
    scale: float,
    softcap: float | None = None,
    sinks: Float[Tensor, " hq"] | None = None,
) -> Float[Tensor, "b hq tq dv"]:
    """Σ_j p_ij v_j, in the inputs' own dtype."""
    p = pattern(query, key, visible=visible, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    value = value.repeat_interleave(query.shape[1] // max(1, value.shape[1]), dim=1)  # (b, hq, tk, dv)
    return weighted_sum(p.weights, value, p.visible)


def scores(
    query: Float[Tensor, "b hq tq d"], key: Float[Tensor, "b hq tk d"], visible: Bool[Tensor, "#b #hq tq tk"]
) -> Float[Tensor, "b hq tq tk"]:
    """query @ keyᵀ, in which NaN and infinities reach visible pairs only, forward and backward."""
    found = _finite(query) @ _finite(key).mT
    bad = visible & ~(query.isfinite().all(-1)[..., :, None] & key.isfinite().all(-1)[..., None, :])
    if not bad.any():
        return found
    pair = bad[..., None]  # (b, hq, tq, tk, 1)
    exact = (torch.where(pair, query[..., :, None, :], 0.0) * torch.where(pair, key[..., None, :, :], 0.0)).sum(-1)
    return torch.where(bad, exact, found)


def weighted_sum(
    weights: Float[Tensor, "b hq tq tk"], value: Float[Tensor, "b hq tk dv"], visible: Bool[Tensor, "b hq tq tk"]
) -> Float[Tensor, "b hq tq dv"]:
    """weights @ value, in which NaN and infinities of value reach the queries that may see them only."""
    found = weights @ _finite(value)
    bad = visible & ~value.isfinite().all(-1)[..., None, :]
    if not bad.any():
        return found
    pair = bad[..., None]  # (b, hq, tq, tk, 1)
    return found + (torch.where(pair, weights[..., None], 0.0) * torch.where(pair, value[..., None, :, :], 0.0)).sum(-2)


def _finite(x: Float[Tensor, "b h t d"]) -> Float[Tensor, "b h t d"]:
    """x with 0 in the place of whole rows that hold anything that is not finite."""
    return torch.where(x.isfinite().all(-1, keepdim=True), x, 0.0)


def _sink_column(sinks: Tensor, logits: Tensor) -> Tensor:
    return sinks[None, :, None, None].expand(logits.shape[0], -1, logits.shape[2], 1)


def _logsumexp(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L of every row, m and Σ e^{x − m}. L is −inf with gradient zero, not NaN, where a row is all −inf or has no columns."""
    if x.shape[-1] == 0:
        nothing = x.new_zeros(x.shape[:-1])
        return nothing - torch.inf, nothing, nothing
    top = x.amax(dim=-1).detach()
    top = torch.where(top == -torch.inf, 0.0, top)
    total = torch.exp(x - top[..., None]).sum(-1)
    empty = total == 0
    return torch.where(empty, -torch.inf, torch.log(torch.where(empty, 1.0, total)) + top), top, total
