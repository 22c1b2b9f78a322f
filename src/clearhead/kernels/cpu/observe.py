"""What is measured while attention is computed.

When all keys of a strip have passed, its weights are still there (`kept`), and `when_done` measures everything on them, block
by block. **It is the place for another observable**: a loop in `per_query` or `per_key`, a line here, its name
in `call` and `run`. Only two things are taken while the keys pass (`softmax_block_watched` in `forward`): Σ p z, for the
entropy, because logits are not kept; and the largest and the sum of every four weights, while they are in registers.
"""

from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu import strip as strips
from clearhead.kernels.cpu.kept import (
    above,
    blank,
    block_factor,
    block_inside,
    block_rows,
    make_whole,
    note_runs,
    run_maxima,
    run_sums,
    weights,
)
from clearhead.kernels.cpu.largest import (
    weigh,
    write_largest,
    write_largest_in_groups,
)
from clearhead.kernels.cpu.logits import HIDDEN
from clearhead.kernels.cpu.machine import BLOCK
from clearhead.kernels.cpu.per_key import (
    add_map,
    add_map_counts,
    add_received,
    add_received_by_group,
    add_viewers,
    finish_map,
    read_real,
    read_strip,
)
from clearhead.kernels.cpu.per_query import (
    add_distance,
    add_distances,
    add_groups,
    add_position,
    add_squares,
    add_token_relations,
    copy_rows,
    count_visible,
    put,
    put_many,
    read_tokens,
)
from clearhead.kernels.cpu.powers import exp2
from clearhead.kernels.cpu.vector import (
    ALL_LANES,
    LANES,
    WIDTH,
    after,
    as_ints,
    compiled,
    doubles_at,
    fma,
    ints_at,
    lane_numbers,
    lanes_set,
    load,
    load_int,
    splat,
    splat_int,
    store,
    to_floats,
    where,
)

SINGLE = 13  # vectors of one number a query that `when_done` works with


@compiled
def add_over_queries(c, b, part, watched, block, factor, j0, kept, row_weights, query_groups, sums, maxima, counts):
    """What is added up over queries, for one block; `factor` is 0 in lanes that do not count."""
    w, first, last = (
        weights(c, watched, block),
        int64(block_rows(watched, block)[0]),
        int64(block_rows(watched, block)[1]),
    )
    if c[at.MAP_COUNT] != 0:
        add_map_counts(c, w, kept, first, last, j0, counts)
    if c[at.VIEWERS] != 0:
        add_viewers(w, kept, first, last, after(doubles_at(c[at.VIEWERS]), part * c[at.TK] + j0))
    if c[at.RECEIVED] != 0:
        received = after(doubles_at(c[at.RECEIVED]), part * c[at.CHANNELS] * c[at.TK] + j0)
        if c[at.KEY_GROUPS] != 0:
            add_received_by_group(c, w, factor, query_groups, first, last, received)
        else:
            add_received(w, factor, first, last, received)
    if c[at.ROW_WEIGHTS] != 0:
        weighted = after(doubles_at(c[at.WEIGHTED]), part * c[at.TK] + j0)
        add_received(w, factor * load(row_weights, 0), first, last, weighted)
    if c[at.MAP_COLUMNS] != 0:
        run_highest, sums_of_runs = run_maxima(c, watched, block), run_sums(c, watched, block)
        add_map(c, w, run_highest, sums_of_runs, factor, first, last, j0, sums, maxima)


@compiled
def when_done(c, b, h, part, strip, watched, i0, scratch):
    """Everything that is measured on the weights of a strip. `part` says whose sums over queries these are.

    Every block is measured whole while it lies in the nearest cache.
    """
    columns, groups, bins = c[at.MAP_COLUMNS], c[at.GROUPS_N], c[at.BINS]
    top, total = load(strips.top(c, strip), 0), load(strips.total(c, strip), 0)
    real, mine = as_ints(scratch), as_ints(after(scratch, LANES))
    seen, distance = after(scratch, 2 * LANES), after(scratch, 3 * LANES)
    same, following = after(scratch, 4 * LANES), after(scratch, 5 * LANES)
    own, previous, leading = after(scratch, 6 * LANES), after(scratch, 7 * LANES), after(scratch, 8 * LANES)
    held, squares = after(scratch, 9 * LANES), after(scratch, 10 * LANES)
    row_weights, query_groups = after(scratch, 11 * LANES), as_ints(after(scratch, 12 * LANES))
    in_groups, in_bins = after(scratch, SINGLE * LANES), after(scratch, (SINGLE + groups) * LANES)
    sums = after(scratch, (SINGLE + groups + bins) * LANES)
    maxima, counts = after(sums, columns * LANES), after(sums, 2 * columns * LANES)
    turned, search = after(sums, 3 * columns * LANES), after(sums, 4 * columns * LANES)
    zero, one = splat(float32(0.0)), splat(float32(1.0))
    for n in range(2, SINGLE + groups + bins + 3 * columns):
        store(scratch, n * LANES, zero)
    read_real(c, b, i0, real)
    read_strip(c, b, h, i0, real, row_weights, query_groups)
    kept = load_int(real, 0) == splat_int(int32(1))
    tame = total == total  # no NaN in a lane
    all_tame = lanes_set(tame) == ALL_LANES
    a = i0 + c[at.POSITION]
    if c[at.TOKENS] != 0:
        read_tokens(c, b, a, mine)
    spans = strips.spans(c, strip)
    begin_, end = spans[0] // BLOCK * BLOCK, spans[3]
    for j0 in range(begin_, end, BLOCK):
        block = (j0 - begin_) // BLOCK
        rows, w, factors = block_rows(watched, block), weights(c, watched, block), block_factor(watched, block)
        first, last, summed = int64(rows[0]), int64(rows[1]), run_sums(c, watched, block)
        if first >= last:
            continue
        # Until a lane has seen something its maximum is −inf, and its weights are 0 whatever they are multiplied by.
        anchor = load(factors, 0)
        factor = where(anchor == splat(HIDDEN), zero, exp2((anchor - top) - load(above(watched), 0)))
        if not all_tame:
            make_whole(w, factor, tame, first, last)
            note_runs(c, watched, block)
            factor = where(tame, factor, one)
        store(factors, 0, factor)
        if c[at.VISIBLE] != 0:
            count_visible(w, first, last, seen)
        if c[at.DISTANCE] != 0:
            add_distance(summed, load(block_inside(watched, block), 0), factor, first, last, a - j0, distance)
        if c[at.SELF] != 0:
            add_position(w, factors, first, last, a - j0, own)
            add_position(w, factors, first, last, a - 1 - j0, previous)
            if j0 == 0 and first == 0 and c[at.FIRST_KEY] == 0:
                store(leading, 0, load(w, 0) * factor)
        if c[at.TOKENS] != 0:
            add_token_relations(c, b, w, factor, first, last, a, j0, mine, same, following)
        if c[at.SQUARES] != 0:
            add_squares(w, factor, first, last, squares)
        if c[at.HISTOGRAM] != 0:
            add_distances(w, summed, factor, first, last, a - j0, in_bins)
        if c[at.KEY_GROUPS] != 0:
            add_groups(c, b, w, summed, factor, first, last, j0, in_groups)
        if c[at.ROWS] != 0:
            copy_rows(c, b, h, w, factors, first, last, i0, j0)
        if all_tame:
            only = where(kept, factor, zero)
            add_over_queries(
                c, b, part, watched, block, only, j0, kept, row_weights, query_groups, sums, maxima, counts
            )
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
    if c[at.SQUARES] != 0:
        put(c[at.SQUARES], row, count, load(squares, 0), held)
    if c[at.HISTOGRAM] != 0:
        put_many(c[at.HISTOGRAM], row, count, bins, in_bins)
    if c[at.KEY_GROUPS] != 0:
        put_many(c[at.GROUP_WEIGHT], row, count, groups, in_groups)
    if c[at.K] != 0:
        write_largest(c, watched, row, count, begin_, end, c[at.TOP_KEYS], c[at.TOP_WEIGHTS], search)
    if c[at.GROUP_K] != 0:
        best_keys = as_ints(after(search, groups * c[at.GROUP_K] * LANES))
        write_largest_in_groups(c, b, watched, row, count, begin_, end, search, best_keys)
    if not all_tame:  # NaN in lanes that do not count must not reach a sum, and is cleared away once all else is read
        for j0 in range(begin_, end, BLOCK):
            block = (j0 - begin_) // BLOCK
            first, last = int64(block_rows(watched, block)[0]), int64(block_rows(watched, block)[1])
            only = where(kept, load(block_factor(watched, block), 0), zero)
            if first < last:
                blank(weights(c, watched, block), kept, first, last)
                note_runs(c, watched, block)
                add_over_queries(
                    c, b, part, watched, block, only, j0, kept, row_weights, query_groups, sums, maxima, counts
                )
    if columns != 0 and begin_ < end:
        cell_of_key = ints_at(c[at.MAP_COLUMN])
        left = int64(cell_of_key[begin_]) // WIDTH * WIDTH
        wide = strips.rounded_up(int64(cell_of_key[end - 1]) + 1 - left, WIDTH)
        start = 4 * part * c[at.MAP_ROWS] * columns
        finish_map(c, c[at.MAP_SUM] + start, sums, i0, left, wide, turned, True)
        finish_map(c, c[at.MAP_MAX] + start, maxima, i0, left, wide, turned, False)
        if c[at.MAP_COUNT] != 0:
            finish_map(c, c[at.MAP_COUNT] + start, counts, i0, left, wide, turned, True)
    if c[at.NORMS] != 0 and c[at.K] != 0:  # last: the weights are changed
        weigh(c, b, h, watched, begin_, end)
        write_largest(c, watched, row, count, begin_, end, c[at.CONTRIBUTION_KEYS], c[at.CONTRIBUTIONS], search)
