"""What is measured while attention is computed. Two kinds of quantities, two places:

- `while_passing`, before a block's logits become weights: what must see every logit and can be carried along under a running
  maximum. The k largest logits, and Σ p z for the entropy (in `softmax_block`, where both are in registers).
- `when_done`, after a strip has met all its keys: the weights of its blocks were kept, and a factor a lane makes them those
  of whole rows. Everything that is linear in the weights is one short loop there: that is the place for another observable.

Memory of one strip while it is observed, in float32 from `watched` on:

    entropy, above       LANES each: Σ p z under the running maximum; L − top at the end
    floor                LANES: the k-th largest logit listed so far
    best                 [k][LANES]: the largest maxima of short runs of keys
    listed, listed_keys  [k][LANES]: the k largest logits, and their keys as int32
    blocks               for each block: its maximum at the time [LANES], first and last row (two int32 in WIDTH floats)
    weights              [keys][LANES]
"""

import numba
from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu import strip as strips
from clearhead.kernels.cpu.logits import HIDDEN
from clearhead.kernels.cpu.powers import LN_2, LOG2_E, exp2, log2
from clearhead.kernels.cpu.rows import number
from clearhead.kernels.cpu.strip import BLOCK
from clearhead.kernels.cpu.tile import ROWS
from clearhead.kernels.cpu.vector import (
    LANES,
    after,
    as_ints,
    bits,
    bytes_at,
    doubles_at,
    floats_at,
    fma,
    ints_at,
    lane_numbers,
    lanes_set,
    larger,
    load,
    load_int,
    longs_at,
    lowest_bit,
    smaller,
    splat,
    splat_int,
    store,
    sum_of,
    to_floats,
    where,
)

NEVER = int32(-2147483648)  # the bits of −0.0: the weight of a pair that may not be seen
RUN = ROWS  # keys whose largest logit stands for them in the search for the k-th largest


# ------------------------------------------------------------------------------------------------- where things are kept


@numba.njit(error_model="numpy")
def size(c):
    """Floats that observing adds to a strip."""
    blocks = (c[at.LONGEST] + BLOCK - 1) // BLOCK
    return (3 + 3 * c[at.K] + 2 * blocks + c[at.LONGEST]) * LANES


@numba.njit(error_model="numpy")
def above(watched):
    """[LANES]: L − top, once a strip is done."""
    return after(watched, LANES)


@numba.njit(error_model="numpy")
def floor(watched):
    """[LANES]: a logit must be larger to be listed."""
    return after(watched, 2 * LANES)


@numba.njit(error_model="numpy")
def best(watched):
    """[k][LANES]: the largest maxima of runs."""
    return after(watched, 3 * LANES)


@numba.njit(error_model="numpy")
def listed(c, watched):
    """[k][LANES]: the largest logits, largest first."""
    return after(best(watched), c[at.K] * LANES)


@numba.njit(error_model="numpy")
def listed_keys(c, watched):
    """[k][LANES] int32: their keys."""
    return as_ints(after(best(watched), 2 * c[at.K] * LANES))


@numba.njit(error_model="numpy")
def block_top(c, watched, block):
    """[LANES]: the running maximum under which a block's weights were computed."""
    return after(best(watched), (3 * c[at.K] + 2 * block) * LANES)


@numba.njit(error_model="numpy")
def block_rows(c, watched, block):
    """First and last row of a block that were computed, two int32."""
    return as_ints(after(block_top(c, watched, block), LANES))


@numba.njit(error_model="numpy")
def weights(c, watched, block):
    """[BLOCK][LANES] of one block."""
    blocks = (c[at.LONGEST] + BLOCK - 1) // BLOCK
    return after(best(watched), (3 * c[at.K] + 2 * blocks + block * BLOCK) * LANES)


@numba.njit(error_model="numpy")
def begin(c, watched):
    """Before the first key."""
    store(watched, 0, splat(float32(0.0)))
    store(floor(watched), 0, splat(HIDDEN))
    for r in range(c[at.K]):
        store(best(watched), r * LANES, splat(HIDDEN))
        store(listed(c, watched), r * LANES, splat(HIDDEN))
        for lane in range(LANES):
            listed_keys(c, watched)[r * LANES + lane] = int32(-1)
    for block in range((c[at.LONGEST] + BLOCK - 1) // BLOCK):
        block_rows(c, watched, block)[0] = block_rows(c, watched, block)[1] = int32(0)


# -------------------------------------------------------------------------------------------------------- while passing


@numba.njit(error_model="numpy")
def list_largest(c, watched, s, first, last, j0):
    """Carry the k largest logits of every lane along.

    The k-th largest of the maxima of short runs is a lower bound of the k-th largest logit, found without a branch; few logits
    lie above it, and only those are put in order. Keys come in rising order, so equal logits keep the smaller key.
    """
    k = c[at.K]
    maxima, found, keys, least = best(watched), listed(c, watched), listed_keys(c, watched), floor(watched)
    for run in range(first, last, RUN):
        high = load(s, run * LANES)
        for n in range(run + 1, min(run + RUN, last)):
            high = larger(load(s, n * LANES), high)
        if lanes_set(high > load(maxima, (k - 1) * LANES)) != 0:
            for r in range(k):
                held = load(maxima, r * LANES)
                store(maxima, r * LANES, larger(held, high))
                high = smaller(held, high)
    bound = load(maxima, (k - 1) * LANES)
    for n in range(first, last):
        z = load(s, n * LANES)
        candidates = lanes_set((z >= bound) & (z > load(least, 0)))
        while candidates != 0:
            lane = lowest_bit(candidates)
            candidates &= candidates - numba.uint64(1)
            x = s[n * LANES + lane]
            place = k - 1
            while place > 0 and found[(place - 1) * LANES + lane] < x:
                found[place * LANES + lane] = found[(place - 1) * LANES + lane]
                keys[place * LANES + lane] = keys[(place - 1) * LANES + lane]
                place -= 1
            found[place * LANES + lane] = x
            keys[place * LANES + lane] = int32(j0 + n)
            least[lane] = found[(k - 1) * LANES + lane]


@numba.njit(error_model="numpy")
def while_passing(c, watched, s, first, last, j0, block):
    """Before the logits of a block become weights."""
    rows = block_rows(c, watched, block)
    rows[0], rows[1] = int32(first), int32(last)
    if c[at.K] != 0:
        list_largest(c, watched, s, first, last, j0)


# ------------------------------------------------------------------------------------------------------------- when done


@numba.njit(error_model="numpy")
def put(address, row, count, x, held):
    """Write one number a query; `held` is scratch for LANES floats."""
    store(held, 0, x)
    target = after(floats_at(address), row)
    for lane in range(count):
        target[lane] = held[lane]


@numba.njit(error_model="numpy")
def finish_rows(c, watched, h, row, count, top, total, held):
    """What needs only the running quantities: largest logit, entropy, sink, the k largest. Leaves L − top in `above`.

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
    k = c[at.K]
    for r in range(k):
        z, keys = load(listed(c, watched), r * LANES), after(listed_keys(c, watched), r * LANES)
        store(held, 0, where(z == splat(HIDDEN), zero, exp2((z - top) - L)))
        for lane in range(count):
            longs_at(c[at.TOP_KEYS])[(row + lane) * k + r] = int64(keys[lane])
            floats_at(c[at.TOP_WEIGHTS])[(row + lane) * k + r] = held[lane]


@numba.njit(error_model="numpy")
def make_whole(c, watched, block, first, last, top):
    """A block's weights become those of whole rows; pairs that may not be seen keep −0.0, whatever the factor."""
    w = weights(c, watched, block)
    anchor = load(block_top(c, watched, block), 0)
    # Until a lane has seen something its maximum is −inf, and its weights are 0 whatever they are multiplied by.
    factor = where(anchor == splat(HIDDEN), splat(float32(0.0)), exp2((anchor - top) - load(above(watched), 0)))
    for n in range(first, last):
        p = load(w, n * LANES)
        store(w, n * LANES, where(bits(p) == splat_int(NEVER), p, p * factor))


@numba.njit(error_model="numpy")
def read_real(c, b, i0, real):
    """1 for the lanes that hold a query which is not padding, else 0."""
    padded = bytes_at(c[at.PADDED])
    for lane in range(LANES):
        i = i0 + lane
        real[lane] = int32(i < c[at.TQ] and (c[at.PADDED] == 0 or padded[b * c[at.PADDED_B] + i] == 0))


@numba.njit(error_model="numpy")
def add_received(w, first, last, real, target):
    """Σ_i p_ij over the queries that are not padding, for every key of a block."""
    kept, zero = load_int(real, 0) == splat_int(int32(1)), splat(float32(0.0))
    for n in range(first, last):
        target[n] += sum_of(where(kept, load(w, n * LANES), zero))


@numba.njit(error_model="numpy")
def add_map(c, w, first, last, j0, real, sums, maxima, counts):
    """Sum, maximum and number of the pairs in each column of the map, every lane by itself."""
    kept, zero = load_int(real, 0) == splat_int(int32(1)), splat(float32(0.0))
    bounds = ints_at(c[at.MAP_COLUMN_BOUNDS])
    cell_of_key = ints_at(c[at.MAP_COLUMN])
    n = first
    while n < last:
        cell = int64(cell_of_key[j0 + n])
        end = min(int64(bounds[cell + 1]) - j0, last)
        sum_, high, count = load(sums, cell * LANES), load(maxima, cell * LANES), load(counts, cell * LANES)
        for m in range(n, end):
            p = load(w, m * LANES)
            shown = where(kept, p, zero)
            sum_ = sum_ + shown
            high = larger(shown, high)
            count = count + where(bits(p) == splat_int(NEVER), zero, splat(float32(1.0)))
        store(sums, cell * LANES, sum_)
        store(maxima, cell * LANES, high)
        store(counts, cell * LANES, where(kept, count, zero))
        n = end


@numba.njit(error_model="numpy")
def finish_map(c, part, i0, begin, end, sums, maxima, counts):
    """The lanes of a strip into the rows of the map they belong to."""
    cell_of_key, cell_of_query = ints_at(c[at.MAP_COLUMN]), ints_at(c[at.MAP_ROW])
    columns = c[at.MAP_COLUMNS]
    start = part * c[at.MAP_ROWS] * columns
    all_sums, all_maxima, all_counts = (
        after(floats_at(c[at.MAP_SUM]), start),
        after(floats_at(c[at.MAP_MAX]), start),
        after(floats_at(c[at.MAP_COUNT]), start),
    )
    count = min(LANES, c[at.TQ] - i0)
    for column in range(int64(cell_of_key[begin]), int64(cell_of_key[end - 1]) + 1):
        lane = int64(0)
        while lane < count:
            row = int64(cell_of_query[i0 + lane])
            sum_, high, pairs = float32(0.0), float32(0.0), float32(0.0)
            while lane < count and cell_of_query[i0 + lane] == row:
                x = column * LANES + lane
                sum_ += sums[x]
                pairs += counts[x]
                high = max(high, maxima[x])
                lane += 1
            if sum_ != sum_:
                high = sum_  # a maximum passes NaN over
            cell = row * columns + column
            all_sums[cell] += sum_
            all_counts[cell] += pairs
            if not high <= all_maxima[cell]:  # also where it is NaN
                all_maxima[cell] = high


@numba.njit(error_model="numpy")
def count_visible(w, first, last, seen):
    """How many pairs of a block may be seen, added to every lane."""
    count = load(seen, 0)
    for n in range(first, last):
        count = count + where(bits(load(w, n * LANES)) == splat_int(NEVER), splat(float32(0.0)), splat(float32(1.0)))
    store(seen, 0, count)


@numba.njit(error_model="numpy")
def add_distance(w, first, last, away, distance):
    """Σ_j p_ij (a_0 − j) in every lane; `away` is a_0 minus the block's first key, a_0 the strip's first position."""
    sum_ = splat(float32(0.0))
    for n in range(first, last):
        sum_ = fma(load(w, n * LANES), splat(float32(away - n)), sum_)
    store(distance, 0, load(distance, 0) + sum_)


@numba.njit(error_model="numpy")
def add_position(w, first, last, place, held):
    """The weight at key row place + lane of a block, for the lanes whose key is in it."""
    for lane in range(max(int64(0), first - place), min(int64(LANES), last - place)):
        held[lane] = w[(place + lane) * LANES + lane]


@numba.njit(error_model="numpy")
def add_token_relations(c, b, w, first, last, i0, j0, mine, same, following):
    """Weight on earlier keys with the query's own token, and on keys whose predecessor has it.

    `mine` holds the token of each lane's position; lanes whose position is no key hold −1, which no token is.
    """
    tokens = after(ints_at(c[at.TOKENS]), b * c[at.TOKENS_B])
    token = load_int(mine, 0)
    a = lane_numbers() + splat_int(int32(i0 + c[at.OFFSET]))
    zero = splat(float32(0.0))
    on_same, on_following = load(same, 0), load(following, 0)
    for n in range(first, last):
        p, j = load(w, n * LANES), splat_int(int32(j0 + n))
        on_same = on_same + where((token == splat_int(tokens[j0 + n])) & (j < a), p, zero)
        if j0 + n > 0:
            on_following = on_following + where((token == splat_int(tokens[j0 + n - 1])) & (j <= a), p, zero)
    store(same, 0, on_same)
    store(following, 0, on_following)


@numba.njit(error_model="numpy")
def copy_rows(c, b, h, w, first, last, i0, j0):
    """The chosen rows of weights that lie in this strip."""
    chosen = ints_at(c[at.ROW_NUMBERS])
    for r in range(c[at.ROW_COUNT]):
        lane = int64(chosen[r]) - i0
        if 0 <= lane < LANES:
            target = after(floats_at(c[at.ROWS]), ((b * c[at.HQ] + h) * c[at.ROW_COUNT] + r) * c[at.TK] + j0)
            for n in range(first, last):
                target[n] = w[n * LANES + lane] + float32(0.0)  # −0.0 becomes 0


@numba.njit(error_model="numpy")
def scratch_size(c):
    """Floats that `when_done` needs for itself: ten numbers a lane, and three a lane for each column of the map."""
    return (10 + 3 * c[at.MAP_COLUMNS]) * LANES


@numba.njit(error_model="numpy")
def when_done(c, b, h, part, strip, watched, i0, scratch):
    """Everything linear in the weights of a strip. `part` says whose sums over queries these are."""
    columns = c[at.MAP_COLUMNS]
    top = strips.top(c, strip)
    real, mine = as_ints(scratch), as_ints(after(scratch, LANES))
    seen, distance, same, following, own, previous, leading = (
        after(scratch, 2 * LANES),
        after(scratch, 3 * LANES),
        after(scratch, 4 * LANES),
        after(scratch, 5 * LANES),
        after(scratch, 6 * LANES),
        after(scratch, 7 * LANES),
        after(scratch, 8 * LANES),
    )
    held, sums = after(scratch, 9 * LANES), after(scratch, 10 * LANES)
    maxima, counts = after(sums, columns * LANES), after(sums, 2 * columns * LANES)
    for n in range(2, 10 + 3 * columns):
        store(scratch, n * LANES, splat(float32(0.0)))
    read_real(c, b, i0, real)
    a = i0 + c[at.OFFSET]
    if c[at.TOKENS] != 0:
        tokens = after(ints_at(c[at.TOKENS]), b * c[at.TOKENS_B])
        for lane in range(LANES):
            mine[lane] = tokens[a + lane] if 0 <= a + lane < c[at.TK] else int32(-1)
    spans = strips.spans(c, strip)
    block = int64(0)
    for j0 in range(spans[0] // BLOCK * BLOCK, spans[3], BLOCK):
        rows = block_rows(c, watched, block)
        first, last = int64(rows[0]), int64(rows[1])
        w = weights(c, watched, block)
        if first < last:
            make_whole(c, watched, block, first, last, load(top, 0))
            if c[at.RECEIVED] != 0:
                add_received(w, first, last, real, after(doubles_at(c[at.RECEIVED]), part * c[at.TK] + j0))
            if columns != 0:
                add_map(c, w, first, last, j0, real, sums, maxima, counts)
            if c[at.VISIBLE] != 0:
                count_visible(w, first, last, seen)
            if c[at.DISTANCE] != 0:
                add_distance(w, first, last, a - j0, distance)
            if c[at.SELF] != 0:
                add_position(w, first, last, a - j0, own)
                add_position(w, first, last, a - 1 - j0, previous)
                if j0 == 0 and first == 0:
                    store(leading, 0, load(w, 0))
            if c[at.TOKENS] != 0:
                add_token_relations(c, b, w, first, last, i0, j0, mine, same, following)
            if c[at.ROWS] != 0:
                copy_rows(c, b, h, w, first, last, i0, j0)
        block += 1
    row, count = (b * c[at.HQ] + h) * c[at.TQ] + i0, min(LANES, c[at.TQ] - i0)
    none = splat(float32(0.0))
    if columns != 0 and spans[0] < spans[3]:
        finish_map(c, part, i0, spans[0], spans[3], sums, maxima, counts)
    if c[at.VISIBLE] != 0:
        put(c[at.VISIBLE], row, count, load(seen, 0), held)
    if c[at.DISTANCE] != 0:
        # Measured from the strip's first query; each lane is that much further along, as often as it has weight.
        mass = where(
            load(strips.total(c, strip), 0) == none,
            none,
            exp2(none - load(above(watched), 0)) * load(strips.total(c, strip), 0),
        )
        put(c[at.DISTANCE], row, count, load(distance, 0) + mass * to_floats(lane_numbers()), held)
    if c[at.SELF] != 0:
        put(c[at.SELF], row, count, load(own, 0) + none, held)
        put(c[at.PREVIOUS], row, count, load(previous, 0) + none, held)
        put(c[at.FIRST], row, count, load(leading, 0) + none, held)
    if c[at.TOKENS] != 0:
        put(c[at.SAME], row, count, load(same, 0), held)
        put(c[at.AFTER_SAME], row, count, load(following, 0), held)
