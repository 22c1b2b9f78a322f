"""Attention forward: strips of queries meet their keys block by block, with an online softmax in every lane.

A task is a few strips of one head. For each block of keys, each strip of the task computes

    s[key][lane]  = K · Qᵀ          the micro-kernel, K read where it lies
    s             = logits          softcap, bias, mask
    m, l          = running maximum and sum of every lane
    s             = 2^(s − m)
    o[dv][lane]   = o · 2^(m_old − m) + Vᵀ · s      the micro-kernel, V read where it lies

so that a block of K and V is fetched from far away once for the whole task. Maximum and sum are plain vector operations,
because a query stays in its lane: no number moves across a register until the result is turned back into rows.
"""

import numba
from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu import kept
from clearhead.kernels.cpu import strip as strips
from clearhead.kernels.cpu.kept import NEVER
from clearhead.kernels.cpu.logits import HIDDEN, all_visible, finish_logits, read_intervals, tensor_hides_all
from clearhead.kernels.cpu.machine import BLOCK, RUN, shape
from clearhead.kernels.cpu.observe import when_done
from clearhead.kernels.cpu.per_key import begin_part, merge_head
from clearhead.kernels.cpu.per_query import finish_rows
from clearhead.kernels.cpu.powers import LN_2, LOG2_E, exp2, log2
from clearhead.kernels.cpu.rows import FLOAT32, all_finite, lay, lift, number, read_row, write_row
from clearhead.kernels.cpu.strip import rounded_up
from clearhead.kernels.cpu.tasks import handed_out, was_last
from clearhead.kernels.cpu.tile import ROWS, product
from clearhead.kernels.cpu.vector import (
    ALL_LANES,
    LANES,
    SPLIT,
    after,
    as_ints,
    bits,
    compiled,
    float_from_bits,
    floats_at,
    fma,
    lanes_set,
    larger,
    load,
    longs_at,
    splat,
    splat_int,
    store,
    where,
)

UPPER = shape().vectors - shape().vectors // 2  # registers of the lanes from SPLIT on

keys_times_queries, keys_times_upper_queries = product(shape().vectors, step=1), product(UPPER, step=1)
values_times_weights = product(shape().vectors, row_step=1, add=True)
values_times_upper_weights = product(UPPER, row_step=1, add=True)


@compiled
def read_queries(c, address, dtype, start, row, step, width, i0, factor, rows, target):
    """A strip of a per-query tensor as columns target[d][lane], times a factor; lanes past the last query repeat it."""
    if dtype == FLOAT32 and step == 1 and i0 + LANES <= c[at.TQ]:
        lay(after(floats_at(address), start + i0 * row), row, width, target, factor)
        return
    for lane in range(LANES):
        read_row(address, dtype, start + min(i0 + lane, c[at.TQ] - 1) * row, step, width, after(rows, lane * width))
    lay(rows, width, width, target, factor)


@compiled
def stage(address, dtype, start, row, step, width, padded, j0, j1, rows, target):
    """Keys j0 … j1 as rows of float32, `padded` numbers wide; the rows up to `rows` and the padding are 0."""
    for j in range(j0, j1):
        to = after(target, (j - j0) * padded)
        read_row(address, dtype, start + j * row, step, width, to)
        for d in range(width, padded):
            to[d] = float32(0.0)
    for n in range((j1 - j0) * padded, rows * padded):
        target[n] = float32(0.0)


@compiled
def in_place(dtype, row, step):
    """Whether the micro-kernels can read rows where they lie; rows 4096 bytes apart would all fall into one cache set."""
    return dtype == FLOAT32 and step == 1 and row % 1024 != 0


@compiled
def rows_to_do(c, b, h, i0, j0, j1, spans):
    """First and one past the last key of a block, counted from j0, that a strip must meet; (0, 0) for none."""
    first = max(int64(0), (spans[0] - j0) // ROWS * ROWS)
    last = min(j1, spans[3]) - j0
    if first >= last or (c[at.DENSE] != 0 and tensor_hides_all(c, b, h, i0, j0, first, last)):
        return int64(0), int64(0)
    return first, last


@compiled
def upper_from(spans, j0, first, last):
    """The row of a block from which on only the upper lanes see anything: about half of a causal strip's last keys."""
    return min(max(rounded_up(max(spans[4] - j0, int64(0)), ROWS), first), last)


@compiled
def multiply_keys(k, k_row, queries, width, first, middle, last, s):
    """s[key][lane] of keys first … last − 1; from `middle` on in the upper lanes alone. Whole tiles are written."""
    for n in range(first, middle, ROWS):
        keys_times_queries(after(k, n * k_row), k_row, 1, queries, LANES, width, after(s, n * LANES), LANES)
    for n in range(middle, last, ROWS):
        upper, to = after(queries, SPLIT), after(s, n * LANES + SPLIT)
        keys_times_upper_queries(after(k, n * k_row), k_row, 1, upper, LANES, width, to, LANES)


@compiled
def add_values(v, v_row, weights, first, middle, last, wide, o):
    """o[d][lane] += Σ_key v[key][d] · weights[key][lane]; `wide` is whole tiles."""
    for d in range(0, wide, ROWS):
        at_d = after(o, d * LANES)
        values_times_weights(
            after(v, first * v_row + d), 1, v_row, after(weights, first * LANES), LANES, middle - first, at_d, LANES
        )
        if middle < last:
            upper = after(weights, middle * LANES + SPLIT)
            values_times_upper_weights(
                after(v, middle * v_row + d), 1, v_row, upper, LANES, last - middle, after(at_d, SPLIT), LANES
            )


@compiled
def stage_finite(v, v_row, width, count, target, bad):
    """A copy of value rows in which a row that is not all finite is 0, and which rows those are; returns how many."""
    found = int64(0)
    for n in range(count):
        finite = all_finite(after(v, n * v_row), v_row, width, 1)
        for d in range(width):
            target[n * width + d] = v[n * v_row + d] if finite else float32(0.0)
        if not finite:
            bad[found] = int32(n)
            found += 1
    return found


@compiled
def add_bad_values(p, first, last, v, v_row, width, bad, count, o):
    """What `stage_finite` left out, for the lanes that may see it and for no other: 0 · NaN would be NaN."""
    for r in range(count):
        n = int64(bad[r])
        if first <= n < last:
            hidden = lanes_set(bits(load(p, n * LANES)) == splat_int(NEVER))
            for lane in range(LANES):
                if (hidden >> numba.uint64(lane)) & numba.uint64(1) == 0:
                    for d in range(width):
                        o[d * LANES + lane] += p[n * LANES + lane] * v[n * v_row + d]


@compiled
def running_max(s, first, last, top):
    """The largest logit of every lane, with what `top` holds."""
    m = load(top, 0)
    for n in range(first, last):
        m = larger(load(s, n * LANES), m)
    return m


@compiled
def weigh_one(s, n, anchor, hiding):
    """A logit becomes 2^(z − m), or −0.0 where it may not be seen; returns it and z − m, or −126 if that is less."""
    z = load(s, n * LANES)
    x = z - anchor
    p = exp2(x)
    if hiding:
        p = where(z == splat(HIDDEN), splat(float32(-0.0)), p)
    store(s, n * LANES, p)
    return p, larger(splat(float32(-126.0)), x)


@compiled
def weigh(s, first, last, anchor, hiding):
    """The weights of a block; returns Σ p."""
    added = splat(float32(0.0))
    for n in range(first, last):
        p, _ = weigh_one(s, n, anchor, hiding)
        added = added + p
    return added


@compiled
def softmax_block(s, first, last, top, total, hiding):
    """s becomes 2^(s − m) with the new running maximum m; returns 2^(m_old − m), by which older sums shrink.

    With `hiding`, what may not be seen becomes −0.0.
    """
    m = running_max(s, first, last, top)
    anchor = where(m == splat(HIDDEN), splat(float32(0.0)), m)
    added = weigh(s, first, last, anchor, True) if hiding else weigh(s, first, last, anchor, False)
    shrink = exp2(load(top, 0) - anchor)
    store(total, 0, load(total, 0) * shrink + added)
    store(top, 0, m)
    return shrink


@compiled
def weigh_watched(s, first, last, anchor, hiding, maxima, sums):
    """The weights of a block, run by run, and what is known of the runs; returns Σ p, Σ p (z − m), and `inside` of `kept`."""
    added, products, inside = splat(float32(0.0)), splat(float32(0.0)), splat(float32(0.0))
    for run in range(first // RUN, last // RUN):
        a, x = weigh_one(s, 4 * run, anchor, hiding)
        added, products = added + a, fma(a, x, products)
        b, x = weigh_one(s, 4 * run + 1, anchor, hiding)
        added, products = added + b, fma(b, x, products)
        c, x = weigh_one(s, 4 * run + 2, anchor, hiding)
        added, products = added + c, fma(c, x, products)
        d, x = weigh_one(s, 4 * run + 3, anchor, hiding)
        added, products = added + d, fma(d, x, products)
        inside = kept.note_run(run, a, b, c, d, maxima, sums, inside)
    return added, products, inside


@compiled
def softmax_block_watched(c, block, first, last, top, total, watched, whole):
    """The same for a block that is kept, with Σ p (z − m) carried along; `whole` where every pair of it may be seen."""
    s = kept.weights(c, watched, block)
    maxima, sums = kept.run_maxima(c, watched, block), kept.run_sums(c, watched, block)
    m = running_max(s, first, last, top)
    anchor = where(m == splat(HIDDEN), splat(float32(0.0)), m)
    if whole:
        added, products, inside = weigh_watched(s, first, last, anchor, False, maxima, sums)
    else:
        added, products, inside = weigh_watched(s, first, last, anchor, True, maxima, sums)
    store(kept.block_inside(watched, block), 0, inside)
    energy = watched
    before, sum_ = load(top, 0), load(total, 0)
    shrink = exp2(before - anchor)
    # Beyond −126, and where there was nothing before, older sums shrink to 0.
    moved = larger(splat(float32(-126.0)), before - anchor)
    store(energy, 0, shrink * (load(energy, 0) + sum_ * moved) + products)
    store(total, 0, sum_ * shrink + added)
    store(top, 0, m)
    return shrink


@compiled
def finish_strip(c, b, h, i0, strip, held, rows):
    """Bring in the sink, divide, and write output and log-sum-exp of a strip's queries; whether all of it is a number."""
    m, sum_ = load(strips.top(c, strip), 0), load(strips.total(c, strip), 0)
    o = strips.output(c, strip)
    one, zero = splat(float32(1.0)), splat(float32(0.0))
    share = one
    if c[at.SINKS] != 0:
        sink = splat(number(c[at.SINKS], FLOAT32, h) * float32(LOG2_E))
        highest = larger(sink, m)
        share = exp2(m - highest)
        sum_ = sum_ * share + exp2(sink - highest)
        m = highest
    nothing = sum_ == zero
    factor = where(nothing, zero, share / where(nothing, one, sum_))
    store(held, 0, where(nothing, splat(HIDDEN), (m + log2(sum_)) * splat(float32(LN_2))))
    clean = sum_ == sum_
    for d in range(c[at.DV]):
        x = load(o, d * LANES) * factor
        clean = clean & (x == x)
        store(o, d * LANES, x)
    count = min(LANES, c[at.TQ] - i0)
    lse = after(floats_at(c[at.LSE]), (b * c[at.HQ] + h) * c[at.TQ] + i0)
    for lane in range(count):
        lse[lane] = held[lane]
    dv = c[at.DV]
    out, row = b * c[at.OUT_B] + h * c[at.OUT_H] + i0 * c[at.OUT_T], c[at.OUT_T]
    if c[at.DTYPE] == FLOAT32 and count == LANES:
        lift(o, dv, after(floats_at(c[at.OUT]), out), row)
    else:
        lift(o, dv, rows, dv)
        for lane in range(count):
            write_row(c[at.OUT], c[at.DTYPE], out + lane * row, dv, after(rows, lane * dv))
    return lanes_set(clean) == ALL_LANES


@compiled
def attend_strips(c, b, h, part, number_, count, scratch, careful):
    """`count` strips of one head, from number `number_` on; returns whether the result holds no NaN.

    With `careful`, values that are not finite reach only the queries that may see them. It is asked for when NaN turned up,
    which costs nothing as long as it does not.
    """
    D, TK, wide = c[at.D], c[at.TK], strips.wide(c)
    kv = h // c[at.GROUPS]
    key = b * c[at.KEY_B] + kv * c[at.KEY_H]
    value = b * c[at.VALUE_B] + kv * c[at.VALUE_H]
    query = b * c[at.QUERY_B] + h * c[at.QUERY_H]
    observing = c[at.OBSERVING] != 0
    each = strips.size(c) + (kept.size(c) if observing else 0)
    scores = after(scratch, count * each)
    staged_keys = after(scores, BLOCK * LANES)
    staged_values = after(staged_keys, BLOCK * D)
    finite_values = after(staged_values, BLOCK * wide)
    bad = as_ints(after(finite_values, BLOCK * wide))
    rows = after(finite_values, BLOCK * (wide + 1))
    held = after(rows, LANES * max(D, wide))
    keys_in_place = in_place(c[at.DTYPE], c[at.KEY_T], c[at.KEY_D])
    values_in_place = in_place(c[at.DTYPE], c[at.VALUE_T], c[at.VALUE_D]) and wide == c[at.DV]
    factor = float_from_bits(c[at.SCALE]) * float32(LOG2_E)
    begin, end = TK, int64(0)
    for n in range(count):
        strip = after(scratch, n * each)
        i0 = (number_ + n) * LANES
        read_queries(c, c[at.QUERY], c[at.DTYPE], query, c[at.QUERY_T], c[at.QUERY_D], D, i0, factor, rows, strip)
        o = strips.output(c, strip)
        for d in range(wide + 2):
            store(o, d * LANES, splat(float32(0.0)))
        store(strips.top(c, strip), 0, splat(HIDDEN))
        lo, spans = strips.intervals(c, strip), strips.spans(c, strip)
        read_intervals(c, b, i0, lo, after(lo, LANES), spans)
        begin, end = min(begin, spans[0]), max(end, spans[3])
        if observing:
            kept.begin(c, after(strip, strips.size(c)))
    for j0 in range(begin // BLOCK * BLOCK, end, BLOCK):
        j1 = min(j0 + BLOCK, TK)
        if keys_in_place and (j1 - j0) % ROWS == 0:
            k, k_row = after(floats_at(c[at.KEY]), key + j0 * c[at.KEY_T]), c[at.KEY_T]
        else:
            to = rounded_up(j1 - j0, ROWS)
            stage(c[at.KEY], c[at.DTYPE], key, c[at.KEY_T], c[at.KEY_D], D, D, j0, j1, to, staged_keys)
            k, k_row = staged_keys, D
        if values_in_place:
            v, v_row = after(floats_at(c[at.VALUE]), value + j0 * c[at.VALUE_T]), c[at.VALUE_T]
        else:
            to = j1 - j0
            stage(
                c[at.VALUE], c[at.DTYPE], value, c[at.VALUE_T], c[at.VALUE_D], c[at.DV], wide, j0, j1, to, staged_values
            )
            v, v_row = staged_values, wide
        u, u_row, bad_count = v, v_row, int64(0)
        if careful:
            bad_count = stage_finite(v, v_row, wide, j1 - j0, finite_values, bad)
            u, u_row = finite_values, wide
        for n in range(count):
            strip = after(scratch, n * each)
            i0 = (number_ + n) * LANES
            o, top, total = strips.output(c, strip), strips.top(c, strip), strips.total(c, strip)
            lo, spans = strips.intervals(c, strip), strips.spans(c, strip)
            first, last = rows_to_do(c, b, h, i0, j0, j1, spans)
            if first == last:
                continue
            watched, block = after(strip, strips.size(c)), (j0 - spans[0] // BLOCK * BLOCK) // BLOCK
            s = kept.weights(c, watched, block) if observing else scores
            middle = upper_from(spans, j0, first, last)
            multiply_keys(k, k_row, strip, D, first, middle, last, s)
            finish_logits(c, s, b, h, i0, j0, first, last, lo, after(lo, LANES), spans, as_ints(rows))
            if observing:
                runs_end = rounded_up(last, RUN)
                for n in range(last, runs_end):
                    store(s, n * LANES, splat(HIDDEN))
                done = kept.block_rows(watched, block)
                done[0], done[1] = int32(first), int32(last)
                whole = last == runs_end and all_visible(c, j0, first, last, spans)
                shrink = softmax_block_watched(c, block, first, runs_end, top, total, watched, whole)
                store(kept.block_factor(watched, block), 0, load(top, 0))
            else:
                shrink = softmax_block(s, first, last, top, total, careful)
            for d in range(wide):
                store(o, d * LANES, load(o, d * LANES) * shrink)
            add_values(u, u_row, s, first, middle, last, wide, o)
            if bad_count != 0:
                add_bad_values(s, first, last, v, v_row, wide, bad, bad_count, o)
    clean = True
    for n in range(count):
        strip = after(scratch, n * each)
        clean = finish_strip(c, b, h, (number_ + n) * LANES, strip, held, rows) and clean
    if observing and (clean or careful):
        for n in range(count):
            strip = after(scratch, n * each)
            i0 = (number_ + n) * LANES
            row = (b * c[at.HQ] + h) * c[at.TQ] + i0
            top, total = load(strips.top(c, strip), 0), load(strips.total(c, strip), 0)
            watched = after(strip, strips.size(c))
            finish_rows(c, watched, h, row, min(LANES, c[at.TQ] - i0), top, total, held)
            when_done(c, b, h, part, strip, watched, i0, scores)
    return clean


@compiled
def attend_part(c, b, h, part, scratch):
    """The strips of one part, a few at a time."""
    bounds = longs_at(c[at.TASKS])
    slot = (b * c[at.HQ] + h) * c[at.PARTS] + part
    if c[at.OBSERVING] != 0:
        begin_part(c, slot)
    for strip in range(bounds[part], bounds[part + 1], c[at.STRIPS_A_TASK]):
        count = min(c[at.STRIPS_A_TASK], bounds[part + 1] - strip)
        careful = False
        while not attend_strips(c, b, h, slot, strip, count, scratch, careful) and not careful:
            careful = True


@compiled
def task(c, ticket, scratch):
    """A part of a head, the last rows, which see most, first."""
    head, part = ticket // c[at.PARTS], c[at.PARTS] - 1 - ticket % c[at.PARTS]
    attend_part(c, head // c[at.HQ], head % c[at.HQ], part, scratch)
    if c[at.FINISHED] != 0 and was_last(c, head):
        merge_head(c, head, scratch)


work = handed_out(task)
