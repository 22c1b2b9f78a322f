"""What is measured for each query by itself: one short loop over the weights of a block, all lanes at once."""

from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.kept import NEVER, above
from clearhead.kernels.cpu.logits import HIDDEN
from clearhead.kernels.cpu.machine import RUN
from clearhead.kernels.cpu.powers import LN_2, LOG2_E, exp2, log2
from clearhead.kernels.cpu.rows import number
from clearhead.kernels.cpu.runs import sum_keys
from clearhead.kernels.cpu.vector import (
    LANES,
    after,
    bits,
    compiled,
    floats_at,
    fma,
    ints_at,
    lane_numbers,
    larger,
    load,
    load_int,
    splat,
    splat_int,
    store,
    where,
)


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
def count_visible(w, first, last, seen):
    """How many pairs of a block may be seen, added to every lane."""
    count = load(seen, 0)
    for n in range(first, last):
        count = count + where(bits(load(w, n * LANES)) == splat_int(NEVER), splat(float32(0.0)), splat(float32(1.0)))
    store(seen, 0, count)


@compiled
def add_squares(w, factor, first, last, squares):
    """Σ_j p_ij² in every lane."""
    even, odd = splat(float32(0.0)), splat(float32(0.0))  # two sums, so that none waits for the other
    whole = first + (last - first) // 2 * 2
    for n in range(first, whole, 2):
        p, q = load(w, n * LANES), load(w, (n + 1) * LANES)
        even, odd = fma(p, p, even), fma(q, q, odd)
    for n in range(whole, last):
        p = load(w, n * LANES)
        even = fma(p, p, even)
    store(squares, 0, fma(even + odd, factor * factor, load(squares, 0)))


@compiled
def add_distance(sums, inside, factor, first, last, away, distance):
    """Σ_j p_ij (a_0 − j) in every lane; `away` is a_0 minus the block's first key, a_0 the strip's first position.

    By the sums of runs, less what the keys of a run are beyond its first: `inside`.
    """
    sum_ = splat(float32(0.0)) - inside
    for r in range(first // RUN, (last + RUN - 1) // RUN):
        sum_ = fma(load(sums, r * LANES), splat(float32(away - r * RUN)), sum_)
    store(distance, 0, fma(sum_, factor, load(distance, 0)))


@compiled
def bin_of(distance):
    """The bin of a distance of 0, 1, 2-3, 4-7, …: how many bits it has."""
    bits_ = int64(0)
    while distance >> bits_ != 0:
        bits_ += 1
    return bits_


@compiled
def add_distances(w, run_sums, factor, first, last, away, sums):
    """The weight at every distance, sums [bins][LANES]; `away` is the strip's first position minus the block's first key.

    Lane l stands away + l − n from key n. Where all lanes are in one bin, keys are added up as they come; a key whose
    distances straddle the end of a bin is added to each bin by itself, for the lanes that are in it.
    """
    zero, lanes = splat(float32(0.0)), lane_numbers()
    n = first
    while n < last:
        low = away - n  # of lane 0
        high = low + LANES - 1
        nearest, farthest = (low, high) if low >= 0 else (-high, -low)
        if low < 0 and high > 0:
            nearest, farthest = int64(0), max(high, -low)
        bin_ = bin_of(nearest)
        begin_, end = (int64(1) << bin_) >> 1, int64(1) << bin_  # distances of the bin
        if farthest < end:
            # As n grows, distances shrink on this side of the diagonal and grow on the other.
            keys = nearest - begin_ + 1 if low >= 0 else end - farthest
            stop = min(last, n + keys)
            store(sums, bin_ * LANES, fma(sum_keys(w, run_sums, n, stop), factor, load(sums, bin_ * LANES)))
            n = stop
            continue
        p = load(w, n * LANES) * factor
        signed = lanes + splat_int(int32(low))
        apart = where(signed < splat_int(int32(0)), splat_int(int32(0)) - signed, signed)
        while begin_ <= farthest:
            inside = (apart >= splat_int(int32(begin_))) & (apart < splat_int(int32(end)))
            store(sums, bin_ * LANES, load(sums, bin_ * LANES) + where(inside, p, zero))
            bin_ += 1
            begin_, end = end, 2 * end
        n += 1


@compiled
def add_position(w, factors, first, last, place, held):
    """The weight at key row place + lane of a block, for the lanes whose key is in it."""
    for lane in range(max(int64(0), first - place), min(int64(LANES), last - place)):
        held[lane] = w[(place + lane) * LANES + lane] * factors[lane]


@compiled
def read_tokens(c, b, a, mine):
    """The token of each lane's position; −1, which no token is, where the text has none. `a` is the first lane's."""
    text = after(ints_at(c[at.TOKENS]), b * c[at.TOKENS_B])
    for lane in range(LANES):
        place = a + lane + c[at.FIRST_KEY]
        mine[lane] = text[place] if 0 <= place < c[at.TOKENS_N] else int32(-1)


@compiled
def add_token_relations(c, b, w, factor, first, last, a, j0, mine, same, following):
    """Weight on earlier keys with the query's own token, and on keys whose predecessor has it; `a` as in `read_tokens`."""
    text = after(ints_at(c[at.TOKENS]), b * c[at.TOKENS_B] + c[at.FIRST_KEY] + j0)
    token = load_int(mine, 0)
    places = lane_numbers() + splat_int(int32(a))
    zero = splat(float32(0.0))
    on_same, on_following = zero, zero
    for n in range(first, last):
        p, j = load(w, n * LANES), splat_int(int32(j0 + n))
        on_same = on_same + where((token == splat_int(text[n])) & (j < places), p, zero)
        if j0 + n + c[at.FIRST_KEY] > 0:
            on_following = on_following + where((token == splat_int(text[n - 1])) & (j <= places), p, zero)
    store(same, 0, fma(on_same, factor, load(same, 0)))
    store(following, 0, fma(on_following, factor, load(following, 0)))


@compiled
def add_groups(c, b, w, run_sums, factor, first, last, j0, sums):
    """The weight on every group of keys, sums [G][LANES]; keys of a group that lie side by side are added up first."""
    labels = after(ints_at(c[at.KEY_GROUPS]), b * c[at.KEY_GROUPS_B] + j0)
    n = first
    while n < last:
        group, begin_ = int64(labels[n]), n
        while n < last and labels[n] == group:
            n += 1
        if group >= 0:
            store(sums, group * LANES, fma(sum_keys(w, run_sums, begin_, n), factor, load(sums, group * LANES)))


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


@compiled
def put_many(address, row, count, each, sums):
    """Write `each` numbers a query, from sums [each][LANES]."""
    target = after(floats_at(address), row * each)
    for lane in range(count):
        for n in range(each):
            target[lane * each + n] = sums[n * LANES + lane]
