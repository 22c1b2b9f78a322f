"""Gradients of `tiled.attention`, and gradients of those: tile by tile, O(T) memory for both.

With P = e^{z − L}, δ_i = Σ_d dO·O and c = dL − δ:

    dz = P (dO Vᵀ + c)    dV = Pᵀ dO    dQ = dz K · scale    dK = dzᵀ Q · scale    d_sink = Σ_i e^{s − L_i} c_i

Where measured numbers have gradients too, dz = P (dO Vᵀ + c + x) with the x of `terms`.

`tile_gradients` is these formulas in plain differentiable PyTorch. The backward pass sums it over tiles; the double
backward lets autograd differentiate one tile at a time.
"""

from __future__ import annotations

from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.kernels import tiled
from clearhead.kernels.problem import Gradients, Problem
from clearhead.kernels.terms import Terms
from clearhead.kernels.tiled import Tile, add_query_rows, careful, key_rows, query_rows, seen_product
from clearhead.kernels.tiled_observe import token_matches


def tile_gradients(
    p: Problem,
    s: Tile,
    query: Float[Tensor, "n rows d"],
    key: Float[Tensor, "n keys d"],
    value: Float[Tensor, "n keys dv"],
    bias: Tensor | None,
    lse: Float[Tensor, "n rows"],
    grad_out: Float[Tensor, "n rows dv"],
    c: Float[Tensor, "n rows"],
    finite: bool,
    terms: Terms | None = None,
) -> list[Tensor]:
    """One tile's share of the gradients of query, key and value, and dz where there is a bias."""
    visible = tiled.visible_pairs(p, s)
    seen = careful(p, s, visible, finite)
    z = tiled.logits(query, key, p, s, bias, visible)
    weights = torch.exp(z - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
    inner = torch.bmm(grad_out, value.mT) + c[..., None]
    if terms is not None:
        inner = inner + _more(p, s, terms, z, weights, lse)
    dz = weights * inner
    if seen is not None:
        dz = torch.where(seen, dz, 0.0)
    d_scores = dz
    if p.softcap is not None:
        capped = torch.tanh(torch.bmm(query * p.scale, key.mT) / p.softcap)
        d_scores = dz * (1 - (capped if seen is None else torch.where(seen, capped, 0.0)) ** 2)
    seen_t = None if seen is None else seen.mT
    return [
        seen_product(d_scores, key, seen) * p.scale,
        seen_product(d_scores.mT, query, seen_t) * p.scale,
        seen_product(weights.mT, grad_out, seen_t),
        *([] if bias is None else [dz]),
    ]


def _more(
    p: Problem,
    s: Tile,
    terms: Terms,
    z: Float[Tensor, "n rows keys"],
    weights: Float[Tensor, "n rows keys"],
    lse: Float[Tensor, "n rows"],
) -> Float[Tensor, "n rows keys"]:
    """The x of one tile."""
    m = terms.measuring
    grid = (s.b1 - s.b0, (s.h1 - s.h0) * p.groups, s.i1 - s.i0, s.j1 - s.j0)
    heads = slice(s.h0 * p.groups, s.h1 * p.groups)
    a = torch.arange(s.i0, s.i1, device=z.device) + m.offset
    away = a[:, None] - torch.arange(s.j0, s.j1, device=z.device)
    total = torch.zeros_like(z).view(grid)

    def of_rows(x: Tensor) -> Tensor:
        return x[s.b0 : s.b1, heads, s.i0 : s.i1]

    if terms.below is not None:
        below = torch.where(z == -torch.inf, 0.0, z - torch.where(lse == -torch.inf, 0.0, lse)[..., None])
        total += of_rows(terms.below)[..., None] * below.view(grid)
    if terms.square is not None:
        total += of_rows(terms.square)[..., None] * weights.view(grid)
    if terms.distance is not None:
        total += of_rows(terms.distance)[..., None] * away
    if terms.rows is not None and terms.keys is not None:
        keys = tiled.samples(terms.keys, s)
        keys = keys[:, heads if keys.shape[1] > 1 else slice(None), s.j0 : s.j1]
        total += of_rows(terms.rows) @ keys.mT
    if terms.bins is not None:
        begins = 2 ** torch.arange(terms.bins.shape[-1] - 1, device=z.device)  # every bin but that of distance 0
        total += of_rows(terms.bins).gather(-1, torch.bucketize(away.abs(), begins, right=True).expand(grid))
    if m.tokens is not None:
        for name, match in token_matches(m.tokens, a, s, m.first_key):
            grad = getattr(terms, name)
            if grad is not None:
                total += torch.where(match[:, None], of_rows(grad)[..., None], 0.0)
    return total.view(z.shape)


def backward(
    problem: Problem,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    with_bias: bool = True,
    terms: Terms | None = None,
) -> Gradients:
    """Gradients of every input, the bias's only `with_bias`. Tiles are added in a fixed order: the same bits every time.

    `terms`: those of measured numbers, whose c_i are in `grad_lse` already.
    """
    p, out, grad_out = _ready(problem, out, grad_out)
    c = grad_lse - (grad_out * out).sum(-1)
    finite = tiled.all_finite(p.query, p.key, p.value, grad_out)
    if terms is not None:
        finite = finite and tiled.all_finite(c, *terms.tensors)
    totals = _zeros(p)
    if not with_bias:
        totals = totals._replace(bias=None)
    for s in chain.from_iterable(tiled.row_blocks(p)):
        parts = tile_gradients(p, s, *_tile_inputs(p, s, lse, grad_out, c), finite, terms)
        _add(p, s, totals, parts)
    sinks = None if p.sinks is None else _sink_gradient(p.sinks, lse, c)
    return totals._replace(sinks=sinks)


def double_backward(
    problem: Problem, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor, incoming: Gradients
) -> tuple[Gradients, Tensor, Tensor, Tensor, Tensor]:
    """Vector-Jacobian product of `backward`: gradients of its inputs, then of out, lse, grad_out, grad_lse."""
    p, out, grad_out = _ready(problem, out, grad_out)
    c = grad_lse - (grad_out * out).sum(-1)
    totals = _zeros(p)
    d_lse, d_grad_out, d_c = torch.zeros_like(lse), torch.zeros_like(grad_out), torch.zeros_like(c)
    for s in chain.from_iterable(tiled.row_blocks(p)):
        inputs = _tile_inputs(p, s, lse, grad_out, c)
        leaves = [x.detach().requires_grad_() for x in inputs if x is not None]
        with torch.enable_grad():
            query, key, value, *bias, rows_lse, rows_grad, rows_c = leaves
            parts = tile_gradients(
                p, s, query, key, value, bias[0] if bias else None, rows_lse, rows_grad, rows_c, finite=True
            )
        found = list(torch.autograd.grad(parts, leaves, _tile_cotangents(p, s, incoming), materialize_grads=True))
        for target, rows in zip((d_c, d_grad_out, d_lse), reversed(found), strict=False):
            add_query_rows(target, s, p.groups, rows)
        _add(p, s, totals, found[:-3])
    # The rest of the formulas is O(T): c and the sinks' gradient, as whole tensors.
    wide = [x.detach().requires_grad_() for x in (out, lse, grad_out, grad_lse)]
    sinks = [] if p.sinks is None else [p.sinks.detach().requires_grad_()]
    with torch.enable_grad():
        c = wide[3] - (wide[2] * wide[0]).sum(-1)
        results, cotangents = [c], [d_c]
        if p.sinks is not None and incoming.sinks is not None:
            results.append(_sink_gradient(sinks[0], wide[1], c))
            cotangents.append(incoming.sinks)
    d_out, d_lse_2, d_grad_out_2, d_grad_lse, *d_sinks = torch.autograd.grad(
        results, wide + sinks, cotangents, materialize_grads=True
    )
    totals = totals._replace(sinks=d_sinks[0] if d_sinks else None)
    return totals, d_out, d_lse + d_lse_2, d_grad_out + d_grad_out_2, d_grad_lse


def _ready(problem: Problem, out: Tensor, grad_out: Tensor) -> tuple[Problem, Tensor, Tensor]:
    p = tiled.ready(problem)
    return p, out.to(p.dtype), grad_out.to(p.dtype)


def _sink_gradient(sinks: Tensor, lse: Tensor, c: Tensor) -> Tensor:
    return (torch.exp(sinks[:, None] - lse) * c).sum((0, 2))


def _zeros(p: Problem) -> Gradients:
    return Gradients(
        torch.zeros_like(p.query, memory_format=torch.contiguous_format),
        torch.zeros_like(p.key, memory_format=torch.contiguous_format),
        torch.zeros_like(p.value, memory_format=torch.contiguous_format),
        None if p.bias is None else torch.zeros_like(p.bias, memory_format=torch.contiguous_format),
        None,
    )


def _tile_inputs(
    p: Problem, s: Tile, lse: Tensor, grad_out: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor]:
    return (
        query_rows(p.query, s, p.groups),
        key_rows(p.key, s),
        key_rows(p.value, s),
        None if p.bias is None else tiled.bias_part(p, s),
        query_rows(lse, s, p.groups),
        query_rows(grad_out, s, p.groups),
        query_rows(c, s, p.groups),
    )


def _tile_cotangents(p: Problem, s: Tile, incoming: Gradients) -> list[Tensor]:
    found = [
        query_rows(incoming.query, s, p.groups),
        key_rows(incoming.key, s),
        key_rows(incoming.value, s),
    ]
    if p.bias is not None:
        bias = torch.zeros_like(p.bias) if incoming.bias is None else incoming.bias
        part = tiled.block(bias, p, s)
        rows, keys = s.i1 - s.i0, s.j1 - s.j0
        whole = part.expand(s.b1 - s.b0, (s.h1 - s.h0) * p.groups, rows, keys)
        found.append(whole.reshape(s.batch_heads, p.groups * rows, keys))
    return found


def _add(p: Problem, s: Tile, totals: Gradients, parts: list[Tensor]) -> None:
    """Add one tile's shares (query, key, value, bias) to the totals, the bias summed over what it was broadcast to."""
    add_query_rows(totals.query, s, p.groups, parts[0])
    for total, rows in ((totals.key, parts[1]), (totals.value, parts[2])):
        part = total[s.b0 : s.b1, s.h0 : s.h1, s.j0 : s.j1]
        part += rows.reshape(part.shape)
    if totals.bias is not None:
        target = tiled.block(totals.bias, p, s)
        share = parts[3]
        if share.shape != target.shape:
            pairs = (s.b1 - s.b0, (s.h1 - s.h0) * p.groups, s.i1 - s.i0, s.j1 - s.j0)
            share = share.reshape(pairs).sum_to_size(target.shape)
        target += share
