"""Everything `Observables` can ask for, while the weights are there anyway.

A block of rows first goes through its tiles as in `tiled.attention`, keeping logits and weights of the whole block. When
the last tile is done, L is known and the weights can be made those of the whole row. What is linear in them is then added
up tile by tile; what is not (maximum, entropy, the best k) was prepared on the way and is merged at the end of the block.
Per-key quantities and the map first add up the rows of one map cell, which turns 128 rows into a few, and only then look
at columns.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clearhead.kernels import tiled
from clearhead.kernels.problem import Problem, viewers_by_intervals, visible_by_intervals
from clearhead.kernels.tiled import Tile, Workspace, add_query_rows, key_rows, put_query_rows
from clearhead.measuring import Measuring, one_hot

TILE_KEYS = 1024  # wider than without looking: the search for the k largest costs less the more keys it is spread over
BLOCK_BYTES = 32 << 20  # logits of one block of rows over the heads taken together; its weights need as much again


class Part(NamedTuple):
    """A tile that has been through the softmax by itself."""

    tile: Tile
    z: Float[Tensor, "n rows keys"]
    weights: Float[Tensor, "n rows keys"]
    top: Float[Tensor, "n rows 1"]  # m, the largest logit
    above: Float[Tensor, "n rows 1"]  # L − m
    visible: Tensor | None


def observe(problem: Problem, measuring: Measuring) -> tuple[Tensor, dict[str, Tensor]]:
    """Output in the inputs' dtype, and what was measured in the compute dtype; gradients are not recorded."""
    p = tiled.ready(problem)
    out, lse = tiled.empty_results(p, problem.query.dtype)
    finite = tiled.all_finite(p.value)
    work = Workspace(p.query)
    # Where labels, a dense mask or −inf in a bias hide keys, an interval does not say how many a query sees.
    checked = p.plan.query_labels is not None or p.plan.dense is not None or p.bias is not None
    rows = _RowQuantities(p, measuring, checked, work)
    pooled = _PooledQuantities(p, measuring, checked)
    for tiles in tiled.row_blocks(p, BLOCK_BYTES, TILE_KEYS):
        parts = _parts(p, tiles, work)
        if not parts:
            continue
        # L and each tile's own L, both measured from the largest logit of the rows.
        top = torch.cat([part.top for part in parts], -1).amax(-1, keepdim=True)
        anchor = tiled.anchored(top)
        own = [part.above + (part.top - anchor) for part in parts]
        keys = torch.logsumexp(torch.cat(own, -1), -1, keepdim=True)
        products = []
        for part, mine in zip(parts, own, strict=True):
            s = part.tile
            seen = tiled.careful(p, s, part.visible, finite)
            product = tiled.seen_product(part.weights, key_rows(p.value, s), seen)
            products.append(product.mul_(tiled.share(mine, keys)))
        tiled.finish_rows(p, tiles[0], torch.stack(products).sum(0), top, keys, out, lse)
        sink = tiled.sink_rows(p, tiles[0], anchor)
        total = keys if sink is None else torch.logaddexp(keys, sink - anchor)
        rows.add_block(parts, own, anchor, total)  # before the weights are made those of the whole row
        spoilt = bool(total.isnan().any())
        for part, mine in zip(parts, own, strict=True):
            part.weights.mul_(tiled.share(mine, total))
            if spoilt and part.visible is not None:  # a query that is NaN gives no weight to what it may not see
                t = part.tile
                part.weights.view(t.b1 - t.b0, -1, t.i1 - t.i0, t.j1 - t.j0).masked_fill_(~part.visible, 0.0)
            rows.add_tile(part.tile, part.weights, part.visible)
        rows.add_ranked(parts)
        pooled.add_block(parts)
    return out, {"lse": lse} | rows.end(lse) | pooled.end()


def _parts(p: Problem, tiles: list[Tile], work: Workspace) -> list[Part]:
    """The tiles of a block after their own softmax, empty ones left out; all in two pieces of scratch memory."""
    sizes = [tiled.tile_shape(p, s) for s in tiles]
    lengths = [n * rows * keys for n, rows, keys in sizes]
    z_all, weights_all = (work.take(name, sum(lengths)).split(lengths) for name in ("logits", "weights"))
    parts = []
    for s, shape, z_flat, weights_flat in zip(tiles, sizes, z_all, weights_all, strict=True):
        z = z_flat.view(shape)
        found = tiled.tile_weights(p, s, z, weights_flat.view(shape))
        if found is not None:
            weights, top, above, visible = found
            parts.append(Part(s, z, weights, top, above, visible))
    return parts


class _RowQuantities:
    """What is measured for each query by itself."""

    def __init__(self, p: Problem, measuring: Measuring, checked: bool, work: Workspace) -> None:
        self.p, self.m, self.want, self.checked, self.work = p, measuring, measuring.want, checked, work
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

    def add_block(
        self,
        parts: list[Part],
        own: list[Float[Tensor, "n rows 1"]],
        anchor: Float[Tensor, "n rows 1"],
        total: Float[Tensor, "n rows 1"],
    ) -> None:
        """What is not linear in the weights; `own` is each part's L and `total` that of whole rows, both minus `anchor`."""
        found, groups, s = self.found, self.p.groups, parts[0].tile
        if self.want.max_logit:
            top = torch.cat([part.top for part in parts], -1).amax(-1)
            put_query_rows(found["max_logit"], s, groups, top)
        if self.want.entropy:
            put_query_rows(found["entropy"], s, groups, self._entropy(parts, own, anchor, total))
        if self.want.top_k:
            keys, values = top_k([(part.tile.j0, part.z) for part in parts], self.want.top_k)
            put_query_rows(found["top_keys"], s, groups, keys)
            put_query_rows(found["top_weights"], s, groups, tiled.share(values - anchor, total))
        if self.want.group_top_k and self.m.key_groups is not None:
            labels = tiled.samples(self.m.key_groups, s)
            for g in range(self.m.groups):
                inside = [
                    (part.tile.j0, self._hidden(part, labels[:, part.tile.j0 : part.tile.j1] != g)) for part in parts
                ]
                keys, values = top_k(inside, self.want.group_top_k)
                put_query_rows(found["group_top_keys"][..., g, :], s, groups, keys)
                put_query_rows(found["group_top_weights"][..., g, :], s, groups, tiled.share(values - anchor, total))

    def add_ranked(self, parts: list[Part]) -> None:
        """What is ranked by more than the weights, which are those of whole rows by now."""
        norms = self.m.value_norm
        if norms is None or not self.want.top_k:
            return
        s, groups, ranked = parts[0].tile, self.p.groups, []
        for part in parts:
            t = part.tile
            norm = norms[t.b0 : t.b1, t.h0 * groups : t.h1 * groups, None, t.j0 : t.j1]
            amount = part.weights.view(*norm.shape[:2], t.i1 - t.i0, -1) * norm
            if part.visible is not None:
                amount = torch.where(part.visible, amount, -torch.inf)
            ranked.append((t.j0, amount.reshape(part.weights.shape)))
        keys, values = top_k(ranked, self.want.top_k)
        put_query_rows(self.found["top_contribution_keys"], s, groups, keys)
        put_query_rows(self.found["top_contributions"], s, groups, torch.where(keys < 0, 0.0, values))

    def _hidden(self, part: Part, keys: Bool[Tensor, "b keys"]) -> Tensor:
        """A tile's logits with some keys hidden."""
        grid = part.z.view(part.tile.b1 - part.tile.b0, -1, part.z.shape[-1])
        return grid.masked_fill(keys[:, None], -torch.inf).view(part.z.shape)

    def _entropy(self, parts: list[Part], own: list[Tensor], anchor: Tensor, total: Tensor) -> Tensor:
        """Σ p (L − z), each tile's logits measured from its maximum, where the numbers are small and nothing cancels."""
        entropy = torch.zeros_like(total)
        for part, mine in zip(parts, own, strict=True):
            top = tiled.anchored(part.top)
            below = torch.sub(part.z, top, out=self.work.take("below", *part.z.shape))
            if part.visible is not None:
                # A hidden pair has weight 0 and logit −inf: with any finite number the product is 0 instead of NaN.
                below.clamp_(min=torch.finfo(below.dtype).min)
            inside = below.mul_(part.weights).sum(-1, keepdim=True)
            some = torch.where(part.top == -torch.inf, 0.0, total + (anchor - top) - inside)
            entropy += tiled.share(mine, total) * some
        sink = tiled.sink_rows(self.p, parts[0].tile, total)
        if sink is None:
            return entropy
        sink = sink - anchor
        return entropy + tiled.share(sink, total) * (total - sink)

    def add_tile(self, s: Tile, weights: Float[Tensor, "n rows keys"], visible: Tensor | None) -> None:
        """What is linear in the weights, which are those of the whole row by now."""
        p, found, want = self.p, self.found, self.want
        j = torch.arange(s.j0, s.j1, device=weights.device)
        a = (torch.arange(s.i0, s.i1, device=weights.device) + self.m.offset).repeat(p.groups)  # positions

        def add(name: str, rows: Tensor) -> None:
            add_query_rows(found[name], s, p.groups, rows)

        if self.checked:
            shape = (s.b1 - s.b0, (s.h1 - s.h0) * p.groups, s.i1 - s.i0)
            add("visible", visible.sum(-1).expand(shape) if visible is not None else torch.full(shape, s.j1 - s.j0))
        if want.positions:
            begin, end = s.i0 + self.m.offset, s.i1 + self.m.offset
            if s.j0 < end and begin < s.j1:
                add("self_weight", _weight_at(weights, a, s))
            if s.j0 < end - 1 and begin - 1 < s.j1:
                add("previous_weight", _weight_at(weights, a - 1, s))
            if s.j0 == 0 and want.first_key == 0:
                add("first_weight", weights[..., 0])
        if want.distance:
            # Measured from the tile's own corner, so that the sum holds small numbers however far along the text it is.
            corner = s.i0 + self.m.offset - s.j0
            inside = (s.j0 - j).to(weights.dtype)
            add("distance", weights @ inside + weights.sum(-1) * (a - a[0] + corner))
        if want.sum_squares:
            add("sum_squares", torch.linalg.vecdot(weights, weights))
        if want.distance_histogram:
            self._add_distances(s, weights)
        if self.m.key_groups is not None:
            members = one_hot(tiled.samples(self.m.key_groups, s)[:, s.j0 : s.j1], self.m.groups).to(weights.dtype)
            grid = weights.view(s.b1 - s.b0, -1, s.j1 - s.j0)
            add("group_weight", grid @ members)
        if want.rows:
            grid = weights.view(s.b1 - s.b0, -1, s.i1 - s.i0, s.j1 - s.j0)
            heads = slice(s.h0 * p.groups, s.h1 * p.groups)
            for n, row in enumerate(row % p.query.shape[2] for row in want.rows):
                if s.i0 <= row < s.i1:
                    found["rows"][s.b0 : s.b1, heads, n, s.j0 : s.j1] = grid[:, :, row - s.i0]
        if self.m.tokens is not None:
            self._add_token_relations(s, weights, self.m.tokens, a[: s.i1 - s.i0])

    def _add_distances(self, s: Tile, weights: Tensor) -> None:
        """Bins of the distance histogram, each of which meets the tile in one piece of every row on either side."""
        i = torch.arange(s.i0 + self.m.offset, s.i1 + self.m.offset, device=weights.device)
        away = (i[:, None] - torch.arange(s.j0, s.j1, device=weights.device)).abs()
        nearest, farthest = int(away.min()), int(away.max())
        grid = weights.view(-1, s.i1 - s.i0, s.j1 - s.j0)
        found = self.found["distance_histogram"]
        for n in range(nearest.bit_length(), farthest.bit_length() + 1):
            low, high = 2**n >> 1, 2**n
            inside = grid
            if low > nearest or high <= farthest:
                inside = torch.where((away >= low) & (away < high), grid, 0.0)
            add_query_rows(found[..., n], s, self.p.groups, inside.sum(-1).view(weights.shape[:2]))

    def _add_token_relations(self, s: Tile, weights: Tensor, text: Tensor, a: Tensor) -> None:
        grid = weights.view(s.b1 - s.b0, -1, s.i1 - s.i0, s.j1 - s.j0)
        for name, match in token_matches(text, a, s, self.want.first_key):
            add_query_rows(self.found[name], s, self.p.groups, torch.where(match[:, None], grid, 0.0).sum(-1))

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


def top_k(
    tiles: list[tuple[int, Float[Tensor, "n rows _"]]], k: int
) -> tuple[Int[Tensor, "n rows k"], Float[Tensor, "n rows k"]]:
    """Keys and logits of the k largest of every row, ties to the smaller key; −1 and −inf where a row has fewer.

    `tiles`: first key and logits of each tile. A tile gives its own k best, and these are merged. Rows in which equal logits
    compete for a last place, which the search of a tile leaves to chance, are sorted whole.
    """
    found = [_top_of_tile(j0, z, k) for j0, z in tiles]
    keys, values, tied = (torch.cat(part, -1) for part in zip(*found, strict=True))
    keys, values = _ordered(keys, values, k)
    again = tied.any(-1)  # (n, rows)
    if bool(again.any()):
        rows = torch.cat([z[again] for _, z in tiles], -1)
        positions = torch.cat([torch.arange(j0, j0 + z.shape[-1], device=z.device) for j0, z in tiles])
        ordered, order = torch.sort(rows, dim=-1, descending=True, stable=True)
        kept = min(k, rows.shape[-1])
        keys[again, :kept], values[again, :kept] = positions[order[:, :kept]], ordered[:, :kept]
    return torch.where(values == -torch.inf, -1, keys), values


def _top_of_tile(
    j0: int, z: Float[Tensor, "n rows keys"], k: int
) -> tuple[Int[Tensor, "n rows _"], Float[Tensor, "n rows _"], Bool[Tensor, "n rows 1"]]:
    """Keys and logits of a tile's k largest in any order, and in which rows a tie left it to chance who they are.

    The k largest lie in the k groups with the largest maxima: one pass over vectors finds the maxima, and only k groups are
    searched. Group c holds columns c, c + groups, c + 2 · groups, …
    """
    width = z.shape[-1]
    size = 8 if width <= 512 else 16
    groups = width // size
    if groups <= 2 * k:
        values, columns = torch.topk(z, min(k, width), dim=-1)
        return columns + j0, values, _tied(z, values)
    whole = z[..., : groups * size].unflatten(-1, (size, groups))
    maxima = whole.amax(-2)
    best, group = torch.topk(maxima, k, dim=-1)  # (n, rows, k)
    searched = whole.gather(-1, group.unsqueeze(-2).expand(*group.shape[:-1], size, k)).flatten(-2)
    searched = torch.cat([searched, z[..., groups * size :]], -1)  # and the columns left over
    values, place = torch.topk(searched, k, dim=-1)
    in_group = group.gather(-1, place % k) + place // k * groups
    columns = torch.where(place < size * k, in_group, place - size * k + groups * size)
    return columns + j0, values, _tied(maxima, best) | _tied(searched, values)


def _tied(x: Float[Tensor, "n rows _"], best: Float[Tensor, "n rows _"]) -> Bool[Tensor, "n rows 1"]:
    """Whether more numbers than places reach the smallest of the best, which is not −inf."""
    last = best.amin(-1, keepdim=True)
    return ((x >= last).sum(-1, keepdim=True) > best.shape[-1]) & (last > -torch.inf)


def _ordered(keys: Int[Tensor, "n rows m"], values: Float[Tensor, "n rows m"], k: int) -> tuple[Tensor, Tensor]:
    """The k largest values with their keys, larger first, ties to the smaller key; filled up with −inf."""
    keys, by_key = torch.sort(keys, dim=-1)
    values, order = torch.sort(values.gather(-1, by_key), dim=-1, descending=True, stable=True)
    missing = max(0, k - values.shape[-1])
    keys = keys.gather(-1, order)[..., :k]
    return pad(keys, (0, missing), value=-1), pad(values[..., :k], (0, missing), value=-torch.inf)


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
            widest = max((e - b for b, e in pairwise(self.columns)), default=0)
            at = self.starts[:, None] + torch.arange(widest, device=p.query.device)
            self.inside = at < self.ends[:, None]
            self.cell_columns = torch.minimum(at, self.ends[:, None] - 1)

    def add_block(self, parts: list[Part]) -> None:
        """Add one block of rows, its weights being those of whole rows by now."""
        if not (self.want.received or self.want.map or self.m.row_weights is not None):
            return
        s = parts[0].tile
        real = None
        if self.m.padded is not None:
            real = ~tiled.samples(self.m.padded, s)[:, s.i0 : s.i1]
        heads = slice(s.h0 * self.p.groups, s.h1 * self.p.groups)
        cells = _pieces(self.rows, s.i0, s.i1) if self.want.map else [(0, slice(0, s.i1 - s.i0))]
        members = self.p.query.new_zeros(len(cells), s.i1 - s.i0)
        for n, (_, rows) in enumerate(cells):
            members[n, rows] = 1.0
        # The rows of each map cell added up, and their maximum, for every key: what is left is small.
        shape = (s.b1 - s.b0, heads.stop - heads.start, len(cells), self.p.key.shape[2])
        sums, tops = members.new_zeros(shape), members.new_zeros(shape if self.want.map else 0)
        for part in parts:
            keys = slice(part.tile.j0, part.tile.j1)
            grid = part.weights.view(shape[0], shape[1], s.i1 - s.i0, -1)
            if real is not None:
                grid = torch.where(real[:, None, :, None], grid, 0.0)  # where, not times: padding may hold NaN
            sums[..., keys] = members @ grid
            self._add_to_keys(s, heads, keys, grid)
            if self.want.map:
                for n, (_, rows) in enumerate(cells):
                    torch.amax(grid[:, :, rows], 2, out=tops[:, :, n, keys])
        if self.want.received:
            self.found["received"][s.b0 : s.b1, heads] += sums.sum(2)
        if self.checked and (self.want.received or self.want.map):
            counts = self._count_pairs(parts, members, real)
            if self.want.received:
                self.found["viewers"][s.b0 : s.b1, heads] += counts.sum(2).long()
        if not self.want.map:
            return
        pooled, highest = self._columns(sums).sum(-1), self._columns(tops).amax(-1)
        seen = self._columns(counts).sum(-1) if self.checked else self._seen_by_interval(s, members, real)
        for n, (cell, _) in enumerate(cells):
            self.found["map_mean"][s.b0 : s.b1, heads, cell] += pooled[:, :, n]
            if self.checked:
                self.counts[s.b0 : s.b1, heads, cell] += seen[:, :, n]
            elif s.h0 == 0:  # all heads see the same: counted once
                self.counts[s.b0 : s.b1, :, cell] += seen[:, :, n]
            target = self.found["map_max"][s.b0 : s.b1, heads, cell]
            torch.maximum(target, highest[:, :, n], out=target)

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

    def _columns(self, x: Tensor) -> Tensor:
        """(…, keys) as (…, map columns, keys of the column), 0 where there is none."""
        return torch.where(self.inside, x[..., self.cell_columns], 0.0)

    def _count_pairs(self, parts: list[Part], members: Tensor, real: Tensor | None) -> Tensor:
        """How many rows of each cell may see each key, (b, h, cells, Tk)."""
        s = parts[0].tile
        shape = (s.b1 - s.b0, (s.h1 - s.h0) * self.p.groups, len(members), self.p.key.shape[2])
        counts = members.new_zeros(shape)
        whole = torch.ones(s.i1 - s.i0, 1, dtype=torch.bool, device=members.device)
        for part in parts:
            visible = whole if part.visible is None else part.visible
            counted = visible if real is None else visible & real[:, None, :, None]
            counts[..., part.tile.j0 : part.tile.j1] = members @ counted.to(members.dtype)
        return counts

    def _seen_by_interval(self, s: Tile, members: Tensor, real: Tensor | None) -> Tensor:
        """How many pairs of each cell may be seen, where the intervals say it all."""
        plan = self.p.plan
        lo, hi = tiled.samples(plan.lo, s), tiled.samples(plan.hi, s)
        lo, hi = lo[:, s.i0 : s.i1, None], hi[:, s.i0 : s.i1, None]
        spans = (torch.minimum(hi, self.ends) - torch.maximum(lo, self.starts)).clamp(min=0).to(members.dtype)
        if real is not None:
            spans = spans * real[..., None]
        return (members @ spans)[:, None]

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
