"""What ranks measured, put together: every number is that of one process, up to the order of sums."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.functional import pad

from clearhead.arguments import CheckedCall
from clearhead.attention import observe_call
from clearhead.distributed.cells import count_cells
from clearhead.distributed.layout import Layout
from clearhead.distributed.moving import over_ranks, summed_parts, to_sequence, together, whole
from clearhead.distributed.parts import part
from clearhead.distributed.refusing import refusing
from clearhead.masks import Sizes
from clearhead.measuring import count_groups, distance_bins, groups_at_queries, query_offset
from clearhead.observables import Observables, Observation, measured

KINDS = {name: quantity.shape.split() for name, quantity in measured(Observation).items()}


def per_query(name: str) -> bool:
    """Whether a quantity has one entry a query, in its third dimension."""
    return KINDS[name][2] == "Tq"


def per_key(name: str) -> bool:
    """Whether a quantity has one entry a key, in its last dimension."""
    return KINDS[name][-1] == "Tk" and name != "rows"


@dataclass(frozen=True, eq=False, repr=False)
class ShardedObservation(Observation):
    """The observation of one rank: its own queries and keys, of calls over all ranks.

    `query_positions` and `key_positions`, int64, say where this rank's queries and keys stand among all of them (counted from
    the call's own query and key 0). `mean` is over this rank's queries; `.whole()` has those of all.
    """

    query_positions: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    key_positions: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    _mesh: DeviceMesh | None = None
    _queries: Layout | None = None
    _keys: Layout | None = None
    _first: int = 0

    def whole(self) -> Observation:
        """What one process would have observed, on every rank. Every rank must call it; memory is that of all positions."""
        if self._mesh is None or self._queries is None or self._keys is None:
            raise RuntimeError("an observation of no mesh")
        mesh, queries, keys = self._mesh, self._queries, self._keys
        B, Hq, t = self.lse.shape
        measured = {name: x.detach() for name, x in self.values.items() if name != "output"}
        mine, out = dict(measured), self.values.get("output")
        local = out.to_local() if isinstance(out, DTensor) else out
        if local is not None:
            mine["output"] = local.reshape(B, Hq, t, local.shape[-1])
        moved = together({n: x for n, x in mine.items() if per_query(n)}, lambda x: whole(x, mesh, queries)) | together(
            {n: x for n, x in mine.items() if per_key(n)}, lambda x: whole(x, mesh, keys), dim=-1
        )
        values = refusing({name: moved.get(name, x) for name, x in measured.items()}, *self.values.values())
        if local is not None:
            values["output"] = moved["output"].reshape(*local.shape[:-2], queries.length, local.shape[-1])
        values = {name: values[name] for name in self.values}
        padded = self.padded
        if padded is not None:
            padded = whole(padded.to(torch.uint8), mesh, queries, dim=1).bool()
        return Observation(values, self._first, padded, self.first_key)


def by_heads(
    calls: Sequence[CheckedCall],
    call: CheckedCall,
    want: Observables,
    impl: str,
    mesh: DeviceMesh,
    queries: Layout,
    keys: Layout,
) -> ShardedObservation:
    """Whole rows of some heads, measured here, to all heads of this rank's positions."""
    (mine,) = calls
    h, Hq = mine.problem.query.shape[1], call.problem.query.shape[1]
    first = mesh.get_local_rank() * h
    heads = slice(first, first + h)
    Dv = call.problem.value.shape[3]
    weight, rows = want.output_weight, want.row_weights
    if weight is not None:
        weight = weight[:, first * Dv : (first + h) * Dv]
    if rows is not None and rows.ndim == 3 and rows.shape[1] == Hq > 1:
        rows = rows[:, heads]
    seen = observe_call(mine, dataclasses.replace(want, output_weight=weight, row_weights=rows), impl, gradients=False)
    rank, values = mesh.get_local_rank(), dict(seen.values)
    if not _differs_by_head(call):  # counts are the same for every head: nothing to send
        for name in {"visible", "viewers"} & set(values):
            place = queries if per_query(name) else keys
            values[name] = values[name][:, :1].index_select(2, place.positions(rank).to(seen.lse.device))
    values["output"] = values["output"].reshape(seen.lse.shape + values["output"].shape[-1:])
    sent = {n: x.expand(-1, h, *x.shape[2:]) for n, x in values.items() if x is seen.values.get(n) or n == "output"}
    values |= together({n: x for n, x in sent.items() if per_query(n)}, lambda x: to_sequence(x, mesh, queries))
    values |= together({n: x for n, x in sent.items() if per_key(n)}, lambda x: to_sequence(x, mesh, keys), dim=-1)
    others = {n: x for n, x in sent.items() if not per_query(n) and not per_key(n) and n != "group_queries"}
    values |= {name: _every_head(x, mesh) for name, x in others.items()}
    return _sharded(values, seen, mesh, queries, keys)


def by_queries(
    calls: Sequence[CheckedCall],
    call: CheckedCall,
    want: Observables,
    impl: str,
    mesh: DeviceMesh,
    queries: Layout,
    keys: Layout,
) -> ShardedObservation:
    """Runs of queries, each measured against all keys here, to all of this rank's queries; sums over queries go to all."""
    sizes, rank = call.sizes, mesh.get_local_rank()
    spans = [x for run in queries.spans(rank) for x in _unlike(run, sizes.Tq, sizes.Tk)]
    offset = query_offset(want, sizes.Tq, sizes.Tk)
    groups, bins = count_groups(want.key_groups, want.query_groups), distance_bins(offset, sizes.Tq, sizes.Tk)
    runs = []
    for span in spans:
        of_run = _run_of(calls, queries.spans(rank), span)
        runs.append(observe_call(of_run, _of_run(want, span, offset, sizes.Tq), impl, gradients=False))
    values: dict[str, Tensor] = {}
    sums: dict[str, Tensor] = {}
    for name in _measured_anywhere(runs[0], want):
        if name == "rows":
            values[name] = _rows(runs, spans, want.rows, sizes, mesh)
            continue
        found = [_grown(name, run.values[name], groups, bins) for run in runs]
        if per_query(name):
            values[name] = torch.cat(_expanded(found, runs[0].lse.shape[:2]), 2)
        elif name == "value_norm":
            values[name] = found[0].index_select(-1, keys.positions(rank).to(found[0].device))
        elif per_key(name):
            sums[name] = found[0] if len(found) == 1 else torch.stack(found).sum(0)
        elif name == "group_queries":
            values[name] = over_ranks(sum(found[1:], found[0]), mesh)
    values |= together(sums, lambda x: summed_parts(x, mesh, keys), dim=-1)
    if "group_mean" in runs[0].values:
        pairs = [[_grown(n, run.values[n], groups, bins) for n in ("group_mean", "group_queries")] for run in runs]
        total = over_ranks(torch.stack([mean * count[..., None] for mean, count in pairs]).sum(0), mesh)
        values["group_mean"] = total / values["group_queries"][..., None].clamp(min=1)
    if want.map:
        values |= _maps(runs, spans, call, want, mesh)
    ordered = {name: values[name] for name in _measured_anywhere(runs[0], want)}
    return _sharded(ordered, runs[0], mesh, queries, keys, padded=_padded(call, queries.positions(rank)), offset=offset)


def _sharded(
    values: dict[str, Tensor],
    seen: Observation,
    mesh: DeviceMesh,
    queries: Layout,
    keys: Layout,
    *,
    padded: Tensor | None = None,
    offset: int | None = None,
) -> ShardedObservation:
    rank, device = mesh.get_local_rank(), seen.lse.device
    at, from_key = queries.positions(rank).to(device), keys.positions(rank).to(device)
    if seen.padded is not None and padded is None:
        padded = seen.padded[:, at]
    first = seen.offset if offset is None else offset + seen.first_key
    mine = first + (int(at[0]) if len(at) else 0)
    return ShardedObservation(
        values, mine, padded, seen.first_key, seen.left_out, at, from_key, mesh, queries, keys, first
    )


def _padded(call: CheckedCall, at: Tensor) -> Tensor | None:
    padded = call.mask.padded(call.sizes)
    return None if padded is None else padded[:, at.to(padded.device)]


def _differs_by_head(call: CheckedCall) -> bool:
    """Whether heads may see different keys."""
    dense, bias = call.problem.plan.dense, call.problem.bias
    return any(x is not None and x.shape[1] > 1 for x in (dense, bias))


def _every_head(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """Every rank's heads, of something else than positions."""
    if mesh.size() == 1 or not x.numel():
        return x if x.numel() else x.new_zeros(x.shape[0], x.shape[1] * mesh.size(), *x.shape[2:])
    return (
        DTensor.from_local(x.contiguous(), mesh, [Shard(1)], run_check=False)
        .redistribute(mesh, [Replicate()])
        .to_local()
    )


def _expanded(tensors: list[Tensor], lead: Sequence[int]) -> list[Tensor]:
    """Tensors whose first two dimensions may be 1 in some and not in others."""
    if len({x.shape[:2] for x in tensors}) == 1:
        return tensors
    return [x.expand(*lead, *x.shape[2:]) for x in tensors]


@dataclass(frozen=True, eq=False)
class _OfRun(Observables):
    """What to measure of a run of queries; its map has the cells that the whole map has there."""

    start: int = 0
    count: int = 0
    queries: int = 0

    def map_bounds(self, length: int) -> list[int]:
        """Of the rows where `length` is this run's, which no other length is."""
        if length != self.count:
            return super().map_bounds(length)
        return [b - self.start for b in row_bounds(self, self.start, self.start + self.count, self.queries)]


def row_bounds(want: Observables, start: int, end: int, queries: int) -> list[int]:
    """Where the whole map's rows begin between two queries, and both of these."""
    inside = [b for b in Observables.map_bounds(want, queries) if start < b < end]
    return [start, *inside, end] if start < end else [start]


def _unlike(span: tuple[int, int], Tq: int, Tk: int) -> list[tuple[int, int]]:
    """A run, in two where it is as long as there are keys and yet not the whole: `_OfRun` tells rows by their number."""
    start, end = span
    if end - start != Tk or end - start == Tq or Tk == 1:
        return [span]
    return [(start, end - 1), (end - 1, end)]


def _run_of(calls: Sequence[CheckedCall], spans: list[tuple[int, int]], span: tuple[int, int]) -> CheckedCall:
    """The call of a run, cut where `_unlike` cut it."""
    for call, (start, end) in zip(calls, spans, strict=True):
        if (start, end) == span:
            return call
        if start <= span[0] and span[1] <= end:
            return _cut(call, span[0] - start, span[1] - start)
    raise RuntimeError(f"no run holds {span}")


def _cut(call: CheckedCall, start: int, end: int) -> CheckedCall:
    p = call.problem
    return part(call, p.query[:, :, start:end], p.key, p.value, heads=slice(None), queries=slice(start, end))


def _of_run(want: Observables, span: tuple[int, int], offset: int, Tq: int) -> Observables:
    start, end = span
    given = {field.name: getattr(want, field.name) for field in dataclasses.fields(Observables)}
    groups = want.query_groups
    if groups is None and want.key_groups is not None:
        groups = groups_at_queries(want.key_groups, Tq, offset)
    given |= {
        "first_query": offset + want.first_key + start,
        "rows": tuple(r % Tq - start for r in want.rows if start <= r % Tq < end),
        "query_groups": None if groups is None else groups[..., start:end],
        "row_weights": None if want.row_weights is None else want.row_weights[..., start:end],
    }
    return _OfRun(**given, start=start, count=end - start, queries=Tq)


def _grown(name: str, x: Tensor, groups: int, bins: int) -> Tensor:
    """As many groups and bins as the whole has: a run knows only those it meets."""
    fill = -1 if name.endswith("_keys") else 0
    for d, letter in enumerate(KINDS[name]):
        size = {"G": groups, "bins": bins}.get(letter)
        if size is not None and x.shape[d] < size:
            x = pad(x, (*(0, 0) * (x.ndim - 1 - d), 0, size - x.shape[d]), value=fill)
    return x


def _measured_anywhere(run: Observation, want: Observables) -> list[str]:
    """What every rank measured: chosen rows may all be others'."""
    return [name for name in run.values if name != "rows"] + ["rows"] * bool(want.rows)


def _rows(
    runs: list[Observation], spans: list[tuple[int, int]], wanted: tuple[int, ...], sizes: Sizes, mesh: DeviceMesh
) -> Tensor:
    """Chosen rows, each of which one rank has."""
    B, Hq = runs[0].lse.shape[:2]
    every = runs[0].lse.new_zeros(B, Hq, len(wanted), sizes.Tk)
    for run, (start, end) in zip(runs, spans, strict=True):
        mine = [n for n, row in enumerate(wanted) if start <= row % sizes.Tq < end]
        if mine:
            every[:, :, mine] = run.rows
    return over_ranks(every, mesh)


def _maps(
    runs: list[Observation], spans: list[tuple[int, int]], call: CheckedCall, want: Observables, mesh: DeviceMesh
) -> dict[str, Tensor]:
    """Cells from the pieces of them that runs met: sums by how many pairs each had in sight."""
    sizes = call.sizes
    rows, columns = (want.map_bounds(n) for n in (sizes.Tq, sizes.Tk))
    B, Hq = runs[0].lse.shape[:2]
    sums = runs[0].map_mean.new_zeros(B, Hq, len(rows) - 1, len(columns) - 1)
    tops, seen = torch.zeros_like(sums), torch.zeros_like(sums, dtype=torch.float64)
    for run, (start, end) in zip(runs, spans, strict=True):
        inside = row_bounds(want, start, end, sizes.Tq)
        counts = count_cells(call, inside, columns).expand(B, Hq, -1, -1)
        for piece, (top, _) in enumerate(pairwise(inside)):
            cell = bisect_right(rows, top) - 1
            sums[:, :, cell] += (run.map_mean[:, :, piece] * counts[:, :, piece]).to(sums.dtype)
            tops[:, :, cell] = torch.maximum(tops[:, :, cell], run.map_max[:, :, piece])
            seen[:, :, cell] += counts[:, :, piece]
    sums, seen = over_ranks(sums, mesh), over_ranks(seen, mesh)
    return {"map_mean": (sums / seen.clamp(min=1)).to(sums.dtype), "map_max": over_ranks(tops, mesh, "max")}
