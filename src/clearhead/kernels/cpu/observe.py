"""What is measured while attention is computed.

The weights of a strip are kept, block by block, until all its keys have passed. Then L is known, and one factor a lane turns
the weights of each block into those of whole rows. Everything measured is one short loop over the blocks in `when_done`: that
is the place for another observable. Only Σ p z, for the entropy, is carried along while the keys pass (`softmax_block_watched`
in `forward`), because logits are not kept.

Memory of one strip while it is observed, in float32 from `watched` on:

    energy, above        LANES each: Σ p (z − top) under the running maximum; L − top at the end
    blocks               for each block: the maximum its weights were computed under, later their factor [LANES], and its first
                         and last row that were computed (two int32 at the beginning of LANES floats)
    weights              [keys][LANES]; −0.0 where a pair may not be seen
"""

import numba
from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu import strip as strips
from clearhead.kernels.cpu.logits import HIDDEN
from clearhead.kernels.cpu.machine import BLOCK
from clearhead.kernels.cpu.powers import LN_2, LOG2_E, exp2, log2
from clearhead.kernels.cpu.rows import lift, number
from clearhead.kernels.cpu.vector import (
    ALL_LANES,
    LANES,
    WIDTH,
    add_row_sums,
    after,
    as_ints,
    bits,
    bytes_at,
    compiled,
    doubles_at,
    floats_at,
    fma,
    ints_at,
    is_never,
    lane_numbers,
    lanes_set,
    larger,
    load,
    load_int,
    load_short,
    longs_at,
    lowest_bit,
    smaller,
    splat,
    splat_int,
    splat_short,
    store,
    sum_of,
    to_floats,
    where,
)

NEVER = int32(-2147483648)  # the bits of −0.0: the weight of a pair that may not be seen
RUN = 4  # keys in a row that are represented by the largest of them, in the search for the k largest


# ------------------------------------------------------------------------------------------------- where things are kept


@compiled
def block_count(c):
    """Blocks that a strip meets at most."""
    return (c[at.LONGEST] + BLOCK - 1) // BLOCK


@compiled
def size(c):
    """Floats that observing adds to a strip."""
    return (2 + 2 * block_count(c) + c[at.LONGEST]) * LANES


@compiled
def above(watched):
    """[LANES]: L − top, once a strip is done."""
    return after(watched, LANES)


@compiled
def block_factor(watched, block):
    """[LANES]: the running maximum under which a block's weights were computed; later what makes them whole."""
    return after(watched, (2 + 2 * block) * LANES)


@compiled
def block_rows(watched, block):
    """First and last row of a block that were computed, two int32."""
    return as_ints(after(watched, (3 + 2 * block) * LANES))


@compiled
def weights(c, watched, block):
    """[BLOCK][LANES] of one block."""
    return after(watched, (2 + 2 * block_count(c) + block * BLOCK) * LANES)


@compiled
def begin(c, watched):
    """Before the first key."""
    store(watched, 0, splat(float32(0.0)))
    for block in range(block_count(c)):
        block_rows(watched, block)[0] = block_rows(watched, block)[1] = int32(0)


# ------------------------------------------------------------------------------------------------------ one number a query


@compiled
def put(address, row, count, x, held):
    """Write one number a query; `held` is scratch for LANES floats."""
    store(held, 0, x)
    target = after(floats_at(address), row)
    for lane in range(count):
        target[lane] = held[lane]


@compiled
def finish_rows(c, watched, h, row, count, top, total, held):
    """What needs only the running quantities: largest logit and entropy. Leaves L − top in `above`.

    Entropy is Σ p (L − z), with z and L measured from the largest logit, where the numbers are small and nothing cancels.
    """
    zero, one = splat(float32(0.0)), splat(float32(1.0))
    nothing = total == zero
    higher = splat(HIDDEN)  # the sink, measured from the largest logit
    if c[at.SINKS] != 0:
        sink = splat(number(c[at.SINKS], 0, h) * float32(LOG2_E))
        higher = where(nothing, zero, sink - top)
        peak = larger(higher, zero)
        L = log2(total * exp2(zero - peak) + exp2(higher - peak)) + peak
    else:
        L = log2(where(nothing, one, total))
    store(above(watched), 0, L)
    if c[at.MAX_LOGIT] != 0:
        put(c[at.MAX_LOGIT], row, count, where(total == total, top * splat(float32(LN_2)), total), held)
    if c[at.ENTROPY] != 0:
        entropy = exp2(zero - L) * (total * L - load(watched, 0))
        if c[at.SINKS] != 0:
            entropy = entropy + where(higher - L < splat(float32(-126.0)), zero, exp2(higher - L) * (L - higher))
        put(c[at.ENTROPY], row, count, where(nothing, zero, entropy) * splat(float32(LN_2)), held)


@compiled
def add_distance(w, factor, first, last, away, distance):
    """Σ_j p_ij (a_0 − j) in every lane; `away` is a_0 minus the block's first key, a_0 the strip's first position."""
    sum_ = splat(float32(0.0))
    for n in range(first, last):
        sum_ = fma(load(w, n * LANES), splat(float32(away - n)), sum_)
    store(distance, 0, fma(sum_, factor, load(distance, 0)))


@compiled
def add_position(w, factors, first, last, place, held):
    """The weight at key row place + lane of a block, for the lanes whose key is in it."""
    for lane in range(max(int64(0), first - place), min(int64(LANES), last - place)):
        held[lane] = w[(place + lane) * LANES + lane] * factors[lane]


@compiled
def count_visible(w, first, last, seen):
    """How many pairs of a block may be seen, added to every lane."""
    count = load(seen, 0)
    for n in range(first, last):
        count = count + where(bits(load(w, n * LANES)) == splat_int(NEVER), splat(float32(0.0)), splat(float32(1.0)))
    store(seen, 0, count)


@compiled
def add_token_relations(c, b, w, factor, first, last, i0, j0, mine, same, following):
    """Weight on earlier keys with the query's own token, and on keys whose predecessor has it.

    `mine` holds the token of each lane's position; lanes whose position is no key hold −1, which no token is.
    """
    tokens = after(ints_at(c[at.TOKENS]), b * c[at.TOKENS_B])
    token = load_int(mine, 0)
    a = lane_numbers() + splat_int(int32(i0 + c[at.OFFSET]))
    zero = splat(float32(0.0))
    on_same, on_following = zero, zero
    for n in range(first, last):
        p, j = load(w, n * LANES), splat_int(int32(j0 + n))
        on_same = on_same + where((token == splat_int(tokens[j0 + n])) & (j < a), p, zero)
        if j0 + n > 0:
            on_following = on_following + where((token == splat_int(tokens[j0 + n - 1])) & (j <= a), p, zero)
    store(same, 0, load(same, 0) + on_same * factor)
    store(following, 0, load(following, 0) + on_following * factor)


@compiled
def copy_rows(c, b, h, w, factors, first, last, i0, j0):
    """The chosen rows of weights that lie in this strip."""
    chosen = ints_at(c[at.ROW_NUMBERS])
    for r in range(c[at.ROW_COUNT]):
        lane = int64(chosen[r]) - i0
        if 0 <= lane < LANES:
            target = after(floats_at(c[at.ROWS]), ((b * c[at.HQ] + h) * c[at.ROW_COUNT] + r) * c[at.TK] + j0)
            for n in range(first, last):
                target[n] = w[n * LANES + lane] * factors[lane] + float32(0.0)  # −0.0 becomes 0


# ------------------------------------------------------------------------------------------------- the k largest of a query


@compiled
def run_length(c, keys):
    """How many keys in a row are represented by the largest of them: RUN, fewer where there are few keys."""
    run = int64(RUN)
    while run > 1 and keys < 4 * c[at.K] * run:
        run //= 2
    return run


@compiled
def add_run_maxima(w, factor, first, last, run, maxima):
    """The largest weight of every run of a block, [run][LANES]; returns how many runs there are."""
    runs = int64(0)
    for start in range(first, last, run):
        high = load(w, start * LANES)
        for n in range(start + 1, min(start + run, last)):
            high = larger(load(w, n * LANES), high)
        store(maxima, runs * LANES, high * factor)
        runs += 1
    return runs


@compiled
def kth_largest(k, maxima, runs, best):
    """A lower bound of the k-th largest weight of every lane: the k-th largest of the maxima of some 4 k longer runs.

    A number sinks through the k best so far, by vector minima and maxima and without a branch.
    """
    for r in range(k):
        store(best, r * LANES, splat(float32(0.0)))
    together = max(int64(1), runs // (4 * k))
    for run in range(0, runs, together):
        high = load(maxima, run * LANES)
        for n in range(run + 1, min(run + together, runs)):
            high = larger(load(maxima, n * LANES), high)
        if lanes_set(high > load(best, (k - 1) * LANES)) != 0:
            for r in range(k):
                held = load(best, r * LANES)
                store(best, r * LANES, larger(held, high))
                high = smaller(held, high)
    return load(best, (k - 1) * LANES)


@compiled
def note_run(w, row, length, factor, least, key, found, keys, slot):
    """Write the weights of a run of one lane down from `slot` on, each over the one before unless that reached the bound."""
    for n in range(length):
        x = w[row + n * LANES] * factor
        found[slot], keys[slot] = x, int32(key + n)
        slot += LANES * (int64(x >= least) & int64(not is_never(x)))
    return slot


@compiled
def add_candidates(w, factors, first, last, run, maxima, bounds, j0, most, counts, found, keys):
    """Every weight of a block that reaches its lane's bound, in the order of the keys: found, keys [most][LANES].

    A run is looked into only for lanes whose bound its largest weight reaches; then each of its weights is written down, and
    the place moves on if it was worth it. A lane that has no room left is not continued.
    """
    bound = load(bounds, 0)
    number_ = int64(0)
    for start in range(first, last, run):
        lanes = lanes_set(load(maxima, number_ * LANES) >= bound)
        number_ += 1
        while lanes != 0:
            lane = lowest_bit(lanes)
            lanes &= lanes - numba.uint64(1)
            count, least, factor = int64(counts[lane]), bounds[lane], factors[lane]
            if count + run > most:
                counts[lane] = int32(most + 1)
                continue
            slot, row = count * LANES + lane, start * LANES + lane
            if run == RUN and start + RUN <= last:  # of known length: no loop is left of it
                slot = note_run(w, row, RUN, factor, least, j0 + start, found, keys, slot)
            else:
                slot = note_run(w, row, min(run, last - start), factor, least, j0 + start, found, keys, slot)
            counts[lane] = int32(slot // LANES)


@compiled
def sort_candidates(k, counts, found, keys, best, best_keys):
    """The k largest of every lane's candidates, largest first, equal ones in the order of their keys."""
    longest = int64(0)
    for lane in range(LANES):
        longest = max(longest, int64(counts[lane]))
    for r in range(k):
        store(best, r * LANES, splat(float32(-1.0)))
        store(best_keys, r * LANES, splat_int(int32(-1)))
    count = load_int(counts, 0)
    for slot in range(longest):
        x, key = load(found, slot * LANES), load_int(keys, slot * LANES)
        x = where(splat_int(int32(slot)) < count, x, splat(float32(-1.0)))
        for r in range(k):
            held, held_key = load(best, r * LANES), load_int(best_keys, r * LANES)
            higher = x > held
            store(best, r * LANES, where(higher, x, held))
            store(best_keys, r * LANES, where(higher, key, held_key))
            x, key = where(higher, held, x), where(higher, held_key, key)


@compiled
def insert_all(c, watched, lane, begin_, end, best, best_keys):
    """The same for one lane by looking at every key: for rows of many equal weights, which all reach the bound."""
    k = c[at.K]
    for r in range(k):
        best[r * LANES + lane], best_keys[r * LANES + lane] = float32(-1.0), int32(-1)
    block = int64(0)
    for j0 in range(begin_, end, BLOCK):
        w, rows, factor = weights(c, watched, block), block_rows(watched, block), block_factor(watched, block)[lane]
        for n in range(rows[0], rows[1]):
            x = w[n * LANES + lane] * factor
            if x > best[(k - 1) * LANES + lane] and not is_never(x):
                place = k - 1
                while place > 0 and best[(place - 1) * LANES + lane] < x:
                    best[place * LANES + lane] = best[(place - 1) * LANES + lane]
                    best_keys[place * LANES + lane] = best_keys[(place - 1) * LANES + lane]
                    place -= 1
                best[place * LANES + lane], best_keys[place * LANES + lane] = x, int32(j0 + n)
        block += 1


@compiled
def write_largest(c, watched, row, count, begin_, end, scratch):
    """The k largest weights of every query of a strip, and their keys.

    A bound for the k-th largest is found without a branch, from the maxima of short runs; few weights reach it, and only those
    are put in order.
    """
    k = c[at.K]
    most = 2 * k + 16
    bounds, counts = scratch, as_ints(after(scratch, LANES))
    best, best_keys = after(scratch, 2 * LANES), as_ints(after(scratch, (2 + k) * LANES))
    found, keys = after(scratch, (2 + 2 * k) * LANES), as_ints(after(scratch, (2 + 2 * k + most) * LANES))
    maxima = after(scratch, (2 + 2 * k + 2 * most) * LANES)
    run, runs, block = run_length(c, end - begin_), int64(0), int64(0)
    for _ in range(begin_, end, BLOCK):
        rows = block_rows(watched, block)
        if rows[0] < rows[1]:
            factor = load(block_factor(watched, block), 0)
            w = weights(c, watched, block)
            runs += add_run_maxima(w, factor, int64(rows[0]), int64(rows[1]), run, after(maxima, runs * LANES))
        block += 1
    store(bounds, 0, kth_largest(k, maxima, runs, best))
    for lane in range(LANES):
        counts[lane] = int32(0)
    runs = block = int64(0)
    for j0 in range(begin_, end, BLOCK):
        rows, w = block_rows(watched, block), weights(c, watched, block)
        first, last = int64(rows[0]), int64(rows[1])
        factors = block_factor(watched, block)
        add_candidates(w, factors, first, last, run, after(maxima, runs * LANES), bounds, j0, most, counts, found, keys)
        runs += (last - first + run - 1) // run
        block += 1
    sort_candidates(k, counts, found, keys, best, best_keys)
    for lane in range(count):
        if counts[lane] > most:
            insert_all(c, watched, lane, begin_, end, best, best_keys)
        for r in range(k):
            longs_at(c[at.TOP_KEYS])[(row + lane) * k + r] = int64(best_keys[r * LANES + lane])
            x = best[r * LANES + lane]
            floats_at(c[at.TOP_WEIGHTS])[(row + lane) * k + r] = x if x > float32(0.0) else float32(0.0)


# ----------------------------------------------------------------------------------------------------- sums over queries


@compiled
def read_real(c, b, i0, real):
    """1 for the lanes that hold a query which is not padding, else 0."""
    padded = bytes_at(c[at.PADDED])
    for lane in range(LANES):
        i = i0 + lane
        real[lane] = int32(i < c[at.TQ] and (c[at.PADDED] == 0 or padded[b * c[at.PADDED_B] + i] == 0))


@compiled
def add_received(w, factor, first, last, target):
    """Σ_i p_ij for every key of a block."""
    whole = first + (last - first) // WIDTH * WIDTH
    for n in range(first, whole, WIDTH):
        add_row_sums(after(w, n * LANES), factor, after(target, n))
    for n in range(whole, last):
        target[n] += sum_of(load(w, n * LANES) * factor)


@compiled
def add_map(c, w, factor, first, last, j0, sums, maxima):
    """Sum and maximum of the weights in each column of the map, every lane by itself."""
    bounds, cell_of_key = floats_at(c[at.MAP_COLUMN_BOUNDS]), ints_at(c[at.MAP_COLUMN])
    n = first
    while n < last:
        cell = int64(cell_of_key[j0 + n])
        end = min(int64(bounds[cell + 1]) - j0, last)
        sum_, high = load(sums, cell * LANES), load(maxima, cell * LANES)
        for m in range(n, end):
            p = load(w, m * LANES) * factor
            sum_ = sum_ + p
            high = larger(p, high)
        store(sums, cell * LANES, sum_)
        store(maxima, cell * LANES, high)
        n = end


@compiled
def add_map_counts(c, w, kept, first, last, j0, counts):
    """How many pairs of each column of the map may be seen, where intervals do not say it."""
    cell_of_key = ints_at(c[at.MAP_COLUMN])
    zero, one = splat(float32(0.0)), splat(float32(1.0))
    for n in range(first, last):
        cell = int64(cell_of_key[j0 + n])
        seen = where(bits(load(w, n * LANES)) == splat_int(NEVER), zero, where(kept, one, zero))
        store(counts, cell * LANES, load(counts, cell * LANES) + seen)


@compiled
def finish_map(c, address, cells, i0, first, columns, turned, adding):
    """Add the columns of a strip to the rows of the map its lanes belong to, or take the maximum.

    `cells` [columns][LANES] are turned on their side, so that each lane is a row of cells. Both numbers are whole registers.
    """
    cell_of_query = ints_at(c[at.MAP_ROW])
    lift(after(cells, first * LANES), columns, turned, columns)
    for lane in range(min(LANES, c[at.TQ] - i0)):
        row = after(floats_at(address), int64(cell_of_query[i0 + lane]) * c[at.MAP_COLUMNS] + first)
        for n in range(0, columns, WIDTH):
            x, y = load_short(turned, lane * columns + n), load_short(row, n)
            store(row, n, y + x if adding else larger(x, y))


@compiled
def begin_part(c, part):
    """Sums over queries begin at 0."""
    if c[at.RECEIVED] != 0:
        received = after(doubles_at(c[at.RECEIVED]), part * c[at.TK])
        for j in range(c[at.TK]):
            received[j] = 0.0
    cells = c[at.MAP_ROWS] * c[at.MAP_COLUMNS]
    for address in (c[at.MAP_SUM], c[at.MAP_MAX], c[at.MAP_COUNT]):
        if address != 0:
            sums = after(floats_at(address), part * cells)
            for n in range(cells):
                sums[n] = float32(0.0)


@compiled
def count_pairs(c, b, row, counts):
    """How many pairs of each cell of a row of the map may be seen, by the intervals alone."""
    bounds, cell_of_query = floats_at(c[at.MAP_COLUMN_BOUNDS]), ints_at(c[at.MAP_ROW])
    zero = splat_short(float32(0.0))
    lo, hi = after(ints_at(c[at.LO]), b * c[at.INTERVAL_B]), after(ints_at(c[at.HI]), b * c[at.INTERVAL_B])
    padded = bytes_at(c[at.PADDED])
    for column in range(0, c[at.MAP_COLUMNS], WIDTH):
        store(counts, column, zero)
    begin_ = row * c[at.TQ] // c[at.MAP_ROWS]  # as the cells were cut, rounded down
    for i in range(begin_, c[at.TQ]):
        if cell_of_query[i] != row:
            break
        if c[at.PADDED] == 0 or padded[b * c[at.PADDED_B] + i] == 0:
            low, high = splat_short(float32(lo[i])), splat_short(float32(hi[i]))
            for column in range(0, c[at.MAP_COLUMNS], WIDTH):
                seen = smaller(load_short(bounds, column + 1), high) - larger(load_short(bounds, column), low)
                store(counts, column, load_short(counts, column) + larger(seen, zero))


@compiled
def merge_head(c, head, scratch):
    """The parts of a head's sums over queries, added up in their order; the map's sums become means."""
    parts, TK = c[at.PARTS], c[at.TK]
    if c[at.RECEIVED] != 0:
        received = floats_at(c[at.RECEIVED_OUT])
        sums = doubles_at(c[at.RECEIVED])
        for j in range(TK):
            total = sums[head * parts * TK + j]
            for part in range(1, parts):
                total += sums[(head * parts + part) * TK + j]
            received[head * TK + j] = float32(total)
    columns, rows = c[at.MAP_COLUMNS], c[at.MAP_ROWS]
    if columns == 0:
        return
    zero, one = splat_short(float32(0.0)), splat_short(float32(1.0))
    sums, maxima, counts = floats_at(c[at.MAP_SUM]), floats_at(c[at.MAP_MAX]), floats_at(c[at.MAP_COUNT])
    means, highest = floats_at(c[at.MAP_MEAN_OUT]), floats_at(c[at.MAP_MAX_OUT])
    for row in range(rows):
        if c[at.MAP_COUNT] == 0:
            count_pairs(c, head // c[at.HQ], row, scratch)
        for column in range(0, columns, WIDTH):
            total, high, pairs = zero, zero, zero
            for part in range(parts):
                cell = ((head * parts + part) * rows + row) * columns + column
                total = total + load_short(sums, cell)
                high = larger(load_short(maxima, cell), high)
                if c[at.MAP_COUNT] != 0:
                    pairs = pairs + load_short(counts, cell)
            if c[at.MAP_COUNT] == 0:
                pairs = load_short(scratch, column)
            cell = (head * rows + row) * columns + column
            store(means, cell, total / larger(pairs, one))
            store(highest, cell, where(total == total, high, total))  # a vector maximum passes NaN over


# ------------------------------------------------------------------------------------------------------------- when done


@compiled
def make_whole(w, factor, tame, first, last):
    """A block's weights become those of whole rows, in lanes that are not tame; what may not be seen keeps −0.0."""
    for n in range(first, last):
        p = load(w, n * LANES)
        store(w, n * LANES, where(tame | (bits(p) == splat_int(NEVER)), p, p * factor))


@compiled
def blank(w, kept, first, last):
    """No weight, not even NaN, in the lanes that do not count."""
    for n in range(first, last):
        store(w, n * LANES, where(kept, load(w, n * LANES), splat(float32(0.0))))


@compiled
def when_done(c, b, h, part, strip, watched, i0, scratch):
    """Everything that is measured on the weights of a strip. `part` says whose sums over queries these are."""
    columns = c[at.MAP_COLUMNS]
    top, total = load(strips.top(c, strip), 0), load(strips.total(c, strip), 0)
    real, mine = as_ints(scratch), as_ints(after(scratch, LANES))
    seen, distance = after(scratch, 2 * LANES), after(scratch, 3 * LANES)
    same, following = after(scratch, 4 * LANES), after(scratch, 5 * LANES)
    own, previous, leading = after(scratch, 6 * LANES), after(scratch, 7 * LANES), after(scratch, 8 * LANES)
    held, sums = after(scratch, 9 * LANES), after(scratch, 10 * LANES)
    maxima, counts = after(sums, columns * LANES), after(sums, 2 * columns * LANES)
    turned = after(sums, 3 * columns * LANES)
    zero, one = splat(float32(0.0)), splat(float32(1.0))
    for n in range(2, 10):
        store(scratch, n * LANES, zero)
    read_real(c, b, i0, real)
    kept = load_int(real, 0) == splat_int(int32(1))
    tame = total == total  # no NaN in a lane
    all_tame = lanes_set(tame) == ALL_LANES
    a = i0 + c[at.OFFSET]
    if c[at.TOKENS] != 0:
        tokens = after(ints_at(c[at.TOKENS]), b * c[at.TOKENS_B])
        for lane in range(LANES):
            mine[lane] = tokens[a + lane] if 0 <= a + lane < c[at.TK] else int32(-1)
    spans = strips.spans(c, strip)
    begin_, end = spans[0] // BLOCK * BLOCK, spans[3]
    block = int64(0)
    for j0 in range(begin_, end, BLOCK):
        rows, w, factors = block_rows(watched, block), weights(c, watched, block), block_factor(watched, block)
        first, last = int64(rows[0]), int64(rows[1])
        block += 1
        if first >= last:
            continue
        # Until a lane has seen something its maximum is −inf, and its weights are 0 whatever they are multiplied by.
        anchor = load(factors, 0)
        factor = where(anchor == splat(HIDDEN), zero, exp2((anchor - top) - load(above(watched), 0)))
        if not all_tame:
            make_whole(w, factor, tame, first, last)
            factor = where(tame, factor, one)
        store(factors, 0, factor)
        if c[at.VISIBLE] != 0:
            count_visible(w, first, last, seen)
        if c[at.DISTANCE] != 0:
            add_distance(w, factor, first, last, a - j0, distance)
        if c[at.SELF] != 0:
            add_position(w, factors, first, last, a - j0, own)
            add_position(w, factors, first, last, a - 1 - j0, previous)
            if j0 == 0 and first == 0:
                store(leading, 0, load(w, 0) * factor)
        if c[at.TOKENS] != 0:
            add_token_relations(c, b, w, factor, first, last, i0, j0, mine, same, following)
        if c[at.ROWS] != 0:
            copy_rows(c, b, h, w, factors, first, last, i0, j0)
    row, count = (b * c[at.HQ] + h) * c[at.TQ] + i0, min(LANES, c[at.TQ] - i0)
    if c[at.VISIBLE] != 0:
        put(c[at.VISIBLE], row, count, load(seen, 0), held)
    if c[at.DISTANCE] != 0:
        # Measured from the strip's first query; each lane is that much further along, as often as it has weight.
        mass = where(total == zero, zero, exp2(zero - load(above(watched), 0)) * total)
        put(c[at.DISTANCE], row, count, fma(mass, to_floats(lane_numbers()), load(distance, 0)), held)
    if c[at.SELF] != 0:
        put(c[at.SELF], row, count, load(own, 0) + zero, held)  # −0.0 becomes 0
        put(c[at.PREVIOUS], row, count, load(previous, 0) + zero, held)
        put(c[at.FIRST], row, count, load(leading, 0) + zero, held)
    if c[at.TOKENS] != 0:
        put(c[at.SAME], row, count, load(same, 0), held)
        put(c[at.AFTER_SAME], row, count, load(following, 0), held)
    if c[at.K] != 0:
        write_largest(c, watched, row, count, begin_, end, sums)
    for n in range(3 * columns):
        store(sums, n * LANES, zero)
    block = int64(0)
    for j0 in range(begin_, end, BLOCK):
        rows, w = block_rows(watched, block), weights(c, watched, block)
        first, last = int64(rows[0]), int64(rows[1])
        factor = where(kept, load(block_factor(watched, block), 0), zero)
        block += 1
        if first >= last:
            continue
        if columns != 0 and c[at.MAP_COUNT] != 0:
            add_map_counts(c, w, kept, first, last, j0, counts)
        if not all_tame:
            blank(w, kept, first, last)
        if c[at.RECEIVED] != 0:
            add_received(w, factor, first, last, after(doubles_at(c[at.RECEIVED]), part * c[at.TK] + j0))
        if columns != 0:
            add_map(c, w, factor, first, last, j0, sums, maxima)
    if columns != 0 and begin_ < end:
        cell_of_key = ints_at(c[at.MAP_COLUMN])
        left = int64(cell_of_key[begin_]) // WIDTH * WIDTH
        wide = strips.rounded_up(int64(cell_of_key[end - 1]) + 1 - left, WIDTH)
        start = 4 * part * c[at.MAP_ROWS] * columns
        finish_map(c, c[at.MAP_SUM] + start, sums, i0, left, wide, turned, True)
        finish_map(c, c[at.MAP_MAX] + start, maxima, i0, left, wide, turned, False)
        if c[at.MAP_COUNT] != 0:
            finish_map(c, c[at.MAP_COUNT] + start, counts, i0, left, wide, turned, True)
