"""Everything `Observables` can ask for, strip by strip, while the weights of a strip are there anyway.

Each quantity lives in three lines: its zeros, what one strip adds, and (for pooled ones) how it ends. A strip holds whole
rows, so per-query quantities are plain reductions. Per-key quantities and the map first add up the rows of one map cell,
which turns a strip of 128 rows into a handful, and only then look at columns.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clearhead.kernels import tiled
from clearhead.kernels.problem import Problem
from clearhead.kernels.tiled import Strip, Workspace, key_rows, put_query_rows
from clearhead.observables import Observables


def observe(
    problem: Problem, observables: Observables, offset: int, padded: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output in the inputs' dtype, and what was measured in the compute dtype; gradients are not recorded."""
    p = tiled.ready(problem)
    out = problem.query.new_zeros(*p.query.shape[:3], p.value.shape[-1])
    finite = tiled.all_finite(p.value)
    work = Workspace(p.query)
    # Where labels, a dense mask or −inf in a bias hide keys, an interval does not say how many a query sees.
    checked = p.plan.query_labels is not None or p.plan.dense is not None or p.bias is not None
    rows = _RowQuantities(p, observables, offset, checked)
    pooled = _PooledQuantities(p, observables, padded, checked)
    for s in tiled.strips(p):
        weights, lse, top, visible = tiled.strip_weights(p, s, work)
        seen = tiled.careful(p, s, visible, finite)
        put_query_rows(out, s, p.groups, tiled.seen_product(weights, key_rows(p.value, s), seen))
        z = work.buffers["logits"][: weights.numel()].view(weights.shape)
        pooled.add(s, weights, visible)
        rows.add(s, weights, z, lse, top, visible)
    return out, rows.end() | pooled.end()


class _RowQuantities:
    """What is measured for each query by itself."""

    def __init__(self, p: Problem, observables: Observables, offset: int, checked: bool) -> None:
        self.p, self.want, self.offset, self.checked = p, observables, offset, checked
        B, Hq, Tq, _ = p.query.shape
        self.Tk = p.key.shape[2]

        def zeros(*more: int) -> Tensor:
            return p.query.new_zeros(B, Hq, Tq, *more)

        self.found = found = {"lse": zeros() - torch.inf}
        if p.sinks is not None:
            found["lse"] = p.sinks[:, None].expand(B, Hq, Tq).clone()
        spans = (p.plan.hi - p.plan.lo).clamp(min=0)[:, None]  # (b, 1, tq)
        found["visible"] = torch.zeros(B, Hq, Tq, dtype=torch.int64, device=spans.device) if checked else spans
        if observables.max_logit:
            found["max_logit"] = zeros() - torch.inf
        if observables.entropy:
            found["entropy"] = zeros()
        if observables.top_k:
            found["top_keys"] = zeros(observables.top_k).long() - 1
            found["top_weights"] = zeros(observables.top_k)
        if observables.positions:
            found |= {name: zeros() for name in ("self_weight", "previous_weight", "first_weight")}
        if observables.distance:
            found["distance"] = zeros()
        if observables.rows:
            found["rows"] = p.query.new_zeros(B, Hq, len(observables.rows), self.Tk)
        if observables.token_ids is not None:
            found |= {name: zeros() for name in ("same_token", "after_same_token")}

    def add(self, s: Strip, weights: Tensor, z: Tensor, lse: Tensor, top: Tensor, visible: Tensor | None) -> None:
        """Measure one strip. Uses up the logits in `z`."""
        p, found, want = self.p, self.found, self.want
        j = torch.arange(s.j0, s.j1, device=weights.device)
        i = torch.arange(s.i0, s.i1, device=weights.device)
        a = (i + self.offset).repeat(p.groups)  # absolute position of every row of the strip

        def put(name: str, rows: Tensor) -> None:
            put_query_rows(found[name], s, p.groups, rows)

        put("lse", lse.squeeze(-1))
        if self.checked:
            shape = (s.b1 - s.b0, (s.h1 - s.h0) * p.groups, s.i1 - s.i0)
            put("visible", visible.sum(-1).expand(shape) if visible is not None else torch.full(shape, s.j1 - s.j0))
        if want.max_logit:
            put("max_logit", top.squeeze(-1))
        if want.positions:
            first = torch.zeros_like(a)
            for name, at in (("self_weight", a), ("previous_weight", a - 1), ("first_weight", first)):
                put(name, _weight_at(weights, at, s))
        if want.distance:
            # Measured from the strip's first query, so that the sum holds small numbers however far along the text it is.
            from_start = (s.i0 + self.offset - j).to(weights.dtype)
            put("distance", weights @ from_start + weights.sum(-1) * (a - (s.i0 + self.offset)))
        if want.rows:
            for n, row in enumerate(want.rows):
                row %= found["lse"].shape[2]
                if s.i0 <= row < s.i1:
                    of_heads = weights.view(s.b1 - s.b0, -1, s.i1 - s.i0, s.j1 - s.j0)[:, :, row - s.i0]
                    heads = slice(s.h0 * p.groups, s.h1 * p.groups)
                    found["rows"][s.b0 : s.b1, heads, n, s.j0 : s.j1] = of_heads
        if want.token_ids is not None:
            self._add_token_relations(s, weights, want.token_ids, a[: s.i1 - s.i0])
        if want.top_k:
            keys = top_k(z, want.top_k)
            put("top_weights", weights.gather(-1, keys.clamp(min=0)).masked_fill_(keys < 0, 0.0))
            put("top_keys", torch.where(keys < 0, -1, keys + s.j0))
        if want.entropy:
            put("entropy", self._entropy(s, weights, z, lse, top))

    def _entropy(self, s: Strip, weights: Tensor, z: Tensor, lse: Tensor, top: Tensor) -> Tensor:
        """L − Σ p z, both measured from the row's maximum, where the numbers are small and nothing cancels."""
        anchor = torch.where(top == -torch.inf, 0.0, top)
        # A hidden pair has weight 0 and logit −inf: any finite number in its place makes the product 0 instead of NaN.
        products = z.sub_(anchor).clamp_(min=torch.finfo(z.dtype).min).mul_(weights)
        total = weights.sum(-1, keepdim=True)
        entropy = (lse - anchor) * total - products.sum(-1, keepdim=True)
        sink = tiled.sink_rows(self.p, s, lse)
        if sink is not None:
            entropy += torch.exp(sink - lse) * (lse - sink)
        return torch.where(top == -torch.inf, 0.0, entropy).squeeze(-1)

    def _add_token_relations(self, s: Strip, weights: Tensor, ids: Tensor, a: Tensor) -> None:
        ids = ids.to(weights.device).reshape(-1, self.Tk)
        ids = ids if ids.shape[0] == 1 else ids[s.b0 : s.b1]
        j = torch.arange(s.j0, s.j1, device=weights.device)
        known = ((a >= 0) & (a < self.Tk))[:, None]
        mine = ids[:, a.clamp(0, self.Tk - 1), None]
        before = ids.roll(1, dims=-1)
        grid = weights.view(s.b1 - s.b0, -1, s.i1 - s.i0, s.j1 - s.j0)
        for name, theirs, where in (
            ("same_token", ids, known & (j < a[:, None])),
            ("after_same_token", before, known & (j <= a[:, None]) & (j >= 1)),
        ):
            match = (theirs[:, None, s.j0 : s.j1] == mine) & where  # (1 or b, rows, keys)
            put_query_rows(self.found[name], s, self.p.groups, torch.where(match[:, None], grid, 0.0).sum(-1))

    def end(self) -> dict[str, Tensor]:
        """Everything measured."""
        if self.p.sinks is not None:
            self.found["sink"] = torch.exp(self.p.sinks[None, :, None] - self.found["lse"])
        return self.found


def _weight_at(weights: Float[Tensor, "n rows keys"], at: Int[Tensor, " rows"], s: Strip) -> Float[Tensor, "n rows"]:
    """The weight each row puts on one key, 0 where the strip has no such key."""
    inside = (at >= s.j0) & (at < s.j1)
    columns = (at - s.j0).clamp(0, s.j1 - s.j0 - 1)[:, None].expand(weights.shape[0], -1, 1)
    return torch.where(inside, weights.gather(-1, columns).squeeze(-1), 0.0)


BLOCK = 32  # keys that share one maximum when the best few are sought


def top_k(z: Float[Tensor, "n rows keys"], k: int) -> Int[Tensor, "n rows k"]:
    """Columns of the k largest of every row, ties to the smaller column; −1 where a row has fewer that are not −inf.

    The k largest lie in the k blocks with the largest maxima, so only those are searched: one pass over the row, then
    sorting a few hundred numbers.
    """
    keys = z.shape[-1]
    blocks = keys // BLOCK
    if blocks > 2 * k:
        whole = z[..., : blocks * BLOCK].unflatten(-1, (blocks, BLOCK))
        best = _ordered_top(whole.amax(-1), k).sort(-1).values  # (n, rows, k) blocks, in order of position
        tail = torch.arange(blocks * BLOCK, keys, device=z.device).expand(*z.shape[:-1], -1)
        within = torch.arange(BLOCK, device=z.device)
        candidates = torch.cat([(best[..., None] * BLOCK + within).flatten(-2), tail], dim=-1)
        found = z.gather(-1, candidates)
        place = _ordered_top(found, k)
        columns, values = candidates.gather(-1, place), found.gather(-1, place)
    else:
        columns = _ordered_top(z, min(k, keys))
        values = z.gather(-1, columns)
    columns = torch.where(values == -torch.inf, -1, columns)
    return torch.nn.functional.pad(columns, (0, k - columns.shape[-1]), value=-1)


def _ordered_top(x: Tensor, k: int) -> Tensor:
    """Indices of the k largest along the last axis, larger first, ties to the smaller index."""
    if x.dtype != torch.float32:
        return torch.sort(x, dim=-1, descending=True, stable=True).indices[..., :k]
    # One integer a number, ordered as floats are and then by smaller index: no two are equal, so topk has no choice left.
    bits = (x + 0.0).view(torch.int32)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long() << 32
    last = x.shape[-1] - 1
    ordered |= torch.arange(last, -1, -1, device=x.device)
    return last - (torch.topk(ordered, k, dim=-1).values & 0xFFFFFFFF)


class _PooledQuantities:
    """What is added up over queries: received weight of every key, and the map."""

    def __init__(self, p: Problem, observables: Observables, padded: Tensor | None, checked: bool) -> None:
        self.p, self.want, self.padded, self.checked = p, observables, padded, checked
        B, Hq, Tq, _ = p.query.shape
        Tk = p.key.shape[2]
        self.found: dict[str, Tensor] = {}
        if observables.received:
            self.found["received"] = p.query.new_zeros(B, Hq, Tk, dtype=torch.float64)
        if observables.map:
            self.rows, self.columns = (_bounds(T, observables.map) for T in (Tq, Tk))
            cells = (len(self.rows) - 1, len(self.columns) - 1)
            self.found |= {name: p.query.new_zeros(B, Hq, *cells) for name in ("map_mean", "map_max")}
            self.counts = p.query.new_zeros(B, Hq if checked else 1, *cells)
            self.starts = torch.tensor(self.columns[:-1], device=p.query.device)
            self.ends = torch.tensor(self.columns[1:], device=p.query.device)
            # Columns of every cell side by side; cells one column short repeat their last one, which `inside` tells.
            widest = max((e - b for b, e in pairwise(self.columns)), default=0)
            at = self.starts[:, None] + torch.arange(widest, device=p.query.device)
            self.inside = at < self.ends[:, None]
            self.cell_columns = torch.minimum(at, self.ends[:, None] - 1)

    def add(self, s: Strip, weights: Tensor, visible: Tensor | None) -> None:
        """Add one strip."""
        if not (self.want.received or self.want.map):
            return
        grid = weights.view(s.b1 - s.b0, -1, s.i1 - s.i0, s.j1 - s.j0)
        real = None
        if self.padded is not None:
            real = ~(self.padded if self.padded.shape[0] == 1 else self.padded[s.b0 : s.b1])[:, s.i0 : s.i1]
            grid = torch.where(real[:, None, :, None], grid, 0.0)  # where, not times: padding may hold NaN
        heads = slice(s.h0 * self.p.groups, s.h1 * self.p.groups)
        cells = _pieces(self.rows, s.i0, s.i1) if self.want.map else [(0, slice(0, s.i1 - s.i0))]
        members = grid.new_zeros(len(cells), s.i1 - s.i0)
        for n, (_, rows) in enumerate(cells):
            members[n, rows] = 1.0
        sums = members @ grid  # (b, h, cells, keys): the rows of each map cell added up
        if self.want.received:
            self.found["received"][s.b0 : s.b1, heads, s.j0 : s.j1] += sums.sum(2)
        if not self.want.map:
            return
        tops = torch.stack([grid[:, :, rows].amax(2) for _, rows in cells], dim=2)
        seen = self._seen_by_cell(s, members, visible, real)
        sums, tops = self._columns(s, sums).sum(-1), self._columns(s, tops).amax(-1)
        count_heads = heads if self.checked else slice(None)
        for n, (cell, _) in enumerate(cells):
            self.found["map_mean"][s.b0 : s.b1, heads, cell] += sums[:, :, n]
            self.counts[s.b0 : s.b1, count_heads, cell] += seen[:, :, n]
            highest = self.found["map_max"][s.b0 : s.b1, heads, cell]
            torch.maximum(highest, tops[:, :, n], out=highest)

    def _columns(self, s: Strip, x: Tensor) -> Tensor:
        """(…, keys of the strip) as (…, map columns, keys of the column), 0 where there is none."""
        whole = torch.nn.functional.pad(x, (s.j0, self.p.key.shape[2] - s.j1))
        return torch.where(self.inside, whole[..., self.cell_columns], 0.0)

    def _seen_by_cell(self, s: Strip, members: Tensor, visible: Tensor | None, real: Tensor | None) -> Tensor:
        """How many pairs of each cell may be seen: from the intervals, or counted where those do not say it all."""
        if self.checked and visible is not None:
            counted = visible if real is None else visible & real[:, None, :, None]
            return self._columns(s, members @ counted.to(members.dtype)).sum(-1)
        if s.partial:
            plan = self.p.plan
            lo, hi = (x if x.shape[0] == 1 else x[s.b0 : s.b1] for x in (plan.lo, plan.hi))
            lo, hi = lo[:, s.i0 : s.i1, None], hi[:, s.i0 : s.i1, None]
        else:
            lo, hi = torch.tensor(s.j0, device=self.starts.device), torch.tensor(s.j1, device=self.starts.device)
        spans = (torch.minimum(hi, self.ends) - torch.maximum(lo, self.starts)).clamp(min=0).to(members.dtype)
        spans = spans.expand(s.b1 - s.b0 if spans.ndim == 3 else 1, s.i1 - s.i0, -1)
        if real is not None:
            spans = spans * real[..., None]
        return (members @ spans)[:, None]

    def end(self) -> dict[str, Tensor]:
        """Everything measured, sums turned into means."""
        if self.want.map:
            self.found["map_mean"] /= self.counts.clamp(min=1)
        if self.want.received:
            self.found["received"] = self.found["received"].to(self.p.query.dtype)
        return self.found


def _bounds(length: int, cells: int) -> list[int]:
    """Where each of the map's cells begins, and where the last one ends."""
    cells = min(length, cells)
    return [c * length // cells for c in range(cells + 1)] if cells else [0]


def _pieces(bounds: list[int], i0: int, i1: int) -> list[tuple[int, slice]]:
    """The map cells that rows i0:i1 belong to, and which of these rows (counted from i0) belong to each."""
    found = []
    for cell in range(bisect_right(bounds, i0) - 1, len(bounds) - 1):
        begin, end = max(i0, bounds[cell]), min(i1, bounds[cell + 1])
        if begin >= end:
            break
        found.append((cell, slice(begin - i0, end - i0)))
    return found
