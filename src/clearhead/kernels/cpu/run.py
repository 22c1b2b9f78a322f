"""What the rest of the library calls.

This file and those it imports need no numba: they turn a `Problem` into an array of addresses and numbers (`call`), cut the
work into parts, and run a kernel (`threads`), which is compiled or loaded when first needed (`build`).
"""

from __future__ import annotations

import functools
from array import array

import numpy as np
import torch
from torch import Tensor

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu import threads
from clearhead.kernels.cpu.call import Builder, describe
from clearhead.kernels.cpu.machine import BLOCK, CHAINS, RUN, shape
from clearhead.kernels.problem import Gradients, Problem, viewers_by_intervals, visible_by_intervals
from clearhead.kernels.terms import Terms
from clearhead.measuring import Measuring
from clearhead.observables import Observables
from clearhead.plans import Plan

ALONE = 200_000  # multiply-adds that are done before another thread has woken up
STRIPS = 4  # strips of a task: a block of keys is fetched once for all of them
DECODED_ROWS, DECODED_QUERIES = 16, 4  # more rows or queries than these fill a strip well enough
DECODED_CHUNK = 512  # keys; smaller chunks cost more in merging than they save in waiting
GRADIENTS = 16  # tasks of the backward pass, over all key heads, as far as there is memory
PARTIAL_BYTES = 64 << 20  # for its sums by part
KEPT = 1 << 20  # bytes of weights that are kept while they are observed
SINGLE = 13  # vectors of one number a query that measuring a strip works with, as `observe` lays them out
SUMMED = 32  # parts, over all heads, in which observing adds up over queries: enough for the threads of most machines
LEAST_TASKS = 24  # over all heads, however much room their sums need


def attention(problem: Problem) -> tuple[Tensor, Tensor]:
    """Output in the inputs' dtype, and L in float32."""
    p = problem.tightened()
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
    problem: Problem,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    with_bias: bool = True,
    terms: Terms | None = None,
) -> Gradients:
    """Gradients of every input, query's in the inputs' dtype and the others in float32; None where there is no such input.

    The bias's costs a pass of its own: `with_bias=False` where nobody wants it. `terms`: those of measured numbers, whose
    c_i are in `grad_lse` already.
    """
    p = problem.tightened()
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
    parts = _backward_parts(B * Hk, strips, 4 * (p.key.numel() + p.value.numel()))
    padded = -(-Tk // shape().tile_rows) * shape().tile_rows
    d_query = torch.empty(B, Hq, Tq, D, dtype=p.query.dtype)
    d_key, d_value = (torch.zeros(B, Hk, parts, padded, -(-n // shape().width) * shape().width) for n in (D, Dv))
    for place, x in ((at.D_QUERY, d_query), (at.D_KEY, d_key), (at.D_VALUE, d_value)):
        call.address(place, x)
    call.put(at.KEYS_PADDED, padded)
    columns = 0 if terms is None else _terms(p, terms, call, padded)
    c = torch.zeros(B, Hq, Tq) if p.sinks is not None else None
    if c is not None:
        call.address(at.C, c)
    if B * Hq * Tq:
        together = STRIPS
        _cut(call, _even_parts(p, lanes, parts), together)
        threads.run("backward", call, _backward_scratch(p, together, columns), B * Hk * parts)
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
            threads.run("backward", call, _backward_scratch(p, 1, columns), d_bias.shape[0] * d_bias.shape[1] * pieces)
    return Gradients(d_query, d_key[..., :Tk, :D], d_value[..., :Tk, :Dv], d_bias, d_sinks)


def _backward_parts(heads: int, strips: int, each: int) -> int:
    """How many sums of key and value gradients, of `each` bytes, there are: more cost memory, fewer leave threads idle."""
    wanted = -(-GRADIENTS // max(1, heads))
    rows_each = STRIPS if heads <= 2 else 4 * STRIPS
    return max(1, min(wanted, strips // rows_each, PARTIAL_BYTES // max(1, each)))


def _terms(p: Problem, terms: Terms, call: Builder, padded: int) -> int:
    """Write down what gradients of measured numbers add; returns how many columns there are."""
    if terms.by_distance_or_token:
        raise RuntimeError("the CPU kernels have no terms by distance or token")
    for place, x in ((at.BELOW, terms.below), (at.SQUARE, terms.square), (at.AWAY, terms.distance)):
        if x is not None:
            call.address(place, x.float().contiguous())
            call.put(at.TERMS, 1)
    call.put(at.POSITION, terms.measuring.offset)
    if terms.rows is None or terms.keys is None:
        return 0
    columns = terms.rows.shape[3]
    keys = torch.nn.functional.pad(terms.keys.float(), (0, 0, 0, padded - p.key.shape[2])).contiguous()
    call.address(at.ROW_COLUMNS, terms.rows.float().contiguous())
    call.address(at.KEY_COLUMNS, keys)
    head = columns * padded
    call.put(at.KEY_COLUMNS_B, head * keys.shape[1] if len(keys) > 1 else 0, head if keys.shape[1] > 1 else 0)
    call.put(at.COLUMNS, columns)
    return columns


def _backward_scratch(p: Problem, together: int, columns: int) -> int:
    """Floats one worker needs; `backward.backward_strips` lays them out."""
    lanes, rows, width = shape().lanes, shape().tile_rows, shape().width
    D, Dv = p.query.shape[3], p.value.shape[3]
    tall = -(-D // rows) * rows
    wide = sum(-(-n // width) * width for n in (D, Dv))
    strip = (D + Dv + wide + -(-max(D, Dv) // rows) * rows + 9 + columns) * lanes
    blocks = BLOCK * (3 * lanes + 2 + 3 * tall + Dv + 1)
    return 32 + together * strip + blocks + lanes * max(D, Dv, columns, 1) + together * (lanes * (wide + 2) + 4)


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
    """Few queries, in chunks of keys that are merged. False where NaN came out, which a strip can keep to its own queries."""
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
    call.counters(at.FINISHED, B * Hk)
    threads.run("decode", call, floats, B * Hk * parts)
    call.put(at.FINISHED, 0)
    return not call.numbers[at.DIRTY]


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


def observe(problem: Problem, measuring: Measuring) -> tuple[Tensor, dict[str, Tensor]]:
    """Output in the inputs' dtype, and what was measured in float32; gradients are not recorded."""
    p = problem.tightened()
    out, lse, call = _begin(p)
    B, Hq, Tq, _ = p.query.shape
    lanes, m = shape().lanes, measuring
    strips = -(-Tq // lanes)
    spans = _spans(p, lanes)
    longest = max(BLOCK, int(spans.max(initial=0)))
    # Weights are kept until a strip is done; fewer strips at a time keep them in the second-level cache.
    together = max(1, min(STRIPS, KEPT // (4 * lanes * longest)))
    heads = max(1, B * Hq)  # every part has sums of its own, so fewer parts where each has many; some for every thread
    wanted = max(-(-SUMMED // (heads * (1 + m.groups))), -(-LEAST_TASKS // heads))
    parts = max(1, min(-(-strips // together), wanted))
    found = _results(p, m, call, parts)
    if B * Hq * Tq:
        _cut(call, _even_parts(p, lanes, parts), together)
        call.put(at.OBSERVING, 1)
        call.put(at.LONGEST, longest)
        watched = (2 + 3 * (longest // BLOCK) + longest + 2 * (longest // RUN)) * lanes
        search = 2 + 2 * m.want.top_k + 2 * (RUN * m.want.top_k + 16) + longest // RUN + 1
        work = 4 * call.numbers[at.MAP_COLUMNS] + max(search, 2 * m.groups * m.want.group_top_k)
        floats = _scratch(p, together) + together * watched + (SINGLE + m.groups + m.bins + work) * lanes
        if call.numbers[at.RECEIVED] or call.numbers[at.WEIGHTED] or m.want.map:
            call.counters(at.FINISHED, B * Hq)
        threads.run("forward", call, floats, B * Hq * parts)
    if "visible" in found:
        found["visible"] = found["visible"].to(torch.int64)
    else:  # in front, as every implementation names it
        found = {"visible": visible_by_intervals(p.plan)} | found
    if "viewers" in found:
        found["viewers"] = found["viewers"].to(torch.int64)
    elif m.want.received:
        found["viewers"] = viewers_by_intervals(p.plan, m.padded, p.key.shape[2])
    found["lse"] = lse
    if p.sinks is not None:
        found["sink"] = torch.exp(p.sinks.float()[:, None] - lse)
    return out, found


def _spans(p: Problem, lanes: int) -> np.ndarray:
    """How many keys each strip meets at most, in whole blocks: an array of strips, the same for all samples."""
    return p.plan.once(("spans", lanes), lambda: _find_spans(p.plan, p.query.shape[2], lanes))


def _find_spans(plan: Plan, Tq: int, lanes: int) -> np.ndarray:
    starts = np.arange(0, Tq, lanes)
    if not plan.lo.numel():
        return np.zeros(len(starts), np.int64)
    lo, hi = (x.numpy() for x in (plan.lo, plan.hi))
    first, end = np.minimum.reduceat(lo.min(0), starts), np.maximum.reduceat(hi.max(0), starts)
    blocks: np.ndarray = np.maximum(0, -(-end // BLOCK) - first // BLOCK) * BLOCK
    return blocks


def _even_parts(p: Problem, lanes: int, parts: int) -> list[int]:
    """Bounds that cut strips into parts of about equal work."""
    return p.plan.once(("parts", parts, lanes), lambda: _find_even_parts(_spans(p, lanes), parts))


def _find_even_parts(spans: np.ndarray, parts: int) -> list[int]:
    done = np.cumsum(spans + BLOCK)  # a strip has work of its own beside its keys
    bounds = np.searchsorted(done, done[-1] * np.arange(1, parts) / parts) + 1
    return [0, *bounds.tolist(), len(spans)]


def _results(p: Problem, measuring: Measuring, call: Builder, parts: int) -> dict[str, Tensor]:
    """Room for everything that is asked for, written down in the call; sums over queries by part, and their totals."""
    B, Hq, Tq, _ = p.query.shape
    m, want, found = measuring, measuring.want, dict[str, Tensor]()

    # Without keys the kernel writes none of the tokens' relations.
    made = torch.empty if p.key.shape[2] else torch.zeros

    def room(name: str, place: int, *more: int, dtype: torch.dtype = torch.float32) -> None:
        found[name] = x = made(B, Hq, Tq, *more, dtype=dtype)
        call.address(place, x)

    checked = p.plan.query_labels is not None or p.plan.dense is not None or p.bias is not None
    if checked:  # intervals do not say how many keys a query may see
        room("visible", at.VISIBLE)
    single = (
        (want.max_logit, "max_logit", at.MAX_LOGIT),
        (want.entropy, "entropy", at.ENTROPY),
        (want.sum_squares, "sum_squares", at.SQUARES),
        (want.positions, "self_weight", at.SELF),
        (want.positions, "previous_weight", at.PREVIOUS),
        (want.positions, "first_weight", at.FIRST),
        (want.distance, "distance", at.DISTANCE),
        (m.tokens is not None, "same_token", at.SAME),
        (m.tokens is not None, "after_same_token", at.AFTER_SAME),
    )
    for wanted, name, place in single:
        if wanted:
            room(name, place)
    call.put(at.POSITION, m.offset)
    call.put(at.FIRST_KEY, m.first_key)
    if want.top_k:
        call.put(at.K, want.top_k)
        room("top_keys", at.TOP_KEYS, want.top_k, dtype=torch.int64)
        room("top_weights", at.TOP_WEIGHTS, want.top_k)
    if want.top_k and m.value_norm is not None:
        room("top_contribution_keys", at.CONTRIBUTION_KEYS, want.top_k, dtype=torch.int64)
        room("top_contributions", at.CONTRIBUTIONS, want.top_k)
        call.address(at.NORMS, m.value_norm.contiguous())
    call.put(at.BINS, m.bins)
    if want.distance_histogram:
        room("distance_histogram", at.HISTOGRAM, m.bins)
    if want.rows:
        found["rows"] = torch.zeros(B, Hq, len(want.rows), p.key.shape[2])
        call.address(at.ROWS, found["rows"])
        call.address(at.ROW_NUMBERS, torch.tensor([row % Tq for row in want.rows], dtype=torch.int32))
        call.put(at.ROW_COUNT, len(want.rows))
    if m.tokens is not None:
        call.labels(at.TOKENS, at.TOKENS_B, at.small_integers(m.tokens))
        call.put(at.TOKENS_N, m.tokens.shape[1])
    if m.key_groups is not None and m.query_groups is not None:
        call.labels(at.KEY_GROUPS, at.KEY_GROUPS_B, m.key_groups.to(torch.int32).contiguous())
        call.labels(at.QUERY_GROUPS, at.QUERY_GROUPS_B, m.query_groups.to(torch.int32).contiguous())
        call.put(at.GROUPS_N, m.groups)
        room("group_weight", at.GROUP_WEIGHT, m.groups)
        if want.group_top_k:
            call.put(at.GROUP_K, want.group_top_k)
            room("group_top_keys", at.GROUP_TOP_KEYS, m.groups, want.group_top_k, dtype=torch.int64)
            room("group_top_weights", at.GROUP_TOP_WEIGHTS, m.groups, want.group_top_k)
    if m.padded is not None:
        call.labels(at.PADDED, at.PADDED_B, m.padded.contiguous())
    _received(p, m, call, parts, found, checked)
    if want.map:
        _map(p, want, call, parts, found, checked)
    return found


def _received(p: Problem, m: Measuring, call: Builder, parts: int, found: dict[str, Tensor], checked: bool) -> None:
    """Room for what keys receive."""
    B, Hq, Tk = p.query.shape[0], p.query.shape[1], p.key.shape[2]

    def sums(name: str, place: int, out: int, channels: int = 1) -> None:
        found[name] = torch.zeros(B, Hq, Tk)
        call.address(out, found[name])
        call.address(place, threads.room(name, B * Hq * parts * channels * Tk, torch.float64))

    if m.want.received:
        channels = 1 + m.groups if m.key_groups is not None else 1
        sums("received", at.RECEIVED, at.RECEIVED_OUT, channels)
        call.put(at.CHANNELS, channels)
        if m.key_groups is not None:
            found["received_by_group"] = torch.zeros(B, Hq, m.groups, Tk)
            call.address(at.BY_GROUP_OUT, found["received_by_group"])
        if checked:
            sums("viewers", at.VIEWERS, at.VIEWERS_OUT)
    if m.row_weights is not None:
        weights = m.row_weights.expand(-1, -1, p.query.shape[2]).contiguous()
        call.address(at.ROW_WEIGHTS, weights)
        Tq = weights.shape[2]
        call.put(at.ROW_WEIGHTS_B, Tq * weights.shape[1] if len(weights) > 1 else 0, Tq if weights.shape[1] > 1 else 0)
        sums("weighted_received", at.WEIGHTED, at.WEIGHTED_OUT)


def _map(p: Problem, want: Observables, call: Builder, parts: int, found: dict[str, Tensor], checked: bool) -> None:
    """Room for the map, and where its cells are."""
    B, Hq, Tq, _ = p.query.shape
    row_bounds, column_bounds = (want.map_bounds(T) for T in (Tq, p.key.shape[2]))
    rows, columns = len(row_bounds) - 1, len(column_bounds) - 1
    padded_columns = -(-columns // shape().width) * shape().width  # whole registers
    row_of_query, bounds, _ = _cells(tuple(row_bounds), rows)
    call.address(at.MAP_ROW, row_of_query)
    call.address(at.MAP_ROW_BOUNDS, bounds)
    column_of_key, _, bounds = _cells(tuple(column_bounds), padded_columns)
    call.address(at.MAP_COLUMN, column_of_key)
    call.address(at.MAP_COLUMN_BOUNDS, bounds)
    for place in (at.MAP_SUM, at.MAP_MAX, *[at.MAP_COUNT] * checked):
        call.address(place, threads.room(f"map {place}", B * Hq * parts * rows * padded_columns, torch.float32))
    for name, place in (("map_mean", at.MAP_MEAN_OUT), ("map_max", at.MAP_MAX_OUT)):
        whole = torch.empty(B, Hq, rows, padded_columns) if B * Hq * Tq else torch.zeros(B, Hq, rows, padded_columns)
        call.address(place, whole)
        found[name] = whole if columns == padded_columns else whole[..., :columns]
    call.put(at.MAP_ROWS, rows, padded_columns)


@functools.lru_cache(maxsize=16)
def _cells(bounds: tuple[int, ...], cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """The cell of every position; where cells begin, twice: cells that only fill a register up begin and end at the end."""
    cell_of = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    begin = torch.from_numpy(np.pad(np.array(bounds), (0, cells + 1 - len(bounds)), mode="edge"))
    return torch.from_numpy(cell_of), begin, begin.float()
