"""Every observable by its definition, from the full pattern. Notation as in `clearhead.observables`."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clearhead.observables import Observables
from clearhead.reference.attention import Pattern
from clearhead.reference.maps import pooled_map


def observe(
    pattern: Pattern,
    observables: Observables,
    *,
    offset: int,
    padded: Bool[Tensor, "#b tq"] | None = None,
    sinks: Float[Tensor, " hq"] | None = None,
) -> dict[str, Tensor]:
    """All that `observables` asks for, by the names of `Observation`.

    `offset` is the position of query 0 on the keys' axis.
    """
    z, lse, p, visible = pattern
    b, _, tq, tk = z.shape
    i = torch.arange(tq, device=z.device)
    j = torch.arange(tk, device=z.device)
    a = i + offset  # absolute position of every query
    real = torch.ones(b, tq, dtype=torch.bool, device=z.device) if padded is None else ~padded.expand(b, tq)

    found: dict[str, Tensor] = {"lse": lse, "visible": visible.sum(-1)}
    if sinks is not None:
        found["sink"] = torch.exp(sinks[None, :, None] - lse)
    if observables.max_logit:
        found["max_logit"] = z.amax(-1) if tk else torch.full_like(lse, -torch.inf)
    if observables.entropy:
        found["entropy"] = -torch.where(p == 0, 0.0, p * (z - lse[..., None])).sum(-1)
        if sinks is not None:
            found["entropy"] = found["entropy"] - found["sink"] * (sinks[None, :, None] - lse)
    if observables.top_k:
        found["top_keys"], found["top_weights"] = top_k(z, p, observables.top_k)
    if observables.received:
        found["received"] = torch.where(real[:, None, :, None], p, 0.0).sum(-2)
    if observables.positions:
        for name, at in (("self_weight", a), ("previous_weight", a - 1), ("first_weight", torch.zeros_like(a))):
            found[name] = torch.where(j == at[:, None], p, 0.0).sum(-1)
    if observables.distance:
        found["distance"] = (p * (a[:, None] - j)).sum(-1)
    if observables.map:
        kept = real[:, None, :, None]
        found["map_mean"], found["map_max"] = pooled_map(torch.where(kept, p, 0.0), visible & kept, observables.map)
    if observables.rows:
        found["rows"] = p[:, :, list(observables.rows)]
    if observables.token_ids is not None:
        found["same_token"], found["after_same_token"] = token_relations(p, observables.token_ids, a)
    return found


def top_k(
    logits: Float[Tensor, "b hq tq tk"], weights: Float[Tensor, "b hq tq tk"], k: int
) -> tuple[Int[Tensor, "b hq tq k"], Float[Tensor, "b hq tq k"]]:
    """The k largest by logit, ties to the smaller key; key −1 and weight 0 where a row sees fewer than k."""
    missing = max(0, k - logits.shape[-1])
    logits = torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
    weights = torch.nn.functional.pad(weights, (0, missing))
    ordered, keys = torch.sort(logits, dim=-1, descending=True, stable=True)
    keys = torch.where(ordered[..., :k] == -torch.inf, -1, keys[..., :k])
    return keys, torch.where(keys < 0, 0.0, weights.gather(-1, keys.clamp(min=0)))


def token_relations(
    weights: Float[Tensor, "b hq tq tk"], ids: Int[Tensor, "*b tk"], positions: Int[Tensor, " tq"]
) -> tuple[Float[Tensor, "b hq tq"], Float[Tensor, "b hq tq"]]:
    """Σ_{j<a_i, t_j = t_i} p_ij and Σ_{1≤j≤a_i, t_{j−1} = t_i} p_ij. Queries before key 0 have no token and get 0."""
    ids = torch.atleast_2d(ids.to(weights.device))  # (1 or b, tk)
    if ids.shape[-1] == 0:
        nothing = weights.new_zeros(weights.shape[:-1])
        return nothing, nothing
    j = torch.arange(ids.shape[-1], device=weights.device)
    known = (positions >= 0) & (positions < ids.shape[-1])
    mine = ids[:, positions.clamp(0, ids.shape[-1] - 1)]  # (1 or b, tq)
    earlier = known[:, None] & (j < positions[:, None])
    same = (ids[:, None, :] == mine[..., None]) & earlier
    before = ids.roll(1, dims=-1)  # token in front of key j; key 0 has none
    after = (before[:, None, :] == mine[..., None]) & (known[:, None] & (j <= positions[:, None]) & (j >= 1))
    return (weights * same[:, None]).sum(-1), (weights * after[:, None]).sum(-1)
