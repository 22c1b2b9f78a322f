"""Blocked PyTorch: any device, any dtype, O(T) memory forward and backward, differentiable twice.

A block of query rows meets its keys tile by tile. Each tile has a softmax of its own, and tiles are merged by what their
rows add up to: outputs of a tile count Σ e^{z − m} over the tile by Σ e^{z − m} over all. An L is kept as these two numbers,
the largest logit m and the sum: where logits are as large as float32 goes, as masks written as numbers are, L alone would not
do. Rows that see nothing have the lowest finite m and the sum 0, so that no −inf meets another; every other sum is at least 1.
Tiles in which no pair may be seen are not computed; tiles in which every pair may be seen carry no mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from clearhead.kernels.problem import Problem

# Matrices of this size run near the peak of the BLAS underneath, and a tile of them stays in cache between two steps.
TILE_ROWS = 256
TILE_KEYS = 256
TILE_BYTES = 4 << 20  # scores of one tile over all the heads taken together
KEPT_WORKSPACES = 2  # kept between calls: one for attention, one for what runs beside it


@dataclass(frozen=True)
class Tile:
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
        """How many (sample, key head) pairs the tile holds."""
        return (self.b1 - self.b0) * (self.h1 - self.h0)


def row_blocks(problem: Problem, block_bytes: int | None = None) -> Iterator[list[Tile]]:
    """Cut a call into blocks of rows, each a list of tiles in the order of their keys. The plan must be tightened.

    With `block_bytes`, fewer heads and then fewer rows are taken together
    where rows are so long that the scores of a whole block would need more than that.
    """
    B, Hk, Tq = problem.query.shape[0], problem.key.shape[1], problem.query.shape[2]
    if 0 in (*problem.query.shape[:3], problem.key.shape[2]):
        return
    plan, groups = problem.plan, problem.groups
    checked = plan.query_labels is not None or plan.dense is not None
    size = torch.finfo(problem.dtype).bits // 8
    los, his = plan.lo.tolist(), plan.hi.tolist()
    # Samples that see different keys are cut one by one: a hull over all of them would do work that none needs.
    samples = [(0, B, los[0], his[0])] if len(los) == 1 else [(b, b + 1, los[b], his[b]) for b in range(B)]
    for b0, b1, lo, hi in samples:
        per_head = size * groups * (b1 - b0)
        heads = max(1, min(Hk, TILE_BYTES // (per_head * min(Tq, TILE_ROWS) * TILE_KEYS)))
        i0 = 0
        while i0 < Tq:
            i1 = min(Tq, i0 + TILE_ROWS)
            if block_bytes is not None:
                widest = max(1, max(hi[i0:i1]) - min(lo[i0:i1]))
                heads = max(1, min(heads, block_bytes // (per_head * (i1 - i0) * widest)))
                i1 = min(i1, i0 + max(8, block_bytes // (per_head * heads * widest)))
            j0, j1 = min(lo[i0:i1]), max(hi[i0:i1])
            inner0, inner1 = max(lo[i0:i1]), min(hi[i0:i1])  # keys that every row of the block may see
            for h0 in range(0, Hk, heads):
                yield [
                    Tile(b0, b1, h0, min(Hk, h0 + heads), i0, i1, j, end, checked or j < inner0 or end > inner1)
                    for j in range(j0, j1, TILE_KEYS)
                    for end in [min(j1, j + TILE_KEYS)]
                ]
            i0 = i1


class Workspace:
    """Named scratch memory, reused by every tile."""

    def __init__(self, like: Tensor) -> None:
        self.dtype, self.device = like.dtype, like.device
        self.buffers: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """An uninitialised tensor of this shape; it overwrites the last one of this name."""
        size = math.prod(shape)
        held = self.buffers.get(name)
        if held is None or held.numel() < size:
            # Twice as long each time: blocks of causal rows grow, and every new length would be fresh pages. Made as an
            # ordinary tensor, so that a call under inference_mode leaves nothing that a later one may not write to.
            with torch.inference_mode(False):
                length = 1 << (size - 1).bit_length()
                held = self.buffers[name] = torch.empty(length, dtype=self.dtype, device=self.device)
        return held[:size].view(shape)


_idle: list[Workspace] = []  # of the CPU, between calls: pages fresh from the system cost a tenth of a short call


@contextmanager
def workspace(like: Tensor) -> Iterator[Workspace]:
    """Scratch memory of this dtype and device for one call. A call that runs inside another or beside it gets its own."""
    work = None
    if like.device.type == "cpu":
        with suppress(IndexError):
            work = _idle.pop()
    if work is None or work.dtype != like.dtype:
        work = Workspace(like)
    try:
        yield work
    finally:
        if like.device.type == "cpu" and len(_idle) < KEPT_WORKSPACES:
            _idle.append(work)


def query_rows(x: Tensor, s: Tile, groups: int) -> Tensor:
    """Rows of a per-query tensor (B, Hq, Tq, …) that a tile holds, as (b·hk, groups·rows, …)."""
    part = x[s.b0 : s.b1, s.h0 * groups : s.h1 * groups, s.i0 : s.i1]
    return part.reshape(s.batch_heads, groups * (s.i1 - s.i0), *x.shape[3:])


def key_rows(x: Tensor, s: Tile) -> Tensor:
    """Rows of key or value (B, Hk, Tk, …) that a tile holds, as (b·hk, keys, …)."""
    return x[s.b0 : s.b1, s.h0 : s.h1, s.j0 : s.j1].reshape(s.batch_heads, s.j1 - s.j0, *x.shape[3:])


def put_query_rows(target: Tensor, s: Tile, groups: int, rows: Tensor) -> None:
    """Write (b·hk, groups·rows, …) back to where `query_rows` took it from."""
    shape = (s.b1 - s.b0, (s.h1 - s.h0) * groups, s.i1 - s.i0, *target.shape[3:])
    target[s.b0 : s.b1, s.h0 * groups : s.h1 * groups, s.i0 : s.i1] = rows.reshape(shape)


def add_query_rows(target: Tensor, s: Tile, groups: int, rows: Tensor) -> None:
    """Add (b·hk, groups·rows, …) to where `query_rows` took it from."""
    part = target[s.b0 : s.b1, s.h0 * groups : s.h1 * groups, s.i0 : s.i1]
    part += rows.reshape(part.shape)


def samples(x: Tensor, s: Tile) -> Tensor:
    """The samples of a tile, of something whose first dimension is B, or 1 for all of them."""
    return x if x.shape[0] == 1 else x[s.b0 : s.b1]


def visible_pairs(problem: Problem, s: Tile) -> Bool[Tensor, "b h rows keys"] | None:
    """Which pairs of a tile may be seen, b and h being 1 where it does not depend on them; None when all may be."""
    hidden_by_bias = None
    if problem.bias is not None:
        hidden_by_bias = bias_part(problem, s) == -torch.inf
        if not bool(hidden_by_bias.any()):
            hidden_by_bias = None
    if not s.partial and hidden_by_bias is None:
        return None
    plan = problem.plan
    j = torch.arange(s.j0, s.j1, device=plan.lo.device)
    lo, hi = samples(plan.lo, s)[:, s.i0 : s.i1, None], samples(plan.hi, s)[:, s.i0 : s.i1, None]
    seen = ((j >= lo) & (j < hi))[:, None]
    if plan.query_labels is not None and plan.key_labels is not None:
        for queries, keys in zip(plan.query_labels, plan.key_labels, strict=True):
            mine, theirs = samples(queries, s)[:, s.i0 : s.i1, None], samples(keys, s)[:, None, s.j0 : s.j1]
            seen = seen & (mine == theirs)[:, None]
    if plan.dense is not None:
        seen = seen & block(plan.dense, problem, s)
    return seen if hidden_by_bias is None else seen & ~hidden_by_bias


def block(x: Tensor, problem: Problem, s: Tile) -> Tensor:
    """The part of something that broadcasts to (B, Hq, Tq, Tk) that a tile needs; size-1 dimensions stay."""
    heads = slice(s.h0 * problem.groups, s.h1 * problem.groups)
    parts = (slice(s.b0, s.b1), heads, slice(s.i0, s.i1), slice(s.j0, s.j1))
    return x[tuple(slice(None) if n == 1 else part for n, part in zip(x.shape, parts, strict=True))]


def bias_part(problem: Problem, s: Tile) -> Tensor:
    """The given bias of a tile, with size-1 dimensions where it does not depend on them."""
    if problem.bias is None:
        raise RuntimeError("bias_part needs a bias")
    return block(problem.bias, problem, s)


def logits(
    query: Float[Tensor, "n rows d"],
    key: Float[Tensor, "n keys d"],
    problem: Problem,
    s: Tile,
    bias: Tensor | None,
    visible: Tensor | None,
    out: Tensor | None = None,
    sane: bool = False,
) -> Float[Tensor, "n rows keys"]:
    """z of a tile, −inf where a pair may not be seen. In place when `out` is given; `sane`: no product can be NaN."""
    in_place = out is not None
    # With beta 0 the first argument is never read, and the scale comes free with the product.
    z = torch.baddbmm(query.new_empty(()) if out is None else out, query, key.mT, beta=0, alpha=problem.scale, out=out)
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
            z = hide_(z, visible, sane) if in_place else z.masked_fill(~visible, -torch.inf)
        z = z.view(shape)
    return z


def hide_(
    z: Float[Tensor, "b h rows keys"], visible: Bool[Tensor, "#b #h rows keys"], sane: bool
) -> Float[Tensor, "b h rows keys"]:
    """Write −inf where a pair may not be seen. `sane`: nothing is NaN, and a minimum does it in a fifth of the time."""
    if not sane:
        return z.masked_fill_(~visible, -torch.inf)
    limit = torch.full_like(visible, torch.inf, dtype=z.dtype).masked_fill_(~visible, -torch.inf)
    return torch.minimum(z, limit, out=z)


def _alibi(problem: Problem, s: Tile) -> Tensor:
    if problem.slopes is None:
        raise RuntimeError("_alibi needs slopes")
    offset = problem.first_position
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


def careful(p: Problem, s: Tile, visible: Tensor | None, finite: bool) -> Bool[Tensor, "n rows keys"] | None:
    """What `seen_product` needs: None where every number is finite or every pair is visible."""
    if finite or visible is None:
        return None
    b, h, rows, keys = s.b1 - s.b0, (s.h1 - s.h0) * p.groups, s.i1 - s.i0, s.j1 - s.j0
    return visible.expand(b, h, rows, keys).reshape(s.batch_heads, p.groups * rows, keys)


def all_finite(*tensors: Tensor) -> bool:
    """False where any number is NaN or infinite, so that the careful product is taken only when needed.

    A sum with such a number in it is not finite, and adding up is the fastest way to look at every number once. Finite
    numbers so large that their sum overflows are taken care of without need, which does no harm.
    """
    return all(bool(torch.isfinite(x.sum())) for x in tensors)


def products_finite(p: Problem) -> bool:
    """Whether no logit can be NaN or infinite: by Cauchy and Schwarz, on the way to q·k no number exceeds ‖Q‖ ‖K‖."""
    if p.bias is not None or p.slopes is not None:
        return False
    largest = torch.linalg.vector_norm(p.query) * torch.linalg.vector_norm(p.key) * max(1.0, abs(p.scale))
    return bool(torch.isfinite(largest))


def softmax_rows(z: Tensor, out: Tensor, whole: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Weights (into `out`), the maximum m and Σ e^{z − m} of every row of z; 0, the lowest number and 0 where all is −inf.

    `whole`: no logit is −inf, so there is no such row to look for.
    """
    top = z.amax(-1, keepdim=True)
    torch.softmax(z, -1, out=out)
    total = out.amax(-1, keepdim=True).reciprocal_()  # the largest weight is e^0 by the sum: no second pass to add up
    if not whole:
        empty = top == -torch.inf
        if bool(empty.any()):
            out.masked_fill_(empty, 0.0)
            total.masked_fill_(empty, 0.0)
            top.masked_fill_(empty, torch.finfo(top.dtype).min)
    return out, top, total


def share(part: Tensor, whole: Tensor) -> Tensor:
    """e^{part − whole}: how much a partial log-sum-exp counts in the whole; 0 where both are −inf."""
    return torch.exp(part - torch.where(whole == -torch.inf, 0.0, whole))


def sink_rows(problem: Problem, s: Tile, like: Tensor) -> Tensor | None:
    """The sink logit of every row of a tile, (b·hk, groups·rows, 1)."""
    if problem.sinks is None:
        return None
    B, Tq = problem.query.shape[0], problem.query.shape[2]
    return query_rows(problem.sinks.view(1, -1, 1).expand(B, -1, Tq), s, problem.groups)[..., None].to(like.dtype)


def attention(problem: Problem) -> tuple[Float[Tensor, "b hq tq dv"], Float[Tensor, "b hq tq"]]:
    """Output in the inputs' dtype, and L in the compute dtype."""
    p = ready(problem)
    out, lse = empty_results(p, problem.query.dtype)
    with workspace(p.query) as work:
        _add_tiles(p, work, out, lse)
    return out, lse


def _add_tiles(p: Problem, work: Workspace, out: Tensor, lse: Tensor) -> None:
    """Every block of rows, tile by tile, into output and L."""
    finite, sane = all_finite(p.value), products_finite(p)
    for tiles in row_blocks(p):
        total = None
        for s in tiles:
            visible = visible_pairs(p, s)
            if visible is not None and not bool(visible.any()):
                continue
            bias = None if p.bias is None else bias_part(p, s)
            shape = tile_shape(p, s)
            z = work.take("logits", *shape)
            # On a CPU a row is read before it is written: weights in place of logits keep a tile in cache between products.
            weights = z if z.device.type == "cpu" else work.take("weights", *shape)
            z = logits(query_rows(p.query, s, p.groups), key_rows(p.key, s), p, s, bias, visible, z, sane)
            weights, part_top, part_total = softmax_rows(z, weights, sane and visible is None)
            part = seen_product(weights, key_rows(p.value, s), careful(p, s, visible, finite))
            if total is None:
                mean, top, total = part, part_top, part_total
            else:
                highest = torch.maximum(top, part_top)
                old, new = total * torch.exp(top - highest), part_total * torch.exp(part_top - highest)
                top, total = highest, old + new
                some = total.clamp(min=1)
                mean = mean.mul_(old / some).addcmul_(part, new / some)
        if total is not None:
            top, total, kept = bring_in_sink(p, tiles[0], top, total)
            put_query_rows(out, tiles[0], p.groups, mean if kept is None else mean * kept)
            put_query_rows(lse, tiles[0], p.groups, top + total.log())


def ready(problem: Problem) -> Problem:
    """In the compute dtype, the plan tightened."""
    return problem.in_compute_dtype().tightened()


def empty_results(p: Problem, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Output and L of queries that see nothing: 0, and −inf or the sink's logit."""
    B, Hq, Tq, _ = p.query.shape
    lse = p.query.new_full((B, Hq, Tq), -torch.inf)
    if p.sinks is not None:
        lse[:] = p.sinks[:, None]
    shape = (B, Hq, Tq, p.value.shape[-1])
    intervals = p.plan.query_labels is None and p.plan.dense is None and p.bias is None
    covered = intervals and bool((p.plan.hi > p.plan.lo).all())
    # Zeros are written only where some query may be in no tile at all.
    return p.value.new_empty(shape, dtype=dtype) if covered else p.value.new_zeros(shape, dtype=dtype), lse


def tile_shape(p: Problem, s: Tile) -> tuple[int, int, int]:
    """(b·hk, groups·rows, keys): the shape of a tile's scores."""
    return s.batch_heads, p.groups * (s.i1 - s.i0), s.j1 - s.j0


def bring_in_sink(p: Problem, s: Tile, top: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """m and Σ e^{z − m} of rows (n, rows, 1) with the sink's logit among them, and the share of the weight keys keep."""
    sink = sink_rows(p, s, top)
    if sink is None:
        return top, total, None
    highest = torch.maximum(top, sink)
    keys = total * torch.exp(top - highest)
    total = keys + torch.exp(sink - highest)
    return highest, total, keys / total.clamp(min=1)
