"""From products of queries and keys to logits, one block of a strip: softcap, bias, ALiBi and the mask, in base 2.

Scores lie as s[key][lane], already times scale · log2(e). Each step is a loop of its own that runs only when the call needs
it, and the mask only on the keys that some lane may not see.
"""

import numba
from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.powers import LOG2_E, tanh
from clearhead.kernels.cpu.rows import number
from clearhead.kernels.cpu.vector import (
    LANES,
    SPLIT,
    after,
    bytes_at,
    compiled,
    float_from_bits,
    ints_at,
    lane_numbers,
    larger,
    load,
    load_int,
    splat,
    splat_int,
    store,
    to_floats,
    where,
)

HIDDEN = float32(-float("inf"))
LARGEST = float32(3.4028235e38)


@compiled
def read_intervals(c, b, i0, lo, hi, spans):
    """The key intervals of a strip's queries, and spans = (least lo, greatest lo, least hi, greatest hi) of them.

    The fifth number is the greatest hi of the lanes below SPLIT: keys from it on are seen by the upper lanes alone.
    Lanes past the last query repeat it. Where a query sees nothing its interval is empty, and hides every key.
    """
    rows = b * c[at.INTERVAL_B]
    all_lo, all_hi = ints_at(c[at.LO]), ints_at(c[at.HI])
    least_lo = least_hi = int64(2147483647)
    most_lo = most_hi = lower_hi = int64(0)
    for lane in range(LANES):
        i = rows + min(i0 + lane, c[at.TQ] - 1)
        low, high = all_lo[i], all_hi[i]
        lo[lane], hi[lane] = low, high
        least_lo, most_lo = min(least_lo, int64(low)), max(most_lo, int64(low))
        least_hi, most_hi = min(least_hi, int64(high)), max(most_hi, int64(high))
        if lane < SPLIT:
            lower_hi = max(lower_hi, int64(high))
    spans[0], spans[1], spans[2], spans[3], spans[4] = least_lo, most_lo, least_hi, most_hi, lower_hi


@compiled
def hide_outside(s, j0, first, end, lo, hi):
    """−inf where key j0 + n, n in [first, end), lies outside a lane's interval."""
    low, high = load_int(lo, 0), load_int(hi, 0)
    for n in range(first, end):
        j = splat_int(int32(j0 + n))
        store(s, n * LANES, where((low <= j) & (j < high), load(s, n * LANES), splat(HIDDEN)))


@compiled
def hide_other_labels(c, s, b, i0, j0, first, end, mine):
    """−inf where a query and a key carry different labels; `mine` is scratch for LANES integers."""
    for n in range(c[at.LABELS]):
        queries = after(ints_at(c[at.QUERY_LABELS]), n * c[at.QUERY_LABELS_N] + b * c[at.QUERY_LABELS_B])
        keys = after(ints_at(c[at.KEY_LABELS]), n * c[at.KEY_LABELS_N] + b * c[at.KEY_LABELS_B])
        for lane in range(LANES):
            mine[lane] = queries[min(i0 + lane, c[at.TQ] - 1)]
        label = load_int(mine, 0)
        for m in range(first, end):
            same = label == splat_int(keys[j0 + m])
            store(s, m * LANES, where(same, load(s, m * LANES), splat(HIDDEN)))


@compiled
def hide_by_tensor(c, s, b, h, i0, j0, first, end):
    """−inf where the dense mask says no."""
    mask = bytes_at(c[at.DENSE] + b * c[at.DENSE_B] + h * c[at.DENSE_H])
    for lane in range(LANES):
        row = min(i0 + lane, c[at.TQ] - 1) * c[at.DENSE_I] + j0 * c[at.DENSE_J]
        for n in range(first, end):
            if mask[row + n * c[at.DENSE_J]] == 0:
                s[n * LANES + lane] = HIDDEN


@compiled
def tensor_hides_all(c, b, h, i0, j0, first, end):
    """Whether the dense mask lets none of these pairs be seen."""
    mask = bytes_at(c[at.DENSE] + b * c[at.DENSE_B] + h * c[at.DENSE_H])
    for i in range(i0, min(i0 + LANES, c[at.TQ])):
        row = i * c[at.DENSE_I] + j0 * c[at.DENSE_J]
        seen = numba.uint8(0)
        for n in range(first, end):
            seen |= mask[row + n * c[at.DENSE_J]]
        if seen:
            return False
    return True


@compiled
def cap(c, s, first, end):
    """Softcap: cap · tanh(z / cap)."""
    limit = float_from_bits(c[at.SOFTCAP]) * float32(LOG2_E)
    inverse = float32(1.0) / limit
    for n in range(first, end):
        store(s, n * LANES, splat(limit) * tanh(load(s, n * LANES) * splat(inverse)))


@compiled
def in_base_two(x):
    """A number of the bias times log2(e), where finite numbers stay finite: finfo.min is a number, and −inf a mask."""
    y = x * float32(LOG2_E)
    if x - x == float32(0.0) and y - y != float32(0.0):
        return LARGEST if x > float32(0.0) else -LARGEST
    return y


@compiled
def add_bias(c, s, b, h, i0, j0, first, end):
    """+ bias; one that is the same for every query is added to all lanes at once. −inf hides whatever the score is."""
    start = b * c[at.BIAS_B] + h * c[at.BIAS_H] + j0 * c[at.BIAS_J]
    if c[at.BIAS_I] == 0:
        for n in range(first, end):
            x = in_base_two(number(c[at.BIAS], c[at.BIAS_DTYPE], start + n * c[at.BIAS_J]))
            store(s, n * LANES, splat(HIDDEN) if x == HIDDEN else load(s, n * LANES) + splat(x))
        return
    for lane in range(LANES):
        row = start + min(i0 + lane, c[at.TQ] - 1) * c[at.BIAS_I]
        for n in range(first, end):
            x = in_base_two(number(c[at.BIAS], c[at.BIAS_DTYPE], row + n * c[at.BIAS_J]))
            if x == HIDDEN:
                s[n * LANES + lane] = HIDDEN
            else:
                s[n * LANES + lane] += x


@compiled
def add_alibi(c, s, h, i0, j0, first, end):
    """− slope · |a_i − j|."""
    slope = numba.float32(number(c[at.SLOPES], 0, h) * float32(LOG2_E))
    a = to_floats(lane_numbers()) + splat(float32(i0 + c[at.OFFSET]))
    for n in range(first, end):
        away = a - splat(float32(j0 + n))
        away = larger(away, splat(float32(0.0)) - away)
        store(s, n * LANES, load(s, n * LANES) - splat(slope) * away)


@compiled
def all_visible(c, j0, first, end, spans):
    """Whether every pair of a block may be seen, as far as that is known without looking at one."""
    inside = spans[1] <= j0 + first and j0 + end <= spans[2]
    return inside and c[at.BIAS] == 0 and c[at.LABELS] == 0 and c[at.DENSE] == 0


@compiled
def finish_logits(c, s, b, h, i0, j0, first, end, lo, hi, spans, mine):
    """Everything between the products and the softmax, for keys j0 + [first, end)."""
    if c[at.SOFTCAP] != 0:
        cap(c, s, first, end)
    add_and_hide(c, s, b, h, i0, j0, first, end, lo, hi, spans, mine)


@compiled
def add_and_hide(c, s, b, h, i0, j0, first, end, lo, hi, spans, mine):
    """What comes behind the softcap: bias, ALiBi, and −inf where a query may not see a key.

    Keys that every lane's interval holds are not looked at.
    """
    if c[at.BIAS] != 0:
        add_bias(c, s, b, h, i0, j0, first, end)
    if c[at.SLOPES] != 0:
        add_alibi(c, s, h, i0, j0, first, end)
    begins = min(max(spans[1] - j0, first), end)  # before it some lane's interval has not begun
    ends = max(min(spans[2] - j0, end), begins)  # from it on some lane's interval has ended
    hide_outside(s, j0, first, begins, lo, hi)
    hide_outside(s, j0, ends, end, lo, hi)
    if c[at.LABELS] != 0:
        hide_other_labels(c, s, b, i0, j0, first, end, mine)
    if c[at.DENSE] != 0:
        hide_by_tensor(c, s, b, h, i0, j0, first, end)
