"""Every observable by its definition, from the full pattern. Notation as in `clearhead.observables`."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.measuring import Measuring, one_hot
from clearhead.reference.attention import Pattern
from clearhead.reference.maps import pooled_map


def observe(pattern: Pattern, measuring: Measuring, *, sinks: Float[Tensor, " hq"] | None = None) -> dict[str, Tensor]:
    """All that is asked for, by the names of `Observation`; keys are counted from the call's own key 0."""
    z, lse, p, visible = pattern
    b, _, tq, tk = z.shape
    want = measuring.want
    i = torch.arange(tq, device=z.device)
    j = torch.arange(tk, device=z.device)
    a = i + measuring.offset  # position of every query
    real = torch.ones(b, tq, dtype=torch.bool, device=z.device)
    if measuring.padded is not None:
        real = ~measuring.padded.expand(b, tq)
    kept = torch.where(real[:, None, :, None], p, 0.0)
    seen = visible & real[:, None, :, None]

    found: dict[str, Tensor] = {"lse": lse, "visible": visible.sum(-1)}
    if sinks is not None:
        found["sink"] = torch.exp(sinks[None, :, None] - lse)
    if want.max_logit:
        # Unlike that of amax, the gradient of max goes to one key where several have the largest logit.
        found["max_logit"] = z.max(-1).values if tk else torch.full_like(lse, -torch.inf)
    if want.entropy:
        # Numbers are chosen before they are multiplied: 0 · (−inf) would be NaN, and so would its gradient.
        below = torch.where(p == 0, 0.0, z) - torch.where(lse == -torch.inf, 0.0, lse)[..., None]
        found["entropy"] = -(p * below).sum(-1)
        if sinks is not None:
            found["entropy"] = found["entropy"] - found["sink"] * (sinks[None, :, None] - lse)
    if want.sum_squares:
        found["sum_squares"] = (p**2).sum(-1)
    if want.top_k:
        found["top_keys"], found["top_weights"] = top_k(z, p, want.top_k)
    if want.received:
        found["received"] = kept.sum(-2)
        found["viewers"] = seen.sum(-2)
    if measuring.row_weights is not None:
        found["weighted_received"] = (kept * measuring.row_weights[..., None]).sum(-2)
    if want.positions:
        at = {"self_weight": a, "previous_weight": a - 1, "first_weight": torch.full_like(a, -want.first_key)}
        found |= {name: torch.where(j == key[:, None], p, 0.0).sum(-1) for name, key in at.items()}
    away = a[:, None] - j
    if want.distance:
        found["distance"] = (p * away).sum(-1)
    if want.distance_histogram:
        found["distance_histogram"] = distance_histogram(p, away, measuring.bins)
    if want.map:
        found["map_mean"], found["map_max"] = pooled_map(kept, seen, *(want.map_bounds(n) for n in (tq, tk)))
    if want.rows:
        found["rows"] = p[:, :, list(want.rows)]
    if measuring.tokens is not None:
        found["same_token"], found["after_same_token"] = token_relations(p, measuring.tokens, a, want.first_key)
    if measuring.value_norm is not None and want.top_k:
        amount = p * measuring.value_norm[:, :, None]
        ranked = torch.where(visible, amount, -torch.inf)
        found["top_contribution_keys"], found["top_contributions"] = top_k(ranked, amount, want.top_k)
    if measuring.key_groups is not None and measuring.query_groups is not None:
        keys, queries = (one_hot(x, measuring.groups) for x in (measuring.key_groups, measuring.query_groups))
        found["group_weight"] = p @ keys[:, None].to(p.dtype)
        if want.received:
            found["received_by_group"] = queries.mT[:, None].to(p.dtype) @ kept
        if want.group_top_k:
            inside = [torch.where(keys[:, None, None, :, g], z, -torch.inf) for g in range(measuring.groups)]
            empty = z.new_zeros(*z.shape[:3], 0, want.group_top_k)
            best = [(empty.long(), empty)] + [
                tuple(x.unsqueeze(-2) for x in top_k(x, p, want.group_top_k)) for x in inside
            ]
            found["group_top_keys"], found["group_top_weights"] = (torch.cat([x[n] for x in best], -2) for n in (0, 1))
    return found


def distance_histogram(
    weights: Float[Tensor, "b hq tq tk"], away: Int[Tensor, "tq tk"], bins: int
) -> Float[Tensor, "b hq tq bins"]:
    """Weight at distances of 0, 1, 2-3, 4-7, … tokens, to either side."""
    ends = [0, *(2**n for n in range(bins))]
    each = [(away.abs() >= low) & (away.abs() < high) for low, high in pairwise(ends)]
    return torch.stack([torch.where(inside, weights, 0.0).sum(-1) for inside in each], -1)


def top_k(
    logits: Float[Tensor, "b hq tq tk"], weights: Float[Tensor, "b hq tq tk"], k: int
) -> tuple[Int[Tensor, "b hq tq k"], Float[Tensor, "b hq tq k"]]:
    """The k largest by logit, ties to the smaller key; key −1 and weight 0 where a row sees fewer than k, or is NaN."""
    missing = max(0, k - logits.shape[-1])
    logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    weights = torch.nn.functional.pad(weights, (0, missing))
    ordered, keys = torch.sort(logits, dim=-1, descending=True, stable=True)
    keys = torch.where(ordered[..., :k] > -torch.inf, keys[..., :k], -1)
    return keys, torch.where(keys < 0, 0.0, weights.gather(-1, keys.clamp(min=0)))


def token_relations(
    weights: Float[Tensor, "b hq tq tk"],
    text: Int[Tensor, "#b n"],
    positions: Int[Tensor, " tq"],
    first_key: int,
) -> tuple[Float[Tensor, "b hq tq"], Float[Tensor, "b hq tq"]]:
    """Σ_{j<a_i, t_j = t_i} p_ij and Σ_{1≤j≤a_i, t_{j−1} = t_i} p_ij. Queries that stand outside the text get 0.

    `text` holds the tokens of the whole text, that of key 0 at `first_key`; `positions` count from key 0.
    """
    n, tk = text.shape[1], weights.shape[3]
    if n == 0:
        nothing = weights.new_zeros(weights.shape[:-1])
        return nothing, nothing
    j = torch.arange(tk, device=weights.device)
    places = positions + first_key
    known = (places >= 0) & (places < n)
    mine = text[:, places.clamp(0, n - 1)]  # (#b, tq)
    same = (text[:, None, first_key : first_key + tk] == mine[..., None]) & (known[:, None] & (j < positions[:, None]))
    before = text[:, (j + first_key - 1).clamp(min=0)]
    told = known[:, None] & (j <= positions[:, None]) & (j + first_key >= 1)
    after = (before[:, None] == mine[..., None]) & told
    return (weights * same[:, None]).sum(-1), (weights * after[:, None]).sum(-1)
