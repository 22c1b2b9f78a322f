"""What is added up over queries: what every key receives, and the map.

A part of a head's strips has sums of its own; when all are done the parts are added up in their order, so that the same
bits come out however many threads there were.
"""

from numba import float32, float64, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.kept import NEVER
from clearhead.kernels.cpu.rows import lift
from clearhead.kernels.cpu.runs import largest_of_keys, sum_keys
from clearhead.kernels.cpu.vector import (
    LANES,
    WIDTH,
    add_row_sums,
    after,
    bits,
    bytes_at,
    compiled,
    count_bits,
    doubles_at,
    floats_at,
    fma,
    ints_at,
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
    where,
)


@compiled
def read_real(c, b, i0, real):
    """1 for the lanes that hold a query which is not padding, else 0."""
    padded = bytes_at(c[at.PADDED])
    for lane in range(LANES):
        i = i0 + lane
        real[lane] = int32(i < c[at.TQ] and (c[at.PADDED] == 0 or padded[b * c[at.PADDED_B] + i] == 0))


@compiled
def read_strip(c, b, h, i0, kept, row_weights, groups):
    """Of every lane its row weight, and the group its query belongs to; 0 and −2 where it does not count."""
    for lane in range(LANES):
        i = min(i0 + lane, c[at.TQ] - 1)
        if c[at.ROW_WEIGHTS] != 0:
            place = b * c[at.ROW_WEIGHTS_B] + h * c[at.ROW_WEIGHTS_H] + i
            row_weights[lane] = floats_at(c[at.ROW_WEIGHTS])[place] if kept[lane] != 0 else float32(0.0)
        if c[at.KEY_GROUPS] != 0:
            group = ints_at(c[at.QUERY_GROUPS])[b * c[at.QUERY_GROUPS_B] + i]
            groups[lane] = group if kept[lane] != 0 else int32(-2)


@compiled
def add_received(w, factor, first, last, target):
    """Σ_i p_ij for every key of a block."""
    whole = first + (last - first) // WIDTH * WIDTH
    for n in range(first, whole, WIDTH):
        add_row_sums(after(w, n * LANES), factor, after(target, n))
    for n in range(whole, last):
        target[n] += sum_of(load(w, n * LANES) * factor)


@compiled
def add_received_by_group(c, w, factor, groups, first, last, target):
    """Σ_i p_ij over the queries of each group by themselves; those of no group come last. Most strips hold one group."""
    left = lanes_set(load_int(groups, 0) > splat_int(int32(-2)))
    while left != 0:
        group = groups[lowest_bit(left)]
        members = load_int(groups, 0) == splat_int(group)
        left &= ~lanes_set(members)
        place = (int64(group) if group >= 0 else c[at.GROUPS_N]) * c[at.TK]
        add_received(w, where(members, factor, splat(float32(0.0))), first, last, after(target, place))


@compiled
def add_viewers(w, kept, first, last, target):
    """How many queries may see each key."""
    for n in range(first, last):
        hidden = bits(load(w, n * LANES)) == splat_int(NEVER)
        target[n] += float64(count_bits(lanes_set(kept) & ~lanes_set(hidden)))


@compiled
def add_map(c, w, maxima, run_sums, factor, first, last, j0, sums, highest):
    """Sum and maximum of the weights in each column of the map, every lane by itself."""
    bounds, cell_of_key = floats_at(c[at.MAP_COLUMN_BOUNDS]), ints_at(c[at.MAP_COLUMN])
    n, cell = first, int64(cell_of_key[j0 + first])
    while n < last:
        end = min(int64(bounds[cell + 1]) - j0, last)
        store(sums, cell * LANES, fma(sum_keys(w, run_sums, n, end), factor, load(sums, cell * LANES)))
        high = largest_of_keys(w, maxima, n, end) * factor
        store(highest, cell * LANES, larger(high, load(highest, cell * LANES)))
        n, cell = end, cell + 1


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
def clear_doubles(address, start, count):
    """Numbers begin at 0."""
    if address != 0:
        target = after(doubles_at(address), start)
        for n in range(count):
            target[n] = 0.0


@compiled
def part_rows(c, part):
    """First and one past the last row of the map that the queries of a part are in."""
    bounds, cell_of_query = longs_at(c[at.TASKS]), ints_at(c[at.MAP_ROW])
    first, end = bounds[part] * LANES, min(bounds[part + 1] * LANES, c[at.TQ])
    if first >= end:
        return int64(0), int64(0)
    return int64(cell_of_query[first]), int64(cell_of_query[end - 1]) + 1


@compiled
def begin_part(c, part):
    """Sums over queries begin at 0."""
    TK = c[at.TK]
    clear_doubles(c[at.RECEIVED], part * c[at.CHANNELS] * TK, c[at.CHANNELS] * TK)
    clear_doubles(c[at.WEIGHTED], part * TK, TK)
    clear_doubles(c[at.VIEWERS], part * TK, TK)
    columns = c[at.MAP_COLUMNS]
    if columns == 0:
        return
    first, end = part_rows(c, part % c[at.PARTS])
    for address in (c[at.MAP_SUM], c[at.MAP_MAX], c[at.MAP_COUNT]):
        if address != 0:
            sums = after(floats_at(address), part * c[at.MAP_ROWS] * columns)
            for n in range(first * columns, end * columns):
                sums[n] = float32(0.0)


@compiled
def count_pairs(c, b, row, counts):
    """How many pairs of each cell of a row of the map may be seen, by the intervals alone."""
    bounds = floats_at(c[at.MAP_COLUMN_BOUNDS])
    zero = splat_short(float32(0.0))
    lo, hi = after(ints_at(c[at.LO]), b * c[at.INTERVAL_B]), after(ints_at(c[at.HI]), b * c[at.INTERVAL_B])
    padded = bytes_at(c[at.PADDED])
    for column in range(0, c[at.MAP_COLUMNS], WIDTH):
        store(counts, column, zero)
    row_bounds = longs_at(c[at.MAP_ROW_BOUNDS])
    for i in range(row_bounds[row], row_bounds[row + 1]):
        if c[at.PADDED] == 0 or padded[b * c[at.PADDED_B] + i] == 0:
            low, high = splat_short(float32(lo[i])), splat_short(float32(hi[i]))
            for column in range(0, c[at.MAP_COLUMNS], WIDTH):
                seen = smaller(load_short(bounds, column + 1), high) - larger(load_short(bounds, column), low)
                store(counts, column, load_short(counts, column) + larger(seen, zero))


@compiled
def channel_sum(c, sums, head, channels, channel, j):
    """What one key received in one channel, the parts added up in their order."""
    total = 0.0
    for part in range(c[at.PARTS]):
        total += sums[((head * c[at.PARTS] + part) * channels + channel) * c[at.TK] + j]
    return total


@compiled
def merge_received(c, head):
    """What every key received: of the queries of each group, if there are groups, and of all."""
    TK, groups, channels = c[at.TK], c[at.GROUPS_N], c[at.CHANNELS]
    sums, target = doubles_at(c[at.RECEIVED]), after(floats_at(c[at.RECEIVED_OUT]), head * TK)
    by_group = after(floats_at(c[at.BY_GROUP_OUT]), head * groups * TK)
    for j in range(TK):
        total = 0.0
        for channel in range(channels):
            one = channel_sum(c, sums, head, channels, channel, j)
            total += one
            if channel < groups:
                by_group[channel * TK + j] = float32(one)
        target[j] = float32(total)


@compiled
def merge_one(c, address, out, head):
    """The same for a quantity of one channel, if it was asked for."""
    if address != 0:
        target = after(floats_at(out), head * c[at.TK])
        for j in range(c[at.TK]):
            target[j] = float32(channel_sum(c, doubles_at(address), head, 1, 0, j))


@compiled
def merge_head(c, head, scratch):
    """The parts of a head's sums over queries, added up in their order; the map's sums become means."""
    if c[at.RECEIVED] != 0:
        merge_received(c, head)
    merge_one(c, c[at.WEIGHTED], c[at.WEIGHTED_OUT], head)
    merge_one(c, c[at.VIEWERS], c[at.VIEWERS_OUT], head)
    parts = c[at.PARTS]
    columns, rows = c[at.MAP_COLUMNS], c[at.MAP_ROWS]
    if columns == 0:
        return
    zero, one = splat_short(float32(0.0)), splat_short(float32(1.0))
    sums, maxima, counts = floats_at(c[at.MAP_SUM]), floats_at(c[at.MAP_MAX]), floats_at(c[at.MAP_COUNT])
    means, highest = floats_at(c[at.MAP_MEAN_OUT]), floats_at(c[at.MAP_MAX_OUT])
    first, end = int64(0), int64(0)  # the parts that have queries in a row
    for row in range(rows):
        while end < parts and part_rows(c, end)[0] <= row:
            end += 1
        while first < end and part_rows(c, first)[1] <= row:
            first += 1
        if c[at.MAP_COUNT] == 0:
            count_pairs(c, head // c[at.HQ], row, scratch)
        for column in range(0, columns, WIDTH):
            total, high, pairs = zero, zero, zero
            for part in range(first, end):
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
