"""Blocked PyTorch: any device, any dtype, O(T) memory forward and backward, differentiable twice.

A block of query rows meets all the keys it may see at once (a strip), so its softmax is the plain one, with no running
maximum to correct, and whoever wants to look at the weights finds whole rows of them. Rows per strip shrink as rows grow,
so that a strip stays within `STRIP_BYTES`, whatever T is. Keys that no row of a strip may see are never read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.kernels.problem import Problem, tighten

STRIP_BYTES = 8 << 20  # scores of one strip; measured best between the L2 of two cores and the shared L3
MOST_ROWS = 128  # more rows waste work along a causal edge: half a block of keys is computed and masked for each row


@dataclass(frozen=True)
class Strip:
    """Samples b0:b1, key heads h0:h1 (and the query heads that read them), queries i0:i1, keys j0:j1."""

    b0: int
    b1: int
    h0: int
    h1: int
    i0: int
    i1: int
    j0: int
    j1: int
    partial: bool  # some of these pairs may not be seen

    @property
    def batch_heads(self) -> int:
        """How many (sample, key head) pairs the strip holds."""
        return (self.b1 - self.b0) * (self.h1 - self.h0)


def strips(problem: Problem) -> Iterator[Strip]:
    """Cut a call into strips, in a fixed order. The problem's plan must be tightened."""
    B, Hk, Tq = problem.query.shape[0], problem.key.shape[1], problem.query.shape[2]
    plan, groups = problem.plan, problem.groups
    checked = plan.query_labels is not None or plan.dense is not None
    size = torch.finfo(problem.dtype).bits // 8
    los, his = plan.lo.tolist(), plan.hi.tolist()
    # Samples that see different keys are cut one by one: a hull over all of them would do work that none needs.
    samples = [(0, B, los[0], his[0])] if len(los) == 1 else [(b, b + 1, los[b], his[b]) for b in range(B)]
    for b0, b1, lo, hi in samples:
        i0 = 0
        while i0 < Tq:
            widest = max(1, max(hi[i0 : i0 + MOST_ROWS]) - min(lo[i0 : i0 + MOST_ROWS]))
            heads = min(Hk, max(1, STRIP_BYTES // (size * 32 * groups * widest * (b1 - b0))))
            rows = STRIP_BYTES // (size * groups * heads * widest * (b1 - b0))
            i1 = min(Tq, i0 + max(8, min(MOST_ROWS, rows)))
            j0, j1 = min(lo[i0:i1]), max(hi[i0:i1])
            if j0 < j1:
                full = not checked and max(lo[i0:i1]) <= j0 and min(hi[i0:i1]) >= j1
                for h0 in range(0, Hk, heads):
                    yield Strip(b0, b1, h0, min(Hk, h0 + heads), i0, i1, j0, j1, not full)
            i0 = i1


class Workspace:
    """Named scratch memory, allocated once and reused by every strip: fresh pages cost more than the arithmetic."""

    def __init__(self, like: Tensor) -> None:
        self.like = like
        self.buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor of this shape; it overwrites the last one of this name."""
        size = 1
        for n in shape:
            size *= n
        held = self.buffers.get(name)
        if held is None or held.numel() < size:
            held = self.buffers[name] = self.like.new_empty(size)
        return held[:size].view(shape)


def query_rows(x: Tensor, s: Strip, groups: int) -> Tensor:
    """Rows of a per-query tensor (B, Hq, Tq, …) that a strip holds, as (b·hk, groups·rows, …)."""
    part = x[s.b0 : s.b1, s.h0 * groups : s.h1 * groups, s.i0 : s.i1]
    return part.reshape(s.batch_heads, groups * (s.i1 - s.i0), *x.shape[3:])


def key_rows(x: Tensor, s: Strip) -> Tensor:
    """Rows of key or value (B, Hk, Tk, …) that a strip holds, as (b·hk, keys, …)."""
    return x[s.b0 : s.b1, s.h0 : s.h1, s.j0 : s.j1].reshape(s.batch_heads, s.j1 - s.j0, *x.shape[3:])


def put_query_rows(target: Tensor, s: Strip, groups: int, rows: Tensor) -> None:
    """Write (b·hk, groups·rows, …) back to where `query_rows` took it from."""
    shape = (s.b1 - s.b0, (s.h1 - s.h0) * groups, s.i1 - s.i0, *target.shape[3:])
    target[s.b0 : s.b1, s.h0 * groups : s.h1 * groups, s.i0 : s.i1] = rows.reshape(shape)


def visible_pairs(problem: Problem, s: Strip) -> Bool[Tensor, "b h rows keys"] | None:
    """Which pairs of a strip may be seen, b and h being 1 where it does not depend on them; None when all may be."""
    hidden_by_bias = None
    if problem.bias is not None:
        hidden_by_bias = bias_part(problem, s) == -torch.inf
        if not bool(hidden_by_bias.any()):
            hidden_by_bias = None
    if not s.partial and hidden_by_bias is None:
        return None
    plan = problem.plan
    j = torch.arange(s.j0, s.j1, device=plan.lo.device)

    def samples(x: Tensor) -> Tensor:
        return x if x.shape[0] == 1 else x[s.b0 : s.b1]

    lo, hi = samples(plan.lo)[:, s.i0 : s.i1, None], samples(plan.hi)[:, s.i0 : s.i1, None]
    seen = ((j >= lo) & (j < hi))[:, None]
    if plan.query_labels is not None and plan.key_labels is not None:
        for queries, keys in zip(plan.query_labels, plan.key_labels, strict=True):
            mine, theirs = samples(queries)[:, s.i0 : s.i1, None], samples(keys)[:, None, s.j0 : s.j1]
            seen = seen & (mine == theirs)[:, None]
    if plan.dense is not None:
        seen = seen & block(plan.dense, problem, s)
    return seen if hidden_by_bias is None else seen & ~hidden_by_bias


def block(x: Tensor, problem: Problem, s: Strip) -> Tensor:
    """The part of something that broadcasts to (B, Hq, Tq, Tk) which a strip needs; size-1 dimensions stay."""
    heads = slice(s.h0 * problem.groups, s.h1 * problem.groups)
    parts = (slice(s.b0, s.b1), heads, slice(s.i0, s.i1), slice(s.j0, s.j1))
    return x[tuple(slice(None) if n == 1 else part for n, part in zip(x.shape, parts, strict=True))]


def bias_part(problem: Problem, s: Strip) -> Tensor:
    """The given bias of a strip, with size-1 dimensions where it does not depend on them."""
    if problem.bias is None:
        raise RuntimeError("bias_part needs a bias")
    return block(problem.bias, problem, s)


def logits(
    query: Float[Tensor, "n rows d"],
    key: Float[Tensor, "n keys d"],
    problem: Problem,
    s: Strip,
    bias: Tensor | None,
    visible: Tensor | None,
    out: Tensor | None = None,
) -> Float[Tensor, "n rows keys"]:
    """z of a strip, −inf where a pair may not be seen; query comes scaled. In place when `out` is given."""
    z = torch.bmm(query, key.mT, out=out) if out is not None else torch.bmm(query, key.mT)
    in_place = out is not None
    if problem.softcap is not None:
        cap = problem.softcap
        z = z.div_(cap).tanh_().mul_(cap) if in_place else cap * torch.tanh(z / cap)
    if bias is not None or problem.slopes is not None or visible is not None:
        shape = z.shape
        b, h, rows, keys = s.b1 - s.b0, (s.h1 - s.h0) * problem.groups, s.i1 - s.i0, s.j1 - s.j0
        z = z.view(b, h, rows, keys)
        if bias is not None:
            z = z.add_(bias) if in_place else z + bias
        if problem.slopes is not None:
            z = z.add_(_alibi(problem, s)) if in_place else z + _alibi(problem, s)
        if visible is not None:
            z = z.masked_fill_(~visible, -torch.inf) if in_place else z.masked_fill(~visible, -torch.inf)
        z = z.view(shape)
    return z


def _alibi(problem: Problem, s: Strip) -> Tensor:
    if problem.slopes is None:
        raise RuntimeError("_alibi needs slopes")
    offset = problem.key.shape[2] - problem.query.shape[2]
    a = torch.arange(s.i0 + offset, s.i1 + offset, device=problem.slopes.device)[:, None]
    j = torch.arange(s.j0, s.j1, device=problem.slopes.device)
    slopes = problem.slopes[s.h0 * problem.groups : s.h1 * problem.groups]
    return -slopes[:, None, None] * (a - j).abs()


def seen_product(
    weights: Float[Tensor, "n rows keys"], x: Float[Tensor, "n keys d"], seen: Bool[Tensor, "n rows keys"] | None
) -> Float[Tensor, "n rows d"]:
    """weights @ x; given `seen`, unseen pairs contribute nothing even where x is NaN or inf (0 · NaN would be NaN)."""
    if seen is None:
        return torch.bmm(weights, x)
    good = torch.isfinite(x).all(-1)  # (n, keys)
    out = torch.bmm(weights, torch.where(good[..., None], x, 0.0))
    for j in (~good).any(0).nonzero().flatten().tolist():
        bad = (seen[..., j] & ~good[:, None, j])[..., None]
        out = out + torch.where(bad, weights[..., j, None] * x[:, None, j], 0.0)
    return out


def careful(p: Problem, s: Strip, visible: Tensor | None, finite: bool) -> Bool[Tensor, "n rows keys"] | None:
    """What `seen_product` needs: None where every number is finite or every pair is visible."""
    if finite or visible is None:
        return None
    b, h, rows, keys = s.b1 - s.b0, (s.h1 - s.h0) * p.groups, s.i1 - s.i0, s.j1 - s.j0
    return visible.expand(b, h, rows, keys).reshape(s.batch_heads, p.groups * rows, keys)


def all_finite(*tensors: Tensor) -> bool:
    """Whether every number is finite: one pass over O(T·D), so that the careful product is taken only when needed."""
    return all(bool(torch.isfinite(x).all()) for x in tensors)


def softmax_rows(z: Tensor, sink: Tensor | None, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (into `out`), L and the maximum of every row of z; a row of −inf gets weights 0 and L −inf."""
    top = z.amax(-1, keepdim=True)
    torch.softmax(z, -1, out=out)
    # The largest weight is e^{max − L}, so L needs no second sum over the row.
    lse = top - out.amax(-1, keepdim=True).log()
    empty = top == -torch.inf
    if bool(empty.any()):
        out.masked_fill_(empty, 0.0)
        lse = lse.masked_fill(empty, -torch.inf)
    if sink is not None:
        with_sink = torch.logaddexp(lse, sink)
        out.mul_(torch.where(empty, 0.0, torch.exp(lse - with_sink)))
        lse = with_sink
    return out, lse, top


def sink_rows(problem: Problem, s: Strip, like: Tensor) -> Tensor | None:
    """The sink logit of every row of a strip, (b·hk, groups·rows, 1)."""
    if problem.sinks is None:
        return None
    B, Tq = problem.query.shape[0], problem.query.shape[2]
    return query_rows(problem.sinks.view(1, -1, 1).expand(B, -1, Tq), s, problem.groups)[..., None].to(like.dtype)


def attention(problem: Problem) -> tuple[Float[Tensor, "b hq tq dv"], Float[Tensor, "b hq tq"]]:
    """Output in the inputs' dtype, and L in the compute dtype."""
    p = ready(problem)
    B, Hq, Tq, _ = p.query.shape
    out = problem.query.new_zeros(B, Hq, Tq, p.value.shape[-1])
    lse = p.query.new_full((B, Hq, Tq), -torch.inf)
    if p.sinks is not None:
        lse[:] = p.sinks[:, None]
    finite = all_finite(p.value)
    work = Workspace(p.query)
    for s in strips(p):
        weights, row_lse, _, visible = strip_weights(p, s, work)
        put_query_rows(out, s, p.groups, seen_product(weights, key_rows(p.value, s), careful(p, s, visible, finite)))
        put_query_rows(lse, s, p.groups, row_lse)
    return out, lse


def ready(problem: Problem) -> Problem:
    """In the compute dtype, the scale folded into the query, the plan tightened."""
    p = problem.in_compute_dtype()
    return dataclasses.replace(p, query=p.query * p.scale, plan=tighten(p.plan))


def strip_weights(p: Problem, s: Strip, work: Workspace) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Weights, L, row maximum and visible pairs of a strip; logits are left in the workspace under "logits"."""
    rows, keys = p.groups * (s.i1 - s.i0), s.j1 - s.j0
    visible = visible_pairs(p, s)
    bias = None if p.bias is None else bias_part(p, s)
    z = work.take("logits", s.batch_heads, rows, keys)
    z = logits(query_rows(p.query, s, p.groups), key_rows(p.key, s), p, s, bias, visible, out=z)
    weights, lse, top = softmax_rows(z, sink_rows(p, s, z), work.take("weights", s.batch_heads, rows, keys))
    return weights, lse, top, visible
