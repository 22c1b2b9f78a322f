"""The k largest weights of every query, and their keys."""

import numba
from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.kept import NEVER, block_factor, block_rows, weights
from clearhead.kernels.cpu.machine import BLOCK
from clearhead.kernels.cpu.vector import (
    LANES,
    after,
    as_ints,
    bits,
    compiled,
    floats_at,
    ints_at,
    is_never,
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

RUN = 4  # keys in a row that are represented by the largest of them, in the search for the k largest


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
    runs, start = int64(0), first
    while run == RUN and start + RUN <= last:  # of known length: no loop is left of it
        high, higher = load(w, start * LANES), load(w, (start + 1) * LANES)
        for n in range(2, RUN, 2):
            high = larger(load(w, (start + n) * LANES), high)
            higher = larger(load(w, (start + n + 1) * LANES), higher)
        store(maxima, runs * LANES, larger(high, higher) * factor)
        runs += 1
        start += RUN
    for begin_ in range(start, last, run):
        high = load(w, begin_ * LANES)
        for n in range(begin_ + 1, min(begin_ + run, last)):
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
def run_maxima(c, scratch):
    """Where the largest weight of every run of a strip is kept, in the scratch memory of `write_largest`: [run][LANES]."""
    return after(scratch, (2 + 2 * c[at.K] + 2 * (2 * c[at.K] + 16)) * LANES)


@compiled
def write_largest(c, watched, row, count, begin_, end, runs, to_keys, to_weights, scratch):
    """The k largest weights of every query of a strip, and their keys, to the addresses given.

    A bound for the k-th largest is found without a branch, from the maxima of short runs (`runs` of them, noted by
    `add_run_maxima`); few weights reach it, and only those are put in order.
    """
    k = c[at.K]
    most = 2 * k + 16
    bounds, counts = scratch, as_ints(after(scratch, LANES))
    best, best_keys = after(scratch, 2 * LANES), as_ints(after(scratch, (2 + k) * LANES))
    found, keys = after(scratch, (2 + 2 * k) * LANES), as_ints(after(scratch, (2 + 2 * k + most) * LANES))
    maxima, run = run_maxima(c, scratch), run_length(c, end - begin_)
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
def weigh(c, b, h, watched, begin_, end, maxima):
    """Every weight times the norm of its key's value; what may not be seen keeps −0.0. Returns how many runs there are."""
    norms = after(floats_at(c[at.NORMS]), (b * c[at.HQ] + h) * c[at.TK])
    run, runs, block = run_length(c, end - begin_), int64(0), int64(0)
    for j0 in range(begin_, end, BLOCK):
        rows, w = block_rows(watched, block), weights(c, watched, block)
        factor = load(block_factor(watched, block), 0)
        first, last = int64(rows[0]), int64(rows[1])
        block += 1
        for n in range(first, last):
            p = load(w, n * LANES)
            store(w, n * LANES, where(bits(p) == splat_int(NEVER), p, p * splat(norms[j0 + n])))
        runs += add_run_maxima(w, factor, first, last, run, after(maxima, runs * LANES))
    return runs
