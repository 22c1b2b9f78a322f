"""What the rest of the library calls.

This file and those it imports need no numba: they turn a `Problem` into an array of addresses and numbers (`call`), cut the
work into parts, and run a kernel (`threads`), which is compiled or loaded when first needed (`build`).
"""

from __future__ import annotations

import dataclasses
import functools
from array import array

import numpy as np
import torch
from torch import Tensor

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu import threads
from clearhead.kernels.cpu.call import Builder, describe
from clearhead.kernels.cpu.machine import BLOCK, CHAINS, shape
from clearhead.kernels.problem import Gradients, Problem, tighten
from clearhead.observables import Observables

ALONE = 200_000  # multiply-adds that are done before another thread has woken up
STRIPS = 4  # strips of a task: a block of keys is fetched once for all of them
DECODED_ROWS, DECODED_QUERIES = 16, 4  # more rows or queries than these fill a strip well enough
DECODED_CHUNK = 512  # keys; smaller chunks cost more in merging than they save in waiting
GRADIENTS = 16  # tasks of the backward pass, over all key heads, as far as there is memory
PARTIAL_BYTES = 64 << 20  # for its sums by part
KEPT = 1 << 20  # bytes of weights that are kept while they are observed
SUMMED = 64  # parts, over all heads, in which observing adds up over queries: enough for the threads of most machines


def attention(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output in the inputs' dtype, and L in float32."""
    p = dataclasses.replace(problem, plan=tighten(problem.plan))
    out, lse, call = _begin(p)
    if _few_queries(p) and _decode(p, call):
        return out, lse
    if out.numel() or lse.numel():
        strips = -(-p.query.shape[2] // shape().lanes)
        together = _strips_a_task(p, strips)
        bounds = [*range(0, strips, together), strips]
        _cut(call, bounds, together)
        tasks = p.query.shape[0] * p.query.shape[1] * (len(bounds) - 1)
        alone = p.query.numel() * p.key.shape[2] < ALONE
        threads.run("forward", call, _scratch(p, together), tasks, most=1 if alone else tasks)
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
    parts = _backward_parts(B * Hk, strips, 4 * (p.key.numel() + p.value.numel()))
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


def _backward_parts(heads: int, strips: int, each: int) -> int:
    """How many sums of key and value gradients, of `each` bytes, there are: more cost memory, fewer leave threads idle."""
    wanted = -(-GRADIENTS // max(1, heads))
    rows_each = STRIPS if heads <= 2 else 4 * STRIPS
    return max(1, min(wanted, strips // rows_each, PARTIAL_BYTES // max(1, each)))


def _backward_scratch(p: Problem, together: int) -> int:
    """Floats one worker needs; `backward.backward_strips` lays them out."""
    lanes, rows, width = shape().lanes, shape().tile_rows, shape().width
    D, Dv = p.query.shape[3], p.value.shape[3]
    tall = -(-D // rows) * rows
    wide = sum(-(-n // width) * width for n in (D, Dv))
    strip = (D + Dv + wide + -(-max(D, Dv) // rows) * rows + 5) * lanes
    blocks = BLOCK * (3 * lanes + 2 + 3 * tall + Dv + 1)
    return 32 + together * strip + blocks + lanes * (max(D, Dv, 1)) + together * (lanes * (wide + 2) + 4)


def _few_queries(p: Problem) -> bool:
    """Whether `decode` does this call: few queries a key head, keys and values of whole registers that lie side by side."""
    rows, width = p.groups * p.query.shape[2], shape().width
    return (
        1 <= rows <= DECODED_ROWS
        and p.query.shape[2] <= DECODED_QUERIES
        and p.key.shape[2] >= 4 * width
        and p.query.shape[3] % width == p.value.shape[3] % width == 0
        and 0 not in (*p.query.shape, p.value.shape[3])
        and p.key.stride(3) == p.value.stride(3) == 1
    )


def _decode(p: Problem, call: Builder) -> bool:
    """Few queries: chunks of keys, then their merger. False where NaN came out, which a strip can keep to its own queries."""
    B, Hk, Tk, Dv = p.value.shape
    rows = p.groups * p.query.shape[2]
    together = rows if rows <= 2 else -(-rows // 4) * 4
    chunk = max(DECODED_CHUNK, -(-Tk * B * Hk // SUMMED // BLOCK) * BLOCK)
    parts = -(-Tk // chunk)
    call.address(at.DECODED, torch.empty(B * Hk * parts * together * (Dv + 2)))
    call.put(at.CHUNK, chunk)
    call.put(at.PARTS, parts)
    lanes, width = shape().lanes, shape().width
    floats = together * (p.query.shape[3] + 2 * BLOCK + width + lanes) + width + Dv
    finished = threads.run("decode", call, floats, B * Hk * parts)
    if parts > 1:
        call.put(at.MERGING, 1)
        finished = threads.run("decode", call, floats, B * Hk)
        call.put(at.MERGING, 0)
    return not finished[at.DIRTY]


def multiply_adds(rounds: int) -> int:
    """Keep every thread busy with multiply-adds on registers alone; how many operations that was, two each."""
    threads.run("peak", Builder(), 64, rounds)
    return 2 * rounds * CHAINS * shape().width * min(rounds, threads.workers())


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
    found = _results(p, observables, padded, call, parts)
    if B * Hq * Tq:
        _cut(call, _even_parts(spans, parts), together)
        call.put(at.OBSERVING, 1)
        call.put(at.LONGEST, longest)
        watched = (2 + 2 * (longest // BLOCK) + longest) * lanes
        search = 2 + 2 * observables.top_k + 2 * (2 * observables.top_k + 16) + longest
        floats = _scratch(p, together) + together * watched + (10 + max(4 * _padded_columns(columns), search)) * lanes
        threads.run("forward", call, floats, B * Hq * parts)
        if observables.received or observables.map:
            call.put(at.MERGING, 1)
            threads.run("forward", call, floats, B * Hq)
    if "visible" in found:
        found["visible"] = found["visible"].to(torch.int64)
    else:  # in front, as every implementation names it
        found = {"visible": (p.plan.hi - p.plan.lo).clamp(min=0)[:, None].to(torch.int64)} | found
    found["lse"] = lse
    if p.sinks is not None:
        found["sink"] = torch.exp(p.sinks.float()[:, None] - lse)
    return out, found


def _spans(p: Problem, lanes: int) -> np.ndarray:
    """How many keys each strip meets at most, in whole blocks: an array of strips, the same for all samples."""
    Tq = p.query.shape[2]
    starts = np.arange(0, Tq, lanes)
    if not p.plan.lo.numel():
        return np.zeros(len(starts), np.int64)
    lo, hi = p.plan.lo.amin(0).numpy(), p.plan.hi.amax(0).numpy()
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
) -> dict[str, Tensor]:
    """Room for everything that is asked for, written down in the call; sums over queries by part, and their totals."""
    B, Hq, Tq, _ = p.query.shape
    Tk = p.key.shape[2]
    want, found = observables, dict[str, Tensor]()

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
    if want.rows:
        found["rows"] = torch.zeros(B, Hq, len(want.rows), Tk)
        call.address(at.ROWS, found["rows"])
        call.address(at.ROW_NUMBERS, torch.tensor([row % Tq for row in want.rows], dtype=torch.int32))
        call.put(at.ROW_COUNT, len(want.rows))
    if want.token_ids is not None:
        room("same_token", at.SAME)
        room("after_same_token", at.AFTER_SAME)
        tokens = at.small_integers(torch.atleast_2d(want.token_ids))
        call.address(at.TOKENS, tokens)
        call.put(at.TOKENS_B, Tk if len(tokens) > 1 else 0)
    if padded is not None:
        call.address(at.PADDED, padded.contiguous())
        call.put(at.PADDED_B, Tq if len(padded) > 1 else 0)
    if want.received:
        found["received"] = torch.zeros(B, Hq, Tk)
        call.address(at.RECEIVED_OUT, found["received"])
        call.address(at.RECEIVED, torch.empty(B * Hq, parts, Tk, dtype=torch.float64))
    if want.map:
        rows, columns = (min(T, want.map) for T in (Tq, Tk))
        padded_columns = _padded_columns(columns)
        row_of_query, _ = _cells(Tq, rows, rows)
        column_of_key, bounds = _cells(Tk, columns, padded_columns)
        call.address(at.MAP_ROW, row_of_query)
        call.address(at.MAP_COLUMN, column_of_key)
        call.address(at.MAP_COLUMN_BOUNDS, bounds)
        for place in (at.MAP_SUM, at.MAP_MAX, *[at.MAP_COUNT] * checked):
            call.address(place, torch.empty(B * Hq, parts, rows, padded_columns))
        for name, place in (("map_mean", at.MAP_MEAN_OUT), ("map_max", at.MAP_MAX_OUT)):
            whole = torch.zeros(B, Hq, rows, padded_columns)
            call.address(place, whole)
            found[name] = whole[..., :columns]
        call.put(at.MAP_ROWS, rows, padded_columns)
    return found


@functools.lru_cache(maxsize=16)
def _cells(T: int, cells: int, padded: int) -> tuple[Tensor, Tensor]:
    """The cell of every position, and where cells begin; cells that only fill a register up begin and end at T."""
    bounds = np.arange(cells + 1) * T // max(1, cells)
    cell_of = np.repeat(np.arange(cells, dtype=np.int32), np.diff(bounds))
    return torch.from_numpy(cell_of), torch.from_numpy(
        np.pad(bounds, (0, padded - cells), mode="edge").astype(np.float32)
    )


def _padded_columns(columns: int) -> int:
    """Columns of the map in whole registers."""
    width = shape().width
    return -(-columns // width) * width
