"""Everything `Observables` can ask for, while the weights are there anyway.

Unlike `tiled.attention`, which forgets a tile as soon as it is done, a block of rows meets all its keys at once, few enough
heads and rows together that its logits and weights stay in cache. The weights are those of whole rows from the start, so that
what is measured is plain arithmetic on them: for each query along its row, for keys and the map down the rows of one map cell
first, which turns 256 rows into a few, and only then along columns.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clearhead.kernels import tiled
from clearhead.kernels.problem import Problem, viewers_by_intervals, visible_by_intervals
from clearhead.kernels.tiled import Tile, Workspace, key_rows, put_query_rows, query_rows
from clearhead.measuring import Measuring, one_hot

BLOCK_BYTES = 12 << 20  # logits of one block of rows over the heads taken together; its weights need as much again


class Block(NamedTuple):
    """Some rows of some heads with all the keys that any of them may see."""

    tile: Tile
    z: Float[Tensor, "n rows keys"]
    weights: Float[Tensor, "n rows keys"]
    hidden: list[
        tuple[slice, Bool[Tensor, "#b #h rows _"]]
    ]  # pieces of the keys with pairs that may not be seen: which may

    def grid(self, x: Float[Tensor, "n group_rows keys"]) -> Float[Tensor, "b h rows keys"]:
        """With samples and query heads in dimensions of their own."""
        s = self.tile
        return x.view(s.b1 - s.b0, -1, s.i1 - s.i0, x.shape[-1])

    def hide(self, x: Float[Tensor, "n rows keys"], value: float) -> None:
        """Write a value in place where a pair may not be seen."""
        grid = self.grid(x)
        for keys, visible in self.hidden:
            grid[..., keys].masked_fill_(~visible, value)

    def visible(self) -> Bool[Tensor, "#b #h rows keys"]:
        """Which pairs may be seen."""
        s = self.tile
        shape = torch.broadcast_shapes(*(v.shape[:2] for _, v in self.hidden), (1, 1))
        seen = self.z.new_ones(*shape, s.i1 - s.i0, s.j1 - s.j0, dtype=torch.bool)
        for keys, visible in self.hidden:
            seen[..., keys] = visible
        return seen


def observe(problem: Problem, measuring: Measuring) -> tuple[Tensor, dict[str, Tensor]]:
    """Output in the inputs' dtype, and what was measured in the compute dtype; gradients are not recorded."""
    p = tiled.ready(problem)
    out, lse = tiled.empty_results(p, problem.query.dtype)
    # Where labels, a dense mask or −inf in a bias hide keys, an interval does not say how many a query sees.
    checked = p.plan.query_labels is not None or p.plan.dense is not None or p.bias is not None
    rows = _RowQuantities(p, measuring, checked)
    pooled = _PooledQuantities(p, measuring, checked)
    with tiled.workspace(p.query) as work:
        _add_blocks(p, work, rows, pooled, out, lse)
    return out, {"lse": lse} | rows.end(lse) | pooled.end()


def _add_blocks(
    p: Problem, work: Workspace, rows: _RowQuantities, pooled: _PooledQuantities, out: Tensor, lse: Tensor
) -> None:
    """Every block of rows, into output, L and what is measured."""
    finite, sane = tiled.all_finite(p.value), tiled.products_finite(p)
    for tiles in tiled.row_blocks(p, BLOCK_BYTES):
        block = _logits(p, tiles, work, sane)
        if block is None:
            continue
        s = block.tile
        weights, top, total = tiled.softmax_rows(block.z, block.weights, sane and not block.hidden)
        seen = None if finite or not block.hidden else tiled.careful(p, s, block.visible(), finite)
        mean = tiled.seen_product(weights, key_rows(p.value, s), seen)
        highest = torch.where(total == 0, -torch.inf, top)
        top, total, kept = tiled.bring_in_sink(p, s, top, total)
        if kept is not None:
            mean, _ = mean.mul_(kept), weights.mul_(kept)
        if not sane and bool(total.isnan().any()):
            block.hide(weights, 0.0)  # a query that is NaN gives no weight to what it may not see
        put_query_rows(out, s, p.groups, mean)
        put_query_rows(lse, s, p.groups, top + total.log())
        rows.add(block, highest)
        pooled.add(block)
        if rows.want.entropy:
            rows.add_entropy(block, top, total, sane)


def _logits(p: Problem, tiles: list[Tile], work: Workspace, sane: bool) -> Block | None:
    """The logits of a block of rows, and room for its weights; None where nothing may be seen."""
    s = dataclasses.replace(tiles[0], j1=tiles[-1].j1) if tiles else None
    if s is None:
        return None
    pieces = [(slice(t.j0 - s.j0, t.j1 - s.j0), tiled.visible_pairs(p, t)) for t in tiles]
    hidden = [(keys, visible) for keys, visible in pieces if visible is not None]
    if len(hidden) == len(tiles) and not any(bool(visible.any()) for _, visible in hidden):
        return None
    z, weights = (work.take(name, *tiled.tile_shape(p, s)) for name in ("logits", "weights"))
    bias = None if p.bias is None else tiled.bias_part(p, s)
    z = tiled.logits(query_rows(p.query, s, p.groups), key_rows(p.key, s), p, s, bias, None, z)
    block = Block(s, z, weights, hidden)
    for keys, visible in hidden:
        tiled.hide_(block.grid(z)[..., keys], visible, sane)
    return block


class _RowQuantities:
    """What is measured for each query by itself."""

    def __init__(self, p: Problem, measuring: Measuring, checked: bool) -> None:
        self.p, self.m, self.want, self.checked = p, measuring, measuring.want, checked
        want = measuring.want
        B, Hq, Tq, _ = p.query.shape
        self.Tk = p.key.shape[2]

        def zeros(*more: int) -> Tensor:
            return p.query.new_zeros(B, Hq, Tq, *more)

        self.found: dict[str, Tensor] = {}
        found = self.found
        found["visible"] = zeros().long() if checked else visible_by_intervals(p.plan)
        if want.max_logit:
            found["max_logit"] = zeros() - torch.inf
        if want.top_k:
            found |= {"top_keys": zeros(want.top_k).long() - 1, "top_weights": zeros(want.top_k)}
        if want.top_k and measuring.value_norm is not None:
            found["top_contribution_keys"] = zeros(want.top_k).long() - 1
            found["top_contributions"] = zeros(want.top_k)
        if want.group_top_k:
            found["group_top_keys"] = zeros(measuring.groups, want.group_top_k).long() - 1
            found["group_top_weights"] = zeros(measuring.groups, want.group_top_k)
        sums = {
            "entropy": want.entropy,
            "sum_squares": want.sum_squares,
            **dict.fromkeys(("self_weight", "previous_weight", "first_weight"), want.positions),
            "distance": want.distance,
            **dict.fromkeys(("same_token", "after_same_token"), measuring.tokens is not None),
        }
        found |= {name: zeros() for name, wanted in sums.items() if wanted}
        if want.distance_histogram:
            found["distance_histogram"] = zeros(measuring.bins)
        if measuring.key_groups is not None:
            found["group_weight"] = zeros(measuring.groups)
        if want.rows:
            found["rows"] = p.query.new_zeros(B, Hq, len(want.rows), self.Tk)

    def add(self, block: Block, highest: Float[Tensor, "n rows 1"]) -> None:
        """All but the entropy; `highest` is the largest logit of a key, −inf where there is none."""
        p, want, s, weights = self.p, self.want, block.tile, block.weights
        grid = block.grid(weights)
        i = torch.arange(s.i0, s.i1, device=weights.device) + self.m.offset  # positions
        j = torch.arange(s.j0, s.j1, device=weights.device)
        a = i.repeat(p.groups)
        if self.checked:
            counts = block.visible().sum(-1).expand(grid.shape[:3])
            self._put("visible", s, counts)
        if want.max_logit:
            self._put("max_logit", s, highest)
        if want.positions:
            self._put("self_weight", s, _weight_at(weights, a, s))
            self._put("previous_weight", s, _weight_at(weights, a - 1, s))
            if s.j0 == 0 and want.first_key == 0:
                self._put("first_weight", s, weights[..., 0])
        if want.distance:
            # Measured from the first row, so that the sum holds small numbers however far along the text it is.
            inside = (i[0] - j).to(weights.dtype)
            self._put("distance", s, weights @ inside + weights.sum(-1) * (a - i[0]))
        if want.sum_squares:
            self._put("sum_squares", s, torch.linalg.vecdot(weights, weights))
        if want.distance_histogram:
            self._add_distances(s, grid)
        if self.m.key_groups is not None:
            members = one_hot(tiled.samples(self.m.key_groups, s)[:, s.j0 : s.j1], self.m.groups).to(weights.dtype)
            self._put("group_weight", s, weights.view(len(grid), -1, s.j1 - s.j0) @ members)
        for n, row in enumerate(row % p.query.shape[2] for row in want.rows):
            if s.i0 <= row < s.i1:
                heads = slice(s.h0 * p.groups, s.h1 * p.groups)
                self.found["rows"][s.b0 : s.b1, heads, n, s.j0 : s.j1] = grid[:, :, row - s.i0]
        if self.m.tokens is not None:
            for name, match in token_matches(self.m.tokens, i, s, want.first_key):
                self._put(name, s, torch.where(match[:, None], grid, 0.0).sum(-1))
        self._add_ranked(block)

    def _put(self, name: str, s: Tile, rows: Tensor) -> None:
        put_query_rows(self.found[name], s, self.p.groups, rows)

    def _add_ranked(self, block: Block) -> None:
        """The largest weights, of all keys and of each group of them, and the largest contributions."""
        s, want, norms, weights = block.tile, self.want, self.m.value_norm, block.weights
        if want.top_k:
            self._put_weights("top", s, weights, top_k(block.z, want.top_k)[0])
        if want.top_k and norms is not None:
            heads = slice(s.h0 * self.p.groups, s.h1 * self.p.groups)
            amount = (block.grid(weights) * norms[s.b0 : s.b1, heads, None, s.j0 : s.j1]).view_as(weights)
            block.hide(amount, -torch.inf)
            columns, amounts = top_k(amount, want.top_k)
            self._put("top_contribution_keys", s, torch.where(columns < 0, -1, columns + s.j0))
            self._put("top_contributions", s, torch.where(columns < 0, 0.0, amounts))
        if want.group_top_k and self.m.key_groups is not None:
            labels = tiled.samples(self.m.key_groups, s)[:, None, None, s.j0 : s.j1]
            for g in range(self.m.groups):
                inside = block.grid(block.z).masked_fill(labels != g, -torch.inf).view_as(weights)
                self._put_weights("group_top", s, weights, top_k(inside, want.group_top_k)[0], g)

    def _put_weights(self, name: str, s: Tile, weights: Tensor, columns: Tensor, group: int | None = None) -> None:
        """Keys and weights of the columns found, −1 and 0 where there is none."""
        none = columns < 0
        found = torch.where(none, 0.0, weights.gather(-1, columns.clamp(min=0)))
        for kind, rows in (("keys", torch.where(none, -1, columns + s.j0)), ("weights", found)):
            target = self.found[f"{name}_{kind}"]
            put_query_rows(target if group is None else target[..., group, :], s, self.p.groups, rows)

    def add_entropy(self, block: Block, top: Tensor, total: Tensor, sane: bool) -> None:
        """H = Σ p (L − z) = log Σ e^{z − m} + Σ p (m − z), in which nothing cancels. Overwrites the logits."""
        lowest = torch.finfo(top.dtype).min
        below = block.z.sub_(top)
        # A hidden pair has weight 0 and logit −inf: with any finite number the product is 0 instead of NaN.
        for keys in [keys for keys, _ in block.hidden] if sane else [slice(None)]:
            below[..., keys].clamp_(min=lowest)
        entropy = total.clamp(min=1).log() - below.mul_(block.weights).sum(-1, keepdim=True)
        sink = tiled.sink_rows(self.p, block.tile, top)
        if sink is not None:
            less = (sink - top).clamp(min=lowest)
            entropy -= torch.exp(less) / total.clamp(min=1) * less
        self._put("entropy", block.tile, entropy)

    def _add_distances(self, s: Tile, grid: Float[Tensor, "b h rows keys"]) -> None:
        """Bins of the distance histogram, each of which meets the block in one piece of every row on either side."""
        i = torch.arange(s.i0, s.i1, device=grid.device) + self.m.offset
        first, last = s.i0 + self.m.offset, s.i1 - 1 + self.m.offset
        for n in range(self.m.bins):
            low, high = 2**n >> 1, 2**n
            after = max(low, 1)  # distance 0 is no key's that comes after
            total = grid.new_zeros(grid.shape[:3])
            for sign, least, begin, end in (
                (1, low, first - high + 1, last - low),
                (-1, after, first + after, last + high - 1),
            ):
                j0, j1 = max(begin, s.j0), min(end + 1, s.j1)
                if j0 < j1:
                    away = sign * (i[:, None] - torch.arange(j0, j1, device=grid.device))
                    inside = (away >= least) & (away < high)
                    total += torch.where(inside, grid[..., j0 - s.j0 : j1 - s.j0], 0.0).sum(-1)
            put_query_rows(self.found["distance_histogram"][..., n], s, self.p.groups, total)

    def end(self, lse: Tensor) -> dict[str, Tensor]:
        """Everything measured."""
        if self.p.sinks is not None:
            self.found["sink"] = tiled.share(self.p.sinks[None, :, None], lse)
        return self.found


def token_matches(text: Tensor, a: Int[Tensor, " rows"], s: Tile, first_key: int) -> list[tuple[str, Tensor]]:
    """Which pairs of a tile stand in each token relation, (1 or b, rows, keys); `a` are its rows' positions."""
    text, n = tiled.samples(text, s), text.shape[1]
    places, j = a + first_key, torch.arange(s.j0, s.j1, device=a.device)
    known = ((places >= 0) & (places < n))[:, None]
    mine, at = text[:, places.clamp(0, n - 1), None], j + first_key
    found = []
    for name, theirs, where in (
        ("same_token", text[:, at], known & (j < a[:, None])),
        ("after_same_token", text[:, (at - 1).clamp(min=0)], known & (j <= a[:, None]) & (at >= 1)),
    ):
        found.append((name, (theirs[:, None] == mine) & where))
    return found


def _weight_at(weights: Float[Tensor, "n rows keys"], at: Int[Tensor, " rows"], s: Tile) -> Float[Tensor, "n rows"]:
    """The weight each row puts on one key, 0 where the tile has no such key."""
    inside = (at >= s.j0) & (at < s.j1)
    columns = (at - s.j0).clamp(0, s.j1 - s.j0 - 1)[:, None].expand(weights.shape[0], -1, 1)
    return torch.where(inside, weights.gather(-1, columns).squeeze(-1), 0.0)


GROUP = 16  # columns searched together


def top_k(z: Float[Tensor, "n rows keys"], k: int) -> tuple[Int[Tensor, "n rows {k}"], Float[Tensor, "n rows {k}"]]:
    """Columns and values of the k largest of every row, larger first, ties to the smaller column.

    −1 and −inf where a row has fewer. The search leaves it to chance which of equal values it finds: rows in which they compete
    for the last place are sorted whole, and where they do not, only the k are put in order.
    """
    kept = min(k, z.shape[-1])
    columns, values, tied = _search(z, kept)
    if bool(((values[..., 1:] == values[..., :-1]) & (values[..., 1:] > -torch.inf)).any()):
        columns, by_column = torch.sort(columns, dim=-1)
        values, order = torch.sort(values.gather(-1, by_column), dim=-1, descending=True, stable=True)
        columns = columns.gather(-1, order)
    if bool(tied.any()):
        ordered, order = torch.sort(z[tied], dim=-1, descending=True, stable=True)
        columns[tied], values[tied] = order[:, :kept], ordered[:, :kept]
    columns = torch.where(values > -torch.inf, columns, -1)  # nor where it is NaN
    return pad(columns, (0, k - kept), value=-1), pad(values, (0, k - kept), value=-torch.inf)


def _search(
    z: Float[Tensor, "n rows keys"], k: int
) -> tuple[Int[Tensor, "n rows _"], Float[Tensor, "n rows _"], Bool[Tensor, "n rows"]]:
    """Columns and values of the k largest, larger first, and in which rows a tie left it to chance who is the last.

    The k largest lie in the k groups with the largest maxima: one pass over vectors finds the maxima, and only k groups are
    searched. Group c holds columns c, c + groups, c + 2 · groups, …
    """
    groups = z.shape[-1] // GROUP
    if groups <= 2 * k:
        values, columns = torch.topk(z, min(k + 1, z.shape[-1]), dim=-1)
        return columns[..., :k], values[..., :k], _tied(values, k)
    whole = z[..., : groups * GROUP].unflatten(-1, (GROUP, groups))
    best, group = torch.topk(whole.amax(-2), k + 1, dim=-1)
    group = group[..., :k]
    searched = whole.gather(-1, group.unsqueeze(-2).expand(*group.shape[:-1], GROUP, k)).flatten(-2)
    if z.shape[-1] > groups * GROUP:
        searched = torch.cat([searched, z[..., groups * GROUP :]], -1)  # and the columns left over
    values, place = torch.topk(searched, k + 1, dim=-1)
    tied, values, place = _tied(best, k) | _tied(values, k), values[..., :k], place[..., :k]
    in_group = group.gather(-1, place % k) + place // k * groups
    return torch.where(place < GROUP * k, in_group, place - GROUP * k + groups * GROUP), values, tied


def _tied(best: Float[Tensor, "n rows _"], k: int) -> Bool[Tensor, "n rows"]:
    """Whether the first that found no place equals the last of k, which is not −inf."""
    if best.shape[-1] <= k:
        return best.new_zeros(best.shape[:-1], dtype=torch.bool)
    return (best[..., k] == best[..., k - 1]) & (best[..., k] > -torch.inf)


class _PooledQuantities:
    """What is added up over queries: received weight of every key, and the map."""

    def __init__(self, p: Problem, measuring: Measuring, checked: bool) -> None:
        self.p, self.m, self.want, self.checked = p, measuring, measuring.want, checked
        B, Hq, Tq, _ = p.query.shape
        Tk = p.key.shape[2]
        self.found: dict[str, Tensor] = {}

        def zeros(*more: int) -> Tensor:
            return p.query.new_zeros(B, Hq, *more, Tk, dtype=torch.float64)

        if self.want.received:
            self.found["received"] = zeros()
            if checked:
                self.found["viewers"] = torch.zeros(B, Hq, Tk, dtype=torch.int64, device=p.query.device)
            else:
                self.found["viewers"] = viewers_by_intervals(p.plan, measuring.padded, Tk)
            if measuring.query_groups is not None:
                self.found["received_by_group"] = zeros(measuring.groups)
        if measuring.row_weights is not None:
            self.found["weighted_received"] = zeros()
        if self.want.map:
            self.rows, self.columns = (self.want.map_bounds(T) for T in (Tq, Tk))
            cells = (len(self.rows) - 1, len(self.columns) - 1)
            self.found |= {name: p.query.new_zeros(B, Hq, *cells) for name in ("map_mean", "map_max")}
            self.counts = p.query.new_zeros(B, Hq if checked else 1, *cells)
            self.starts = torch.tensor(self.columns[:-1], device=p.query.device)
            self.ends = torch.tensor(self.columns[1:], device=p.query.device)
            # Columns of every cell side by side; cells one column short repeat their last one, which `inside` tells.
            widths = {e - b for b, e in pairwise(self.columns)}
            self.even, widest = len(widths) == 1, max(widths, default=0)
            at = self.starts[:, None] + torch.arange(widest, device=p.query.device)
            self.inside = at < self.ends[:, None]
            self.cell_columns = torch.minimum(at, self.ends[:, None] - 1)

    def add(self, block: Block) -> None:
        """One block of rows."""
        if not (self.want.received or self.want.map or self.m.row_weights is not None):
            return
        s, grid = block.tile, block.grid(block.weights)
        heads, keys = slice(s.h0 * self.p.groups, s.h1 * self.p.groups), slice(s.j0, s.j1)
        real = None
        if self.m.padded is not None:
            real = ~tiled.samples(self.m.padded, s)[:, s.i0 : s.i1]
            grid = torch.where(real[:, None, :, None], grid, 0.0)  # where, not times: padding may hold NaN
        self._add_to_keys(s, heads, keys, grid)
        # The rows of each map cell added up, and their maximum, for every key: what is left is small.
        cells = _pieces(self.rows, s.i0, s.i1) if self.want.map else [(0, slice(0, s.i1 - s.i0))]
        sums = _by_cells(grid, cells, torch.sum)
        counts = self._count_pairs(block, cells, real) if self.checked else None
        if self.want.received:
            self.found["received"][s.b0 : s.b1, heads, keys] += sums.sum(2)
            if counts is not None:
                self.found["viewers"][s.b0 : s.b1, heads, keys] += counts.sum(2).long()
        if not self.want.map:
            return
        pooled, highest = self._columns(sums, s).sum(-1), self._columns(_by_cells(grid, cells, torch.amax), s).amax(-1)
        seen = self._seen_by_interval(s, cells, real) if counts is None else self._columns(counts, s).sum(-1)
        at = slice(cells[0][0], cells[-1][0] + 1)
        self.found["map_mean"][s.b0 : s.b1, heads, at] += pooled
        if self.checked:
            self.counts[s.b0 : s.b1, heads, at] += seen
        elif s.h0 == 0:  # all heads see the same: counted once
            self.counts[s.b0 : s.b1, :, at] += seen
        target = self.found["map_max"][s.b0 : s.b1, heads, at]
        torch.maximum(target, highest, out=target)

    def _add_to_keys(self, s: Tile, heads: slice, keys: slice, grid: Float[Tensor, "b h rows keys"]) -> None:
        """What a tile's keys receive from every group of queries, and by the weights of rows."""
        if "received_by_group" in self.found and self.m.query_groups is not None:
            members = one_hot(tiled.samples(self.m.query_groups, s)[:, s.i0 : s.i1], self.m.groups)
            part = members.mT[:, None].to(grid.dtype) @ grid
            self.found["received_by_group"][s.b0 : s.b1, heads, :, keys] += part
        if self.m.row_weights is not None:
            r = tiled.samples(self.m.row_weights, s)
            r = r[:, heads if r.shape[1] > 1 else slice(None), None, s.i0 : s.i1]
            self.found["weighted_received"][s.b0 : s.b1, heads, keys] += (r @ grid).squeeze(2)

    def _columns(self, x: Float[Tensor, "b h cells keys"], s: Tile) -> Tensor:
        """The keys of each map column, (b, h, cells, map columns, keys of the column), 0 where there is none."""
        whole = pad(x, (s.j0, self.p.key.shape[2] - s.j1))
        if self.even:
            cells: Tensor = whole.unflatten(-1, tuple(self.inside.shape))
            return cells
        return torch.where(self.inside, whole[..., self.cell_columns], 0.0)

    def _count_pairs(self, block: Block, cells: list[tuple[int, slice]], real: Tensor | None) -> Tensor:
        """How many rows of each cell may see each key, (b, h, cells, keys)."""
        visible = block.visible()
        if real is not None:
            visible = visible & real[:, None, :, None]
        shape = block.grid(block.weights).shape
        return _by_cells(visible.to(block.weights.dtype), cells, torch.sum).expand(*shape[:2], len(cells), shape[3])

    def _seen_by_interval(self, s: Tile, cells: list[tuple[int, slice]], real: Tensor | None) -> Tensor:
        """How many pairs of each cell may be seen, where the intervals say it all."""
        plan = self.p.plan
        lo, hi = tiled.samples(plan.lo, s), tiled.samples(plan.hi, s)
        lo, hi = lo[:, s.i0 : s.i1, None], hi[:, s.i0 : s.i1, None]
        spans = (torch.minimum(hi, self.ends) - torch.maximum(lo, self.starts)).clamp(min=0).to(self.counts.dtype)
        if real is not None:
            spans = spans * real[..., None]
        return _by_cells(spans[:, None], cells, torch.sum)

    def end(self) -> dict[str, Tensor]:
        """Everything measured, sums turned into means."""
        if self.want.map:
            self.found["map_mean"] /= self.counts.clamp(min=1)
        return {n: x.to(self.p.query.dtype) if x.is_floating_point() else x for n, x in self.found.items()}


def _pieces(bounds: list[int], i0: int, i1: int) -> list[tuple[int, slice]]:
    """The map cells that rows i0:i1 belong to, and which of these rows (counted from i0) belong to each."""
    found = []
    for cell in range(bisect_right(bounds, i0) - 1, len(bounds) - 1):
        begin, end = max(i0, bounds[cell]), min(i1, bounds[cell + 1])
        if begin >= end:
            break
        found.append((cell, slice(begin - i0, end - i0)))
    return found


def _by_cells(
    x: Float[Tensor, "b h rows keys"], cells: list[tuple[int, slice]], reduce: Callable[..., Tensor]
) -> Float[Tensor, "b h cells keys"]:
    """Sums or maxima over the rows of each cell."""
    sizes = {rows.stop - rows.start for _, rows in cells}
    if len(sizes) == 1:
        return reduce(x.unflatten(2, (len(cells), sizes.pop())), 3)
    return torch.stack([reduce(x[:, :, rows], 2) for _, rows in cells], 2)
