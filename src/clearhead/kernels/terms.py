"""What the gradients of measured numbers become in the backward pass.

With p_ij = e^{z_ij − L_i} and g the gradient of what was measured, dz_ij of the output gains

    linear in the weights, Σ_j p_ij x_ij    p_ij (g_i x_ij − g_i Σ_k p_ik x_ik)
    the same over queries, Σ_i r_i p_ij     p_ij (r_i g_j − r_i Σ_k p_ik g_k)
    entropy H_i                             −g_i p_ij (z_ij − L_i + H_i)
    Σ_j p_ij²                               2 g_i p_ij (p_ij − Σ_k p_ik²)
    largest logit                           g_i at the first key that has it

All but the last are p_ij (x_ij + c_i). Their c_i are known before the pass: from what was measured or, for what keys receive,
from attention once more with g for the values. The x_ij are `Terms`, which every implementation adds while it has the
weights. What concerns single pairs of a query and a key is added outside the pass (`add_pairs`, `add_rows`). O(T) memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.kernels import select
from clearhead.kernels.problem import Gradients, Problem
from clearhead.kernels.tiled import seen_product
from clearhead.measuring import Measuring
from clearhead.observables import Observables

# Measured for each query and linear in its weights (`sum_squares` twice over); of entropy, c_i has the same form.
OF_QUERIES = (
    "entropy", "sum_squares", "distance", "self_weight", "previous_weight", "first_weight", "same_token",
    "after_same_token", "distance_histogram", "group_weight",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Terms:
    """The x_ij beside Σ_d dO_id v_jd, all in the compute dtype:

    below_i (z_ij − L_i) + square_i p_ij + distance_i (a_i − j) + Σ_k rows_ik keys_jk + bins_i,|a_i−j| + token relations.
    """

    measuring: Measuring
    below: Tensor | None = None  # (B, Hq, Tq), as are square and distance
    square: Tensor | None = None
    distance: Tensor | None = None
    rows: Tensor | None = None  # (B, Hq, Tq, K)
    keys: Tensor | None = None  # (B or 1, Hq or 1, Tk, K)
    bins: Tensor | None = None  # (B, Hq, Tq, bins)
    same_token: Tensor | None = None  # (B, Hq, Tq)
    after_same_token: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All that are there."""
        named = (getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "measuring")
        return [x for x in named if x is not None]

    @property
    def by_distance_or_token(self) -> bool:
        """Whether some of it depends on the pair in a way that only `tiled` knows."""
        return any(x is not None for x in (self.bins, self.same_token, self.after_same_token))


def gradients(
    problem: Problem,
    measuring: Measuring,
    impl: str,
    output: Tensor,
    found: Mapping[str, Tensor],
    grad_output: Tensor | None,
    grads: Mapping[str, Tensor],
    with_bias: bool,
) -> Gradients:
    """Gradients of every input from those of the output and of some of what was measured.

    Without a `grad_output` that of value has no columns: what is measured depends on none.

    `found`: what was measured, its `lse` with it; `grads`: gradients of what has any, by the same names.
    """
    p = problem.in_compute_dtype()
    terms, shift = collect(p, measuring, impl, found, grads)
    if grad_output is None and shift is None and not terms.tensors:
        totals = Gradients(
            torch.zeros_like(p.query),
            torch.zeros_like(p.key),
            p.value[..., :0],
            None if p.bias is None or not with_bias else torch.zeros_like(p.bias),
            None if p.sinks is None else torch.zeros_like(p.sinks),
        )
    else:
        whole, out, grad_out = problem, output, grad_output
        if grad_out is None:  # without columns of values the pass need not multiply by any
            whole = dataclasses.replace(problem, value=problem.value[..., :0])
            out = grad_out = output[..., :0]
        kernel = select.kernels("tiled" if terms.by_distance_or_token else impl).backward
        c = torch.zeros_like(found["lse"]) if shift is None else shift
        totals = kernel(whole, out, found["lse"], grad_out, c, with_bias, terms)
        totals = Gradients(*(None if x is None else x.to(p.dtype) for x in totals))  # type: ignore[arg-type]
    if p.sinks is not None and terms.below is not None and totals.sinks is not None:
        under = p.sinks[:, None] - found["lse"]
        share = torch.exp(under)
        more = torch.where(share == 0, 0.0, share * under * terms.below).sum((0, 2))
        totals = totals._replace(sinks=totals.sinks + more)
    for keys, weights in _pairs(p, measuring, impl, found, grads):
        add_pairs(p, totals, keys, weights)
    if "rows" in grads:
        add_rows(p, totals, measuring.want.rows, found["rows"] * grads["rows"])
    return totals


def collect(
    p: Problem, m: Measuring, impl: str, found: Mapping[str, Tensor], grads: Mapping[str, Tensor]
) -> tuple[Terms, Tensor | None]:
    """The terms of every pair, and the c_i of all gradients of what was measured (None: all 0)."""
    shift = grads.get("lse")
    for name in OF_QUERIES:
        if name in grads:
            part = grads[name] * found[name] * (2 if name == "sum_squares" else 1)
            part = part.flatten(3).sum(-1) if part.ndim > 3 else part
            shift = -part if shift is None else shift - part
    if "rows" in grads:
        part = (grads["rows"] * found["rows"]).sum(-1)
        shift = torch.zeros_like(found["lse"]) if shift is None else shift.clone()
        shift.index_add_(2, _numbers(p, m.want.rows), -part)
    rows, keys = _of_keys(p, m, grads)
    if rows is not None and keys is not None:
        # Σ_k p_ik g_k: what each query would get if these gradients were values.
        every_head = dataclasses.replace(p, key=p.key.repeat_interleave(p.groups, 1), value=keys)
        part = (rows * select.kernels(impl).attention(every_head)[0]).sum(-1)
        shift = -part if shift is None else shift - part
    if "group_weight" in grads and m.key_groups is not None:
        of_group = (m.key_groups[..., None] == torch.arange(m.groups, device=p.query.device))[:, None].to(p.dtype)
        grad = grads["group_weight"]
        if rows is None or keys is None:
            rows, keys = grad, of_group
        else:
            rows = torch.cat([rows, grad], -1)
            keys = torch.cat([keys, of_group.expand(*keys.shape[:3], -1)], -1)
    terms = Terms(
        m,
        below=-grads["entropy"] if "entropy" in grads else None,
        square=2 * grads["sum_squares"] if "sum_squares" in grads else None,
        distance=grads.get("distance"),
        rows=rows,
        keys=keys,
        bins=grads.get("distance_histogram"),
        same_token=grads.get("same_token"),
        after_same_token=grads.get("after_same_token"),
    )
    return terms, shift


def _of_keys(p: Problem, m: Measuring, grads: Mapping[str, Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """r (B, Hq, Tq, K) and g (B, Hq, Tk, K) of what keys receive, K sums over queries in all."""
    B, Hq, Tq, _ = p.query.shape
    real = p.query.new_ones(1, 1, Tq, 1)
    if m.padded is not None:
        real = (~m.padded)[:, None, :, None].to(p.dtype)
    rows, keys = [], []
    if "received" in grads:
        rows.append(real)
        keys.append(grads["received"][..., None])
    if "weighted_received" in grads and m.row_weights is not None:
        rows.append(real * m.row_weights[..., None])
        keys.append(grads["weighted_received"][..., None])
    if "received_by_group" in grads and m.query_groups is not None:
        of_group = m.query_groups[..., None] == torch.arange(m.groups, device=p.query.device)
        rows.append(real * of_group[:, None].to(p.dtype))
        keys.append(grads["received_by_group"].mT)
    if not rows:
        return None, None
    return torch.cat([x.expand(B, Hq, -1, -1) for x in rows], -1), torch.cat(keys, -1)


def _pairs(
    p: Problem, m: Measuring, impl: str, found: Mapping[str, Tensor], grads: Mapping[str, Tensor]
) -> list[tuple[Tensor, Tensor]]:
    """What concerns one key of each query: the keys (…, Tq), −1 for none, and their dz (B, Hq, Tq)."""
    Tq, Tk = p.query.shape[2], p.key.shape[2]
    a = torch.arange(Tq, device=p.query.device) + m.offset
    pairs = []
    for name, at in (("self_weight", a), ("previous_weight", a - 1), ("first_weight", torch.zeros_like(a))):
        if name in grads:
            pairs.append((torch.where((at >= 0) & (at < Tk), at, -1), found[name] * grads[name]))
    if "max_logit" in grads:
        keys = found["top_keys"] if "top_keys" in found else _first_keys(p, m, impl)
        pairs.append((keys[..., 0], grads["max_logit"]))
    return pairs


def _first_keys(p: Problem, m: Measuring, impl: str) -> Tensor:
    """The key with the largest logit of every query, (B, Hq, Tq, 1): a pass of its own, where nobody asked for it."""
    want = Observables(max_logit=False, entropy=False, top_k=1, received=False, positions=False, distance=False, map=0)
    only = dataclasses.replace(
        m, want=want, tokens=None, key_groups=None, query_groups=None, groups=0, row_weights=None, value_norm=None
    )
    return select.kernels(impl).observe(dataclasses.replace(p, value=p.value[..., :0]), only)[1]["top_keys"]


def add_pairs(p: Problem, totals: Gradients, keys: Tensor, dz: Tensor) -> None:
    """Add what one key of each query has in the gradients. `keys` broadcasts to (B, Hq, Tq), −1 for none; `dz` is that."""
    B, Hq, Tq, D = p.query.shape
    Hk, Tk = p.key.shape[1:3]
    if 0 in (B, Hq, Tq, Tk):
        return
    j = keys.expand(B, Hq, Tq)
    b, h, i = torch.meshgrid(*(torch.arange(n, device=j.device) for n in (B, Hq, Tq)), indexing="ij")
    there, j = j >= 0, j.clamp(min=0)
    there = there & _may_see(p, b, h, i, j)
    key = p.key[b, h // p.groups, j]  # (B, Hq, Tq, D)
    d_score = dz[..., None]
    if p.softcap is not None:
        d_score = d_score * (1 - torch.tanh((p.query * key).sum(-1, keepdim=True) * p.scale / p.softcap) ** 2)
    d_score = d_score * p.scale
    totals.query.add_(torch.where(there[..., None], d_score * key, 0.0))
    to_key = torch.where(there[..., None], d_score * p.query, 0.0)
    # Adding by a list of places has a fixed order, so the bits are the same every time.
    rows = ((b * Hk + h // p.groups) * Tk + j).flatten()
    flat = totals.key.new_zeros(B * Hk * Tk, D).index_put_((rows,), to_key.reshape(-1, D), accumulate=True)
    totals.key.add_(flat.view(B, Hk, Tk, D))
    if totals.bias is not None:
        place = [x if n > 1 else torch.zeros_like(x) for x, n in zip((b, h, i, j), totals.bias.shape, strict=True)]
        totals.bias.index_put_(tuple(place), torch.where(there, dz, 0.0), accumulate=True)


def add_rows(p: Problem, totals: Gradients, rows: tuple[int, ...], dz: Tensor) -> None:
    """Add what some whole rows have in the gradients; `dz` is (B, Hq, rows, Tk)."""
    B, Hq, _, D = p.query.shape
    Hk, Tk = p.key.shape[1:3]
    at = _numbers(p, rows)
    shape = (B * Hk, p.groups * len(rows), Tk)
    query = p.query[:, :, at].reshape(*shape[:2], D)
    key = p.key.reshape(B * Hk, Tk, D)
    b, h, j = (torch.arange(n, device=at.device) for n in (B, Hq, Tk))
    visible = _may_see(p, b[:, None, None, None], h[:, None, None], at[:, None], j).expand(dz.shape)
    dz = torch.where(visible, dz, 0.0)
    d_score, seen = dz.reshape(shape), visible.reshape(shape)
    if p.softcap is not None:
        slope = 1 - torch.tanh(torch.bmm(query * p.scale, key.mT) / p.softcap) ** 2
        d_score = torch.where(seen, d_score * slope, 0.0)
    to_query = (seen_product(d_score, key, seen) * p.scale).view(B, Hq, len(rows), D)
    totals.query.index_add_(2, at, to_query)
    totals.key.add_((seen_product(d_score.mT, query, seen.mT) * p.scale).view(B, Hk, Tk, D))
    if totals.bias is not None:
        bias = totals.bias
        part = dz.sum_to_size(*(m if n > 1 else 1 for m, n in zip(dz.shape, bias.shape, strict=True)))
        if bias.shape[2] > 1:
            bias.index_add_(2, at, part)
        else:
            bias.add_(part)


def _may_see(p: Problem, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """Whether the pairs with these numbers may be seen; the numbers broadcast, and so does the answer."""
    plan = p.plan
    seen = (j >= _entry(plan.lo, b, i)) & (j < _entry(plan.hi, b, i))
    if plan.query_labels is not None and plan.key_labels is not None:
        for queries, keys in zip(plan.query_labels, plan.key_labels, strict=True):
            seen = seen & (_entry(queries, b, i) == _entry(keys, b, j))
    if plan.dense is not None:
        seen = seen & _entry(plan.dense, b, h, i, j)
    return seen if p.bias is None else seen & (_entry(p.bias, b, h, i, j) != -torch.inf)


def _entry(x: Tensor, *numbers: Tensor) -> Tensor:
    """Entries of a tensor whose dimensions of size 1 are the same for all numbers."""
    return x[tuple(n if size > 1 else torch.zeros_like(n) for n, size in zip(numbers, x.shape, strict=True))]


def _numbers(p: Problem, rows: tuple[int, ...]) -> Tensor:
    """Chosen rows as positions from 0 on."""
    return torch.tensor([row % p.query.shape[2] for row in rows], device=p.query.device)
