"""The k largest weights of every query, and their keys."""

import numba
from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.kept import NEVER, block_factor, block_rows, block_runs, note_runs, run_maxima, weights
from clearhead.kernels.cpu.machine import BLOCK, RUN
from clearhead.kernels.cpu.vector import (
    LANES,
    after,
    as_ints,
    bits,
    bits_of,
    compiled,
    count_bits,
    floats_at,
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
    where,
)

RUNS = BLOCK // RUN  # of a block
LANE_BITS = 6  # a run and a lane are one number: run · 2^LANE_BITS + lane
RUN_BITS = RUNS.bit_length() - 1  # RUNS = 2^RUN_BITS
FULL = int32(2**31 - 1)  # the place of a lane that has more candidates than there is room
USUAL = 3  # lanes that are written down of every run, without asking how many there are


@compiled
def kth_largest(c, watched, blocks, best):
    """A lower bound of the k-th largest weight of every lane: the k-th largest of the maxima of some 4 k longer runs.

    A number sinks through the k best so far, by vector minima and maxima and without a branch.
    """
    k = c[at.K]
    for r in range(k):
        store(best, r * LANES, splat(float32(0.0)))
    together = min(max(int64(1), blocks * RUNS // (4 * k)), int64(RUNS))
    for block in range(blocks):
        maxima, factor = run_maxima(c, watched, block), load(block_factor(watched, block), 0)
        first, last = block_runs(watched, block)
        for run in range(first, last, together):
            high = load(maxima, run * LANES)
            for n in range(run + 1, min(run + together, last)):
                high = larger(load(maxima, n * LANES), high)
            high = high * factor
            if lanes_set(high > load(best, (k - 1) * LANES)) != 0:
                for r in range(k):
                    held = load(best, r * LANES)
                    store(best, r * LANES, larger(high, held))  # held where they are equal: 0, never −0.0
                    high = smaller(held, high)
    return load(best, (k - 1) * LANES)


@compiled
def list_reached(c, watched, blocks, bound, reached):
    """Every run and lane whose largest weight reaches the lane's bound, run by run; returns how many there are.

    Which lanes those are cannot be foreseen, and a processor that guesses wrong loses more than all else here takes.
    """
    count = int64(0)
    for block in range(blocks):
        maxima, factor = run_maxima(c, watched, block), load(block_factor(watched, block), 0)
        first, last = block_runs(watched, block)
        for run in range(first, last):
            high = load(maxima, run * LANES) * factor
            lanes = lanes_set((high >= bound) & (bits(high) > splat_int(NEVER)))
            left, name = lanes, (block * RUNS + run) << LANE_BITS
            for n in range(USUAL):  # beyond the last lane, what will be written over
                reached[count + n] = int32(name + lowest_bit(left))
                left &= left - numba.uint64(1)
            place = count + USUAL
            while left != 0:
                reached[place] = int32(name + lowest_bit(left))
                left &= left - numba.uint64(1)
                place += 1
            count += count_bits(lanes)
    return count


@compiled
def add_candidates(c, watched, begin_, reached, listed, bounds, most, places, found, keys):
    """Every weight that reaches its lane's bound, in the order of the keys: found, keys [most][LANES].

    `places` says where each lane's next goes. Each weight of a run is written down over the one before, unless that one reached
    the bound. A lane that has no room left is marked FULL.
    """
    w, last_place = weights(c, watched, 0), (most - RUN + 1) * LANES
    for n in range(listed):
        lane, run = int64(reached[n]) & ((1 << LANE_BITS) - 1), int64(reached[n]) >> LANE_BITS
        place, least = int64(places[lane]), bits_of(bounds[lane])
        if place >= last_place:
            places[lane] = FULL
            continue
        factor, row, key = block_factor(watched, run >> RUN_BITS)[lane], run * RUN * LANES + lane, begin_ + run * RUN
        for m in range(RUN):
            x = w[row + m * LANES] * factor
            found[place], keys[place] = x, int32(key + m)
            place += LANES * int64(bits_of(x) >= least)
        places[lane] = int32(place)


@compiled
def begin_best(k, best, best_keys):
    """Nothing is found yet."""
    for r in range(k):
        store(best, r * LANES, splat(float32(-1.0)))
        store(best_keys, r * LANES, splat_int(int32(-1)))


@compiled
def sink(x, key, k, best, best_keys):
    """Put a weight and its key where they belong among the k largest, in every lane; among equal ones, last.

    Every place decides by itself, from below: it keeps what it holds, takes what is above it, or takes what is new.
    """
    held, held_key = load(best, (k - 1) * LANES), load_int(best_keys, (k - 1) * LANES)
    higher = x > held
    for r in range(k - 1, 0, -1):
        above, above_key = load(best, (r - 1) * LANES), load_int(best_keys, (r - 1) * LANES)
        passes = x > above
        store(best, r * LANES, where(higher, where(passes, above, x), held))
        store(best_keys, r * LANES, where(higher, where(passes, above_key, key), held_key))
        held, held_key, higher = above, above_key, passes
    store(best, 0, where(higher, x, held))
    store(best_keys, 0, where(higher, key, held_key))


@compiled
def sink_block(c, watched, begin_, best, best_keys):
    """The k largest of every lane where there is one block of keys: looking at every one is the fastest."""
    begin_best(c[at.K], best, best_keys)
    w, rows, factor = weights(c, watched, 0), block_rows(watched, 0), load(block_factor(watched, 0), 0)
    for n in range(int64(rows[0]), int64(rows[1])):
        p = load(w, n * LANES)
        x = where(bits(p) == splat_int(NEVER), splat(float32(-1.0)), p * factor)
        sink(x, splat_int(int32(begin_ + n)), c[at.K], best, best_keys)


@compiled
def sort_candidates(k, most, places, found, keys, best, best_keys):
    """The k largest of every lane's candidates, largest first, equal ones in the order of their keys."""
    longest = int64(0)
    for lane in range(LANES):
        longest = max(longest, int64(places[lane]) // LANES)
    begin_best(k, best, best_keys)
    end = load_int(places, 0)
    for slot in range(min(longest, most)):
        x, key = load(found, slot * LANES), load_int(keys, slot * LANES)
        x = where(lane_numbers() + splat_int(int32(slot * LANES)) < end, x, splat(float32(-1.0)))
        sink(x, key, k, best, best_keys)


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
            if x > best[(k - 1) * LANES + lane] and bits_of(x) != NEVER:
                place = k - 1
                while place > 0 and best[(place - 1) * LANES + lane] < x:
                    best[place * LANES + lane] = best[(place - 1) * LANES + lane]
                    best_keys[place * LANES + lane] = best_keys[(place - 1) * LANES + lane]
                    place -= 1
                best[place * LANES + lane], best_keys[place * LANES + lane] = x, int32(j0 + n)
        block += 1


@compiled
def most_candidates(k):
    """Room for candidates of a lane: all keys where there are hardly more than k runs, some to spare where there are more."""
    return RUN * k + 16


@compiled
def write_largest(c, watched, row, count, begin_, end, to_keys, to_weights, scratch):
    """The k largest weights of every query of a strip, and their keys, to the addresses given.

    Where there are more keys than a block, a bound for the k-th largest is found first, without a branch, from the maxima of
    short runs (of `kept`); few weights reach it, and only those are put in order.
    """
    k, blocks = c[at.K], (end - begin_ + BLOCK - 1) // BLOCK
    most = most_candidates(k)
    bounds, places = scratch, as_ints(after(scratch, LANES))
    best, best_keys = after(scratch, 2 * LANES), as_ints(after(scratch, (2 + k) * LANES))
    found, keys = after(scratch, (2 + 2 * k) * LANES), as_ints(after(scratch, (2 + 2 * k + most) * LANES))
    reached = as_ints(after(scratch, (2 + 2 * k + 2 * most) * LANES))
    store(places, 0, lane_numbers())
    if blocks == 1:
        sink_block(c, watched, begin_, best, best_keys)
    else:
        store(bounds, 0, kth_largest(c, watched, blocks, best))
        listed = list_reached(c, watched, blocks, load(bounds, 0), reached)
        add_candidates(c, watched, begin_, reached, listed, bounds, most, places, found, keys)
        sort_candidates(k, most, places, found, keys, best, best_keys)
    for lane in range(count):
        if places[lane] == FULL:
            insert_all(c, watched, lane, begin_, end, best, best_keys)
        for r in range(k):
            longs_at(to_keys)[(row + lane) * k + r] = int64(best_keys[r * LANES + lane])
            x = best[r * LANES + lane]
            floats_at(to_weights)[(row + lane) * k + r] = x if x > float32(0.0) else float32(0.0)


@compiled
def write_largest_in_groups(c, b, watched, row, count, begin_, end, best, best_keys):
    """The k largest weights inside every group of keys; best, best_keys [G · k][LANES].

    A key is compared with the k-th best of its group in all lanes at once, and looked at closer only where it is higher.
    """
    k, groups = c[at.GROUP_K], c[at.GROUPS_N]
    for r in range(k * groups):
        store(best, r * LANES, splat(float32(-1.0)))
        store(best_keys, r * LANES, splat_int(int32(-1)))
    labels = after(ints_at(c[at.KEY_GROUPS]), b * c[at.KEY_GROUPS_B])
    block = int64(0)
    for j0 in range(begin_, end, BLOCK):
        rows, w = block_rows(watched, block), weights(c, watched, block)
        factor = load(block_factor(watched, block), 0)
        block += 1
        for n in range(int64(rows[0]), int64(rows[1])):
            group = int64(labels[j0 + n])
            if group < 0:
                continue
            p = load(w, n * LANES)
            x = where(bits(p) == splat_int(NEVER), splat(float32(-1.0)), p * factor)
            lanes = lanes_set(x > load(best, (group * k + k - 1) * LANES))
            while lanes != 0:
                lane = lowest_bit(lanes)
                lanes &= lanes - numba.uint64(1)
                one = w[n * LANES + lane] * block_factor(watched, block - 1)[lane]
                place = group * k + k - 1
                while place > group * k and best[(place - 1) * LANES + lane] < one:
                    best[place * LANES + lane] = best[(place - 1) * LANES + lane]
                    best_keys[place * LANES + lane] = best_keys[(place - 1) * LANES + lane]
                    place -= 1
                best[place * LANES + lane], best_keys[place * LANES + lane] = one, int32(j0 + n)
    for lane in range(count):
        for r in range(k * groups):
            longs_at(c[at.GROUP_TOP_KEYS])[(row + lane) * k * groups + r] = int64(best_keys[r * LANES + lane])
            x = best[r * LANES + lane]
            floats_at(c[at.GROUP_TOP_WEIGHTS])[(row + lane) * k * groups + r] = x if x > float32(0.0) else float32(0.0)


@compiled
def weigh(c, b, h, watched, begin_, end):
    """Every weight times the norm of its key's value, and the runs of these; what may not be seen keeps −0.0."""
    norms = after(floats_at(c[at.NORMS]), (b * c[at.HQ] + h) * c[at.TK])
    block = int64(0)
    for j0 in range(begin_, end, BLOCK):
        rows, w = block_rows(watched, block), weights(c, watched, block)
        for n in range(int64(rows[0]), int64(rows[1])):
            p = load(w, n * LANES)
            store(w, n * LANES, where(bits(p) == splat_int(NEVER), p, p * splat(norms[j0 + n])))
        note_runs(c, watched, block)
        block += 1
