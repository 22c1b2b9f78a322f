"""What the rest of the library calls.

This file and those it imports need no numba: they turn a `Problem` into an array of addresses and numbers (`call`), cut the
work into parts, and run a kernel (`threads`), which is compiled or loaded when first needed (`build`).
"""

from __future__ import annotations

import dataclasses
from array import array

import numpy as np
import torch
from torch import Tensor

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu import threads
from clearhead.kernels.cpu.call import Builder, describe
from clearhead.kernels.cpu.machine import shape
from clearhead.kernels.problem import Gradients, Problem, tighten
from clearhead.observables import Observables

BLOCK = 128  # as in `strip`, which cannot be imported without numba
STRIPS = 4  # strips of a task: a block of keys is fetched once for all of them
KEPT = 1 << 20  # bytes of weights that are kept while they are observed
SUMMED = (
    64  # observing adds up over queries in about this many parts altogether: enough for the threads of most machines
)


def attention(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output in the inputs' dtype, and L in float32."""
    p = dataclasses.replace(problem, plan=tighten(problem.plan))
    out, lse, call = _begin(p)
    if out.numel() or lse.numel():
        strips = -(-p.query.shape[2] // shape().lanes)
        together = _strips_a_task(p, strips)
        bounds = [*range(0, strips, together), strips]
        _cut(call, bounds, together)
        threads.run("forward", call, _scratch(p, together), p.query.shape[0] * p.query.shape[1] * (len(bounds) - 1))
    return out, lse


def backward(
    problem: Problem, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor | None, with_bias: bool = True
) -> Gradients:
    """Gradients of every input, query's in the inputs' dtype and the others in float32; None where there is no such input.

    The bias's costs a pass of its own: `with_bias=False` where nobody wants it.
    """
    p = dataclasses.replace(problem, plan=tighten(problem.plan))
    call = describe(p)
    B, Hq, Tq, D = p.query.shape
    _, Hk, Tk, Dv = p.value.shape
    lanes = shape().lanes
    strips = -(-Tq // lanes)
    call.strided(at.OUT, out)
    call.strided(at.GRAD, grad_out)
    call.address(at.LSE, lse.float().contiguous())
    if grad_lse is not None:
        call.address(at.GRAD_LSE, grad_lse.float().contiguous())
    spans = _spans(p, lanes)
    parts = _backward_parts(B * Hk, strips)
    padded = -(-Tk // shape().tile_rows) * shape().tile_rows
    d_query = torch.empty(B, Hq, Tq, D, dtype=p.query.dtype)
    d_key, d_value = (torch.zeros(B, Hk, parts, padded, -(-n // shape().width) * shape().width) for n in (D, Dv))
    for place, x in ((at.D_QUERY, d_query), (at.D_KEY, d_key), (at.D_VALUE, d_value)):
        call.address(place, x)
    call.put(at.KEYS_PADDED, padded)
    c = torch.zeros(B, Hq, Tq) if p.sinks is not None else None
    if c is not None:
        call.address(at.C, c)
    if B * Hq * Tq:
        together = STRIPS
        _cut(call, _even_parts(spans, parts), together)
        threads.run("backward", call, _backward_scratch(p, together), B * Hk * parts)
    d_key, d_value = (x[:, :, 0] if parts == 1 else x.sum(2) for x in (d_key, d_value))
    d_sinks = None
    if c is not None and p.sinks is not None:
        d_sinks = (torch.exp(p.sinks.float()[:, None] - lse.float()) * c).sum((0, 2))
    d_bias = None
    if p.bias is not None and with_bias:
        d_bias = torch.zeros(p.bias.shape)
        if B * Hq * Tq * Tk:
            call.strided(at.D_BIAS, d_bias)
            pieces = strips if d_bias.shape[2] > 1 else -(-Tk // BLOCK) if d_bias.shape[3] > 1 else 1
            threads.run("backward", call, _backward_scratch(p, 1), d_bias.shape[0] * d_bias.shape[1] * pieces)
    return Gradients(d_query, d_key[..., :Tk, :D], d_value[..., :Tk, :Dv], d_bias, d_sinks)


def _backward_parts(heads: int, strips: int) -> int:
    """How many sums of key and value gradients there are for a head: more cost memory and time, fewer leave threads idle."""
    wanted = -(-SUMMED // max(1, heads))
    rows_each = STRIPS if heads <= 2 else 4 * STRIPS
    return max(1, min(wanted, strips // rows_each))


def _backward_scratch(p: Problem, together: int) -> int:
    """Floats one worker needs; `backward.backward_strips` lays them out."""
    lanes, rows, width = shape().lanes, shape().tile_rows, shape().width
    D, Dv = p.query.shape[3], p.value.shape[3]
    tall = -(-D // rows) * rows
    wide = sum(-(-n // width) * width for n in (D, Dv))
    strip = (D + Dv + wide + -(-max(D, Dv) // rows) * rows + 5) * lanes
    blocks = BLOCK * (3 * lanes + 2 + 3 * tall + Dv + 1)
    return 32 + together * strip + blocks + lanes * (max(D, Dv, 1)) + together * (lanes * (wide + 2) + 4)


def _begin(p: Problem) -> tuple[Tensor, Tensor, Builder]:
    """Room for the results, and the call that names it."""
    B, Hq, Tq, _ = p.query.shape
    out = p.query.new_empty(B, Hq, Tq, p.value.shape[3])
    lse = p.query.new_empty(B, Hq, Tq, dtype=torch.float32)
    call = describe(p)
    call.strided(at.OUT, out)
    call.address(at.LSE, lse)
    return out, lse, call


def _cut(call: Builder, bounds: list[int], together: int) -> None:
    """Parts of a head's strips, `together` strips at a time."""
    call.address(at.TASKS, array("q", bounds))
    call.put(at.PARTS, len(bounds) - 1)
    call.put(at.STRIPS_A_TASK, together)


def _strips_a_task(p: Problem, strips: int) -> int:
    """Fewer strips at a time where there would be too few tasks for every thread to have some."""
    heads = p.query.shape[0] * p.query.shape[1]
    together = STRIPS
    while together > 1 and heads * -(-strips // together) < 3 * threads.workers():
        together //= 2
    return together


def _scratch(p: Problem, together: int) -> int:
    """Floats one worker needs; `forward.attend_strips` lays them out."""
    lanes, rows = shape().lanes, shape().tile_rows
    D, wide = p.query.shape[3], -(-p.value.shape[3] // rows) * rows
    strip = (D + wide + 4) * lanes + 16
    return together * strip + BLOCK * (lanes + D + 2 * wide + 1) + lanes * (max(D, wide, 1) + 1)


def observe(
    problem: Problem, observables: Observables, offset: int, padded: Tensor | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output in the inputs' dtype, and what was measured in float32; gradients are not recorded."""
    p = dataclasses.replace(problem, plan=tighten(problem.plan))
    out, lse, call = _begin(p)
    B, Hq, Tq, _ = p.query.shape
    Tk, lanes = p.key.shape[2], shape().lanes
    strips = -(-Tq // lanes)
    spans = _spans(p, lanes)
    longest = max(BLOCK, int(spans.max(initial=0)))
    columns = min(Tk, observables.map)
    # Weights are kept until a strip is done; fewer strips at a time keep them in the second-level cache.
    together = max(1, min(STRIPS, KEPT // (4 * lanes * longest)))
    parts = max(1, min(-(-strips // together), -(-SUMMED // max(1, B * Hq))))
    found, sums = _results(p, observables, padded, call, parts)
    if B * Hq * Tq:
        _cut(call, _even_parts(spans, parts), together)
        call.put(at.OBSERVING, 1)
        call.put(at.LONGEST, longest)
        watched = (2 + 2 * (longest // BLOCK) + longest) * lanes
        search = 2 + 2 * observables.top_k + 2 * (2 * observables.top_k + 16) + longest
        floats = _scratch(p, together) + together * watched + (10 + max(4 * columns, search)) * lanes
        threads.run("forward", call, floats, B * Hq * parts)
    found = {"lse": lse} | _finished(p, observables, padded, found | sums)
    if p.sinks is not None:
        found["sink"] = torch.exp(p.sinks.float()[:, None] - lse)
    return out, found


def _spans(p: Problem, lanes: int) -> np.ndarray:
    """How many keys each strip meets at most, in whole blocks: an array of strips, the same for all samples."""
    Tq = p.query.shape[2]
    lo, hi = p.plan.lo.amin(0).numpy(), p.plan.hi.amax(0).numpy()
    starts = np.arange(0, Tq, lanes)
    if not len(starts):
        return np.zeros(0, np.int64)
    first, end = np.minimum.reduceat(lo, starts), np.maximum.reduceat(hi, starts)
    blocks: np.ndarray = np.maximum(0, -(-end // BLOCK) - first // BLOCK) * BLOCK
    return blocks


def _even_parts(spans: np.ndarray, parts: int) -> list[int]:
    """Bounds that cut strips into parts of about equal work."""
    done = np.cumsum(spans + BLOCK)  # a strip has work of its own beside its keys
    bounds = np.searchsorted(done, done[-1] * np.arange(1, parts) / parts) + 1
    return [0, *bounds.tolist(), len(spans)]


def _results(
    p: Problem, observables: Observables, padded: Tensor | None, call: Builder, parts: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Room for everything that is asked for, written down in the call: per query, and summed over queries by part."""
    B, Hq, Tq, _ = p.query.shape
    Tk = p.key.shape[2]
    want, found, sums = observables, dict[str, Tensor](), dict[str, Tensor]()

    def room(name: str, place: int, *more: int, dtype: torch.dtype = torch.float32) -> None:
        found[name] = torch.empty(B, Hq, Tq, *more, dtype=dtype)
        call.address(place, found[name])

    checked = p.plan.query_labels is not None or p.plan.dense is not None or p.bias is not None
    if checked:  # intervals do not say how many keys a query may see
        room("visible", at.VISIBLE)
    if want.max_logit:
        room("max_logit", at.MAX_LOGIT)
    if want.entropy:
        room("entropy", at.ENTROPY)
    if want.top_k:
        room("top_keys", at.TOP_KEYS, want.top_k, dtype=torch.int64)
        room("top_weights", at.TOP_WEIGHTS, want.top_k)
        call.put(at.K, want.top_k)
    if want.positions:
        for name, place in (("self_weight", at.SELF), ("previous_weight", at.PREVIOUS), ("first_weight", at.FIRST)):
            room(name, place)
    if want.distance:
        room("distance", at.DISTANCE)
    if want.token_ids is not None:
        room("same_token", at.SAME)
        room("after_same_token", at.AFTER_SAME)
        tokens = at.small_integers(torch.atleast_2d(want.token_ids))
        call.address(at.TOKENS, tokens)
        call.put(at.TOKENS_B, Tk if len(tokens) > 1 else 0)
    if want.rows:
        found["rows"] = torch.zeros(B, Hq, len(want.rows), Tk)
        call.address(at.ROWS, found["rows"])
        call.address(at.ROW_NUMBERS, torch.tensor([row % Tq for row in want.rows], dtype=torch.int32))
        call.put(at.ROW_COUNT, len(want.rows))
    if padded is not None:
        call.address(at.PADDED, padded.contiguous())
        call.put(at.PADDED_B, Tq if len(padded) > 1 else 0)
    if want.received:
        sums["received"] = torch.zeros(B * Hq, parts, Tk, dtype=torch.float64)
        call.address(at.RECEIVED, sums["received"])
    if want.map:
        rows, columns = (min(T, want.map) for T in (Tq, Tk))
        for T, cells, place in ((Tq, rows, at.MAP_ROW), (Tk, columns, at.MAP_COLUMN)):
            bounds = np.arange(cells + 1) * T // max(1, cells)
            call.address(place, torch.from_numpy(np.repeat(np.arange(cells, dtype=np.int32), np.diff(bounds))))
            if place == at.MAP_COLUMN:
                call.address(at.MAP_COLUMN_BOUNDS, torch.from_numpy(bounds.astype(np.int32)))
        places = [("map_mean", at.MAP_SUM), ("map_max", at.MAP_MAX)] + [("map_count", at.MAP_COUNT)] * checked
        for name, place in places:
            sums[name] = torch.zeros(B * Hq, parts, rows, columns)
            call.address(place, sums[name])
        call.put(at.MAP_ROWS, rows, columns)
    return found, sums


def _finished(
    p: Problem, observables: Observables, padded: Tensor | None, found: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Parts added up, always in the same order; sums turned into means."""
    B, Hq = p.query.shape[:2]
    if "visible" in found:
        found["visible"] = found["visible"].to(torch.int64)
    else:  # in front, as every implementation names it
        found = {"visible": (p.plan.hi - p.plan.lo).clamp(min=0)[:, None]} | found
    if observables.received:
        found["received"] = found["received"].sum(1).float().view(B, Hq, -1)
    if observables.map:
        if "map_count" in found:
            pairs = found.pop("map_count").sum(1).view(B, Hq, *found["map_mean"].shape[2:])
        else:
            pairs = _pairs(p, padded, *found["map_mean"].shape[2:])
        sums, highest = (found[name] for name in ("map_mean", "map_max"))
        sums = (sums.sum(1) if sums.shape[1] > 1 else sums[:, 0]).view(B, Hq, *sums.shape[2:])
        highest = (highest.amax(1) if highest.shape[1] > 1 else highest[:, 0]).view(sums.shape)
        found["map_mean"] = sums / pairs.clamp(min=1)
        found["map_max"] = torch.where(sums.isnan(), sums, highest)  # the kernel's maximum passes NaN over
    return found


def _pairs(p: Problem, padded: Tensor | None, rows: int, columns: int) -> Tensor:
    """How many pairs of each cell of the map may be seen, from the intervals alone; (B or 1, 1, rows, columns)."""
    Tq, Tk = p.query.shape[2], p.key.shape[2]
    lo, hi = p.plan.lo.numpy(), p.plan.hi.numpy()
    if padded is not None:
        hi = np.where(padded.numpy(), lo, hi)
    starts = np.arange(rows) * Tq // max(1, rows)
    ends = np.arange(columns + 1, dtype=np.int32) * Tk // max(1, columns)
    # Keys seen before each bound, added up over the queries of each cell; the difference of two bounds is a column.
    before = np.maximum(np.minimum(ends, hi[..., None]) - lo[..., None], 0)
    summed = np.add.reduceat(before, starts, axis=1, dtype=np.float32) if rows else before.astype(np.float32)
    return torch.from_numpy(np.diff(summed, axis=-1))[:, None]
