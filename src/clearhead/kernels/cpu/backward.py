"""Gradients of attention, from the same strips and the same micro-kernels.

With P = 2^(z − L), δ = Σ_d dO·O and c = dL − δ, for a block of keys and a strip of queries:

    s[key][lane]   = K · Qᵀ, masked                 p  = 2^(s − L)
    t[key][lane]   = V · dOᵀ                        ds = p (t + c)
    dV[key][:]    += p · dO                         dQᵀ[d][lane] += Kᵀ · ds
    dK[key][:]    += ds · Q

Where measured numbers have gradients too, t also holds their columns, r · gᵀ, and ds is p (t + c + x) with an x of `terms`.

A worker takes a part of the rows of all query heads that share a key head. It owns the gradients of its queries; those of
keys and values are its own sums, which are added up afterwards, parts always in the same order.

Where a pair may not be seen p and ds are exactly 0, but 0 · NaN is NaN: rows that are not all finite are left out of the three
products and brought in, one pair at a time, only where they may be seen.
"""

import numba
from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.forward import (
    add_values,
    in_place,
    multiply_keys,
    read_queries,
    rows_to_do,
    stage,
    upper_from,
)
from clearhead.kernels.cpu.logits import HIDDEN, add_and_hide, cap, read_intervals
from clearhead.kernels.cpu.machine import BLOCK, shape
from clearhead.kernels.cpu.powers import LN_2, LOG2_E, exp2
from clearhead.kernels.cpu.rows import FLOAT32, all_finite, lift, read_row, write_row
from clearhead.kernels.cpu.strip import rounded_up
from clearhead.kernels.cpu.tasks import handed_out
from clearhead.kernels.cpu.tile import ROWS, product
from clearhead.kernels.cpu.vector import (
    LANES,
    SPLIT,
    WIDTH,
    after,
    as_ints,
    as_longs,
    compiled,
    float_from_bits,
    floats_at,
    fma,
    lanes_set,
    load,
    longs_at,
    smaller,
    splat,
    store,
    where,
)

weights_times_rows = product(shape().vectors, row_step=LANES, step=1, add=True)
weights_times_narrow_rows = product(1, row_step=LANES, step=1, add=True)
more_keys_times_queries = product(shape().vectors, step=1, add=True)


@compiled
def add_weighted_rows(p, first, last, lane, rows, width, target):
    """target[key][:] += Σ p[key][lane] · rows[lane][:] over the lanes from `lane` on; `width` is a multiple of WIDTH."""
    rows, lanes = after(rows, lane * width), LANES - lane
    for n in range(first, last, ROWS):
        weights, to = after(p, n * LANES + lane), after(target, n * width)
        column = int64(0)
        while column + LANES <= width:
            weights_times_rows(weights, LANES, 1, after(rows, column), width, lanes, after(to, column), width)
            column += LANES
        while column < width:
            weights_times_narrow_rows(weights, LANES, 1, after(rows, column), width, lanes, after(to, column), width)
            column += WIDTH


@compiled
def set_aside(rows, count, width, bad, kept):
    """Rows that are not all finite become 0 and are kept; `bad` lists them. Returns how many there are."""
    found = int64(0)
    if all_finite(rows, width, width, count):
        return found
    for n in range(count):
        if not all_finite(after(rows, n * width), width, width, 1):
            for d in range(width):
                kept[found * width + d] = rows[n * width + d]
                rows[n * width + d] = float32(0.0)
            bad[found] = int32(n)
            found += 1
    return found


@compiled
def add_bad_lanes(p, first, last, kept, width, bad, count, marks, target):
    """What `set_aside` left out of `add_weighted_rows`, for the pairs that may be seen."""
    for r in range(count):
        lane = int64(bad[r])
        for n in range(first, last):
            if (marks[n] >> numba.uint64(lane)) & numba.uint64(1) == 0:
                for d in range(width):
                    target[n * width + d] += p[n * LANES + lane] * kept[r * width + d]


@compiled
def add_bad_keys(p, first, last, kept, width, bad, count, marks, target):
    """What `set_aside` left out of the queries' gradients, for the pairs that may be seen."""
    for r in range(count):
        n = int64(bad[r])
        if first <= n < last:
            for lane in range(LANES):
                if (marks[n] >> numba.uint64(lane)) & numba.uint64(1) == 0:
                    for d in range(width):
                        target[d * LANES + lane] += p[n * LANES + lane] * kept[r * width + d]


@compiled
def recompute(c, s, slope, b, h, i0, j0, first, last, lo, spans, mine):
    """Products to logits, as the forward did; with a softcap, `slope` becomes its derivative."""
    if c[at.SOFTCAP] != 0:
        cap(c, s, first, last)
        inverse = splat(float32(1.0) / (float_from_bits(c[at.SOFTCAP]) * float32(LOG2_E)))
        for n in range(first, last):
            tanh = load(s, n * LANES) * inverse
            store(slope, n * LANES, splat(float32(1.0)) - tanh * tanh)
    add_and_hide(c, s, b, h, i0, j0, first, last, lo, after(lo, LANES), spans, mine)


@compiled
def weights_and_slopes(c, s, t, slope, first, last, numbers, j0, marks):
    """s becomes p and t becomes dz, both exactly 0 where a pair may not be seen, which `marks` tells for each key."""
    L, add, zero = load(numbers, 0), load(numbers, LANES), splat(float32(0.0))
    capped = c[at.SOFTCAP] != 0 and c[at.D_BIAS] == 0  # a bias is added behind the cap
    terms = c[at.TERMS] != 0
    below, square, away = load(numbers, 5 * LANES), load(numbers, 6 * LANES), load(numbers, 7 * LANES)
    place = load(numbers, 8 * LANES) - splat(float32(j0))  # whole numbers: exact
    for n in range(first, last):
        z = load(s, n * LANES)
        hidden = z == splat(HIDDEN)
        p = where(hidden, zero, exp2(smaller(zero, z - L)))  # never above 1, however L was rounded
        inner = load(t, n * LANES) + add
        if terms:
            inner = fma(below, z - L, fma(square, p, fma(away, place - splat(float32(n)), inner)))
        dz = where(hidden, zero, p * inner)
        marks[n] = lanes_set(hidden)
        if capped:
            dz = where(hidden, zero, dz * load(slope, n * LANES))
        store(s, n * LANES, p)
        store(t, n * LANES, dz)


@compiled
def load_terms(c, row, i0, numbers):
    """What the gradients of measured numbers are for each lane: times z − L in base 2, times p, times a − j; and a."""
    for lane in range(LANES):
        i = min(i0 + lane, c[at.TQ] - 1)
        for n in range(3):
            address = c[at.BELOW + n]
            numbers[(5 + n) * LANES + lane] = floats_at(address)[row + i] if address != 0 else float32(0.0)
        numbers[5 * LANES + lane] *= float32(LN_2)
        numbers[8 * LANES + lane] = float32(c[at.POSITION] + i)


@compiled
def add_columns(c, b, h, j0, first, last, columns, t):
    """t[key][lane] += Σ_k g[key][k] · r[k][lane]: what the gradients of sums over queries add to V · dOᵀ."""
    width = c[at.COLUMNS]
    start = b * c[at.KEY_COLUMNS_B] + h * c[at.KEY_COLUMNS_H] + j0 * width
    keys = after(floats_at(c[at.KEY_COLUMNS]), start)
    for n in range(first, last, ROWS):
        more_keys_times_queries(after(keys, n * width), width, 1, columns, LANES, width, after(t, n * LANES), LANES)


@compiled
def load_strip(c, b, h, i0, strip, places, rows):
    """Everything about a strip's queries: themselves, their incoming gradients, L and c = dL − Σ_d dO·O."""
    D, DV, TQ = c[at.D], c[at.DV], c[at.TQ]
    factor = float_from_bits(c[at.SCALE])
    query = b * c[at.QUERY_B] + h * c[at.QUERY_H]
    grad = b * c[at.GRAD_B] + h * c[at.GRAD_H]
    out = b * c[at.OUT_B] + h * c[at.OUT_H]
    log_factor = factor * float32(LOG2_E)
    grads = after(strip, places[1])
    read_queries(c, c[at.QUERY], c[at.DTYPE], query, c[at.QUERY_T], c[at.QUERY_D], D, i0, log_factor, rows, strip)
    # O is needed for one sum only; the memory of dQ, not in use yet, holds it meanwhile.
    held = after(strip, places[4])
    read_queries(c, c[at.OUT], c[at.DTYPE], out, c[at.OUT_T], c[at.OUT_D], DV, i0, float32(1.0), rows, held)
    read_queries(c, c[at.GRAD], c[at.DTYPE], grad, c[at.GRAD_T], c[at.GRAD_D], DV, i0, float32(1.0), rows, grads)
    sum_ = splat(float32(0.0))
    for d in range(DV):
        sum_ = fma(load(grads, d * LANES), load(held, d * LANES), sum_)
    wide_d, wide_v = rounded_up(D, WIDTH), rounded_up(DV, WIDTH)
    query_rows, grad_rows = after(strip, places[2]), after(strip, places[3])
    if wide_d != D or wide_v != DV or i0 + LANES > TQ:
        for n in range(wide_d + wide_v):
            store(query_rows, n * LANES, splat(float32(0.0)))
    for lane in range(min(LANES, TQ - i0)):
        i = i0 + lane
        read_row(
            c[at.QUERY], c[at.DTYPE], query + i * c[at.QUERY_T], c[at.QUERY_D], D, after(query_rows, lane * wide_d)
        )
        read_row(c[at.GRAD], c[at.DTYPE], grad + i * c[at.GRAD_T], c[at.GRAD_D], DV, after(grad_rows, lane * wide_v))
        for d in range(D):
            query_rows[lane * wide_d + d] *= factor
    for d in range(rounded_up(D, ROWS)):
        store(held, d * LANES, splat(float32(0.0)))
    lse, shift = after(strip, places[5]), after(strip, places[5] + LANES)
    store(shift, 0, sum_)
    row = (b * c[at.HQ] + h) * TQ
    for lane in range(LANES):
        i = row + min(i0 + lane, TQ - 1)
        L = floats_at(c[at.LSE])[i]
        lse[lane] = float32(0.0) if L == HIDDEN else L * float32(LOG2_E)
        extra = floats_at(c[at.GRAD_LSE])[i] if c[at.GRAD_LSE] != 0 else float32(0.0)
        shift[lane] = extra - shift[lane]
        if c[at.C] != 0 and i0 + lane < TQ:
            floats_at(c[at.C])[i] = shift[lane]
    lo = as_ints(after(strip, places[5] + 2 * LANES))
    read_intervals(c, b, i0, lo, after(lo, LANES), as_longs(after(strip, places[5] + 4 * LANES)))
    if c[at.TERMS] != 0:
        load_terms(c, row, i0, lse)
    if c[at.COLUMNS] != 0:
        width, columns = c[at.COLUMNS], after(strip, places[6])
        read_queries(c, c[at.ROW_COLUMNS], FLOAT32, row * width, width, 1, width, i0, float32(1.0), rows, columns)


@compiled
def strip_places(c, places):
    """Where things stand in a strip: Qᵀ, dOᵀ, rows of Q times scale, rows of dO, dQᵀ, lane numbers, columns; and its size."""
    D, DV = c[at.D], c[at.DV]
    tall = rounded_up(max(D, DV), ROWS)
    sizes = (D, DV, rounded_up(D, WIDTH), rounded_up(DV, WIDTH), tall, int64(9), c[at.COLUMNS])
    place = int64(0)
    for n in range(7):
        places[n] = place
        place += sizes[n] * LANES
    places[7] = place


@compiled
def read_block(c, key, value, j0, j1, tall_d, staged_keys, staged_values):
    """Keys and values j0 … j1 in whole tiles: (k, its row step, v, its row step), where they lie or as copies."""
    DV = c[at.DV]
    padded = rounded_up(j1 - j0, ROWS)
    if in_place(c[at.DTYPE], c[at.KEY_T], c[at.KEY_D]) and tall_d == c[at.D] and padded == j1 - j0:
        k, k_row = after(floats_at(c[at.KEY]), key + j0 * c[at.KEY_T]), c[at.KEY_T]
    else:
        stage(c[at.KEY], c[at.DTYPE], key, c[at.KEY_T], c[at.KEY_D], c[at.D], tall_d, j0, j1, padded, staged_keys)
        k, k_row = staged_keys, tall_d
    if in_place(c[at.DTYPE], c[at.VALUE_T], c[at.VALUE_D]) and padded == j1 - j0:
        v, v_row = after(floats_at(c[at.VALUE]), value + j0 * c[at.VALUE_T]), c[at.VALUE_T]
    else:
        stage(c[at.VALUE], c[at.DTYPE], value, c[at.VALUE_T], c[at.VALUE_D], DV, DV, j0, j1, padded, staged_values)
        v, v_row = staged_values, DV
    return k, k_row, v, v_row


@compiled
def block_gradients(c, b, h, i0, j0, first, last, strip, places, k, k_row, v, v_row, s, t, slope, marks, mine):
    """s = p and t = dz of a strip and a block, both 0 where a pair may not be seen, which `marks` tells."""
    D, DV = c[at.D], c[at.DV]
    grads, numbers = after(strip, places[1]), after(strip, places[5])
    lo, spans = as_ints(after(numbers, 2 * LANES)), as_longs(after(numbers, 4 * LANES))
    middle = upper_from(spans, j0, first, last)
    multiply_keys(k, k_row, strip, D, first, middle, last, s)
    multiply_keys(v, v_row, grads, DV, first, middle, last, t)
    if c[at.COLUMNS] != 0:
        add_columns(c, b, h, j0, first, last, after(strip, places[6]), t)
    recompute(c, s, slope, b, h, i0, j0, first, last, lo, spans, mine)
    weights_and_slopes(c, s, t, slope, first, last, numbers, j0, marks)
    for m in range(last, rounded_up(last, ROWS)):  # the last tile may reach past the last key
        store(s, m * LANES, splat(float32(0.0)))
        store(t, m * LANES, splat(float32(0.0)))


@compiled
def backward_strips(c, b, h, number_, count, scratch, d_key, d_value):
    """`count` strips of one head, from number `number_` on."""
    D, DV, TK = c[at.D], c[at.DV], c[at.TK]
    tall_d = rounded_up(D, ROWS)
    wide_d, wide_v = rounded_up(D, WIDTH), rounded_up(DV, WIDTH)
    kv = h // c[at.GROUPS]
    key = b * c[at.KEY_B] + kv * c[at.KEY_H]
    value = b * c[at.VALUE_B] + kv * c[at.VALUE_H]
    places = as_longs(scratch)
    strip_places(c, places)
    each = places[7]
    strips = after(scratch, 32)
    s = after(strips, count * each)
    t, slope = after(s, BLOCK * LANES), after(s, 2 * BLOCK * LANES)
    marks = as_longs(after(s, 3 * BLOCK * LANES))
    staged_keys = after(s, 3 * BLOCK * LANES + 2 * BLOCK)
    staged_values = after(staged_keys, BLOCK * tall_d)
    bad_keys = as_ints(after(staged_values, BLOCK * DV))
    kept_keys = after(staged_values, BLOCK * (DV + 1))
    finite_keys = after(kept_keys, BLOCK * tall_d)
    rows = after(finite_keys, BLOCK * tall_d)
    # [count][2][LANES][…]: rows of Q and dO that are not finite, and which they are.
    kept = after(rows, LANES * max(D, DV, c[at.COLUMNS]))
    kept_size = LANES * (wide_d + wide_v + 2)
    bad_lanes = as_longs(after(kept, count * kept_size))
    begin, end = TK, int64(0)
    for n in range(count):
        strip = after(strips, n * each)
        load_strip(c, b, h, (number_ + n) * LANES, strip, places, rows)
        mine = after(kept, n * kept_size)
        which = as_ints(after(mine, LANES * (wide_d + wide_v)))
        bad_lanes[2 * n] = set_aside(after(strip, places[2]), LANES, wide_d, which, mine)
        bad_lanes[2 * n + 1] = set_aside(
            after(strip, places[3]), LANES, wide_v, after(which, LANES), after(mine, LANES * wide_d)
        )
        spans = as_longs(after(strip, places[5] + 4 * LANES))
        begin, end = min(begin, spans[0]), max(end, spans[3])
    for j0 in range(begin // BLOCK * BLOCK, end, BLOCK):
        j1 = min(j0 + BLOCK, TK)
        k, k_row, v, v_row = read_block(c, key, value, j0, j1, tall_d, staged_keys, staged_values)
        u, u_row, bad_count = k, k_row, int64(0)
        if not all_finite(k, k_row, D, j1 - j0):
            for n in range(j1 - j0):
                for d in range(tall_d):
                    finite_keys[n * tall_d + d] = k[n * k_row + d]
            bad_count = set_aside(finite_keys, j1 - j0, tall_d, bad_keys, kept_keys)
            u, u_row = finite_keys, tall_d
        for n in range(count):
            strip = after(strips, n * each)
            i0 = (number_ + n) * LANES
            first, last = rows_to_do(c, b, h, i0, j0, j1, as_longs(after(strip, places[5] + 4 * LANES)))
            if first == last:
                continue
            block_gradients(
                c, b, h, i0, j0, first, last, strip, places, k, k_row, v, v_row, s, t, slope, marks, as_ints(rows)
            )
            to_key, to_value = after(d_key, j0 * wide_d), after(d_value, j0 * wide_v)
            middle = upper_from(as_longs(after(strip, places[5] + 4 * LANES)), j0, first, last)
            for weights, rows_, wide, to in (
                (s, after(strip, places[3]), wide_v, to_value),
                (t, after(strip, places[2]), wide_d, to_key),
            ):
                add_weighted_rows(weights, first, middle, 0, rows_, wide, to)
                add_weighted_rows(weights, middle, last, SPLIT, rows_, wide, to)
            d_query = after(strip, places[4])
            add_values(u, u_row, t, first, middle, last, tall_d, d_query)
            if bad_count + bad_lanes[2 * n] + bad_lanes[2 * n + 1] != 0:
                mine = after(kept, n * kept_size)
                which = as_ints(after(mine, LANES * (wide_d + wide_v)))
                add_bad_keys(t, first, last, kept_keys, tall_d, bad_keys, bad_count, marks, d_query)
                add_bad_lanes(t, first, last, mine, wide_d, which, bad_lanes[2 * n], marks, to_key)
                mine, which = after(mine, LANES * wide_d), after(which, LANES)
                add_bad_lanes(s, first, last, mine, wide_v, which, bad_lanes[2 * n + 1], marks, to_value)
    factor = splat(float_from_bits(c[at.SCALE]))
    for n in range(count):
        strip = after(strips, n * each)
        i0 = (number_ + n) * LANES
        d_query = after(strip, places[4])
        for d in range(D):
            store(d_query, d * LANES, load(d_query, d * LANES) * factor)
        lift(d_query, D, rows, D)
        row = (b * c[at.HQ] + h) * c[at.TQ] + i0
        for lane in range(min(LANES, c[at.TQ] - i0)):
            write_row(c[at.D_QUERY], c[at.DTYPE], (row + lane) * D, D, after(rows, lane * D))


@compiled
def bias_strips(c, b, h, strip, end_strip, block, end_block, scratch, target, row, column):
    """Add dz of some strips and blocks of one head to the gradient of a bias, target[i · row + j · column]."""
    D, DV, TK = c[at.D], c[at.DV], c[at.TK]
    tall_d = rounded_up(D, ROWS)
    kv = h // c[at.GROUPS]
    key = b * c[at.KEY_B] + kv * c[at.KEY_H]
    value = b * c[at.VALUE_B] + kv * c[at.VALUE_H]
    places = as_longs(scratch)
    strip_places(c, places)
    memory = after(scratch, 32)
    s = after(memory, places[7])
    t, slope = after(s, BLOCK * LANES), after(s, 2 * BLOCK * LANES)
    marks = as_longs(after(s, 3 * BLOCK * LANES))
    staged_keys = after(s, 3 * BLOCK * LANES + 2 * BLOCK)
    staged_values = after(staged_keys, BLOCK * tall_d)
    rows = after(staged_values, BLOCK * DV)
    for n in range(strip, end_strip):
        i0 = n * LANES
        load_strip(c, b, h, i0, memory, places, rows)
        spans = as_longs(after(memory, places[5] + 4 * LANES))
        for j0 in range(max(block, spans[0] // BLOCK) * BLOCK, min(end_block * BLOCK, spans[3]), BLOCK):
            j1 = min(j0 + BLOCK, TK)
            first, last = rows_to_do(c, b, h, i0, j0, j1, spans)
            if first == last:
                continue
            k, k_row, v, v_row = read_block(c, key, value, j0, j1, tall_d, staged_keys, staged_values)
            block_gradients(
                c, b, h, i0, j0, first, last, memory, places, k, k_row, v, v_row, s, t, slope, marks, as_ints(rows)
            )
            for lane in range(min(LANES, c[at.TQ] - i0)):
                place = (i0 + lane) * row + j0 * column
                if column == 0:
                    sum_ = float32(0.0)
                    for m in range(first, last):
                        sum_ += t[m * LANES + lane]
                    target[place] += sum_
                else:
                    for m in range(first, last):
                        target[place + m * column] += t[m * LANES + lane]


@compiled
def bias_gradient(c, ticket, scratch):
    """One task of the bias's gradient: a piece of it that no other task touches, with everything that was broadcast to it.

    The pieces are rows (a strip each) where the bias has rows, else blocks of keys where it has columns.
    """
    strips, blocks = (c[at.TQ] + LANES - 1) // LANES, (c[at.TK] + BLOCK - 1) // BLOCK
    by_rows, by_columns = c[at.D_BIAS_I] != 0, c[at.D_BIAS_I] == 0 and c[at.D_BIAS_J] != 0
    pieces = strips if by_rows else blocks if by_columns else int64(1)
    piece, head = ticket % pieces, ticket // pieces
    bias_heads = c[at.HQ] if c[at.D_BIAS_H] != 0 else int64(1)
    own_b, own_h = head // bias_heads, head % bias_heads
    target = after(floats_at(c[at.D_BIAS]), own_b * c[at.D_BIAS_B] + own_h * c[at.D_BIAS_H])
    first, last = (piece, piece + 1) if by_rows else (int64(0), strips)
    block, end_block = (piece, piece + 1) if by_columns else (int64(0), blocks)
    for b in range(c[at.B]):
        for h in range(c[at.HQ]):
            if (c[at.D_BIAS_B] == 0 or b == own_b) and (c[at.D_BIAS_H] == 0 or h == own_h):
                bias_strips(c, b, h, first, last, block, end_block, scratch, target, c[at.D_BIAS_I], c[at.D_BIAS_J])


@compiled
def backward_part(c, ticket, scratch):
    """One task of the other gradients: a part of the rows of the query heads that share a key head."""
    bounds = longs_at(c[at.TASKS])
    head, part = ticket // c[at.PARTS], c[at.PARTS] - 1 - ticket % c[at.PARTS]  # the last rows, which see most, first
    b, kv = head // c[at.HK], head % c[at.HK]
    sums = (head * c[at.PARTS] + part) * c[at.KEYS_PADDED]
    d_key = after(floats_at(c[at.D_KEY]), sums * rounded_up(c[at.D], WIDTH))
    d_value = after(floats_at(c[at.D_VALUE]), sums * rounded_up(c[at.DV], WIDTH))
    for h in range(kv * c[at.GROUPS], (kv + 1) * c[at.GROUPS]):
        for strip in range(bounds[part], bounds[part + 1], c[at.STRIPS_A_TASK]):
            count = min(c[at.STRIPS_A_TASK], bounds[part + 1] - strip)
            backward_strips(c, b, h, strip, count, scratch, d_key, d_value)


@compiled
def task(c, ticket, scratch):
    """A piece of the bias's gradient if that is asked for, else of the others."""
    if c[at.D_BIAS] != 0:
        bias_gradient(c, ticket, scratch)
    else:
        backward_part(c, ticket, scratch)


work = handed_out(task)
