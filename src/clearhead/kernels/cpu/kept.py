"""Weights that are kept while a strip is observed, and where.

The weights of a strip stay, block by block, until all its keys have passed. Then L is known, and one factor a lane turns the
weights of each block into those of whole rows. Keys are also kept four by four, as *runs*, of which the largest weight and
the sum are known: whatever asks for the sum or the largest of many keys reads a quarter. Memory of one strip, in float32
from `watched` on:

    energy, above        LANES each: Σ p (z − top) under the running maximum; L − top at the end
    blocks               for each block: the maximum its weights were computed under, later their factor [LANES]; its first
                         and last row that were computed (two int32 at the beginning of LANES floats); Σ_n p_n (n mod RUN)
                         [LANES]
    weights              [keys][LANES]; −0.0 where a pair may not be seen
    maxima, sums         [keys / RUN][LANES] each: of the weights of every run
"""

from numba import float32, int32, int64

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.machine import BLOCK, RUN
from clearhead.kernels.cpu.vector import (
    LANES,
    after,
    as_ints,
    bits,
    compiled,
    fma,
    larger,
    load,
    splat,
    splat_int,
    store,
    where,
)

NEVER = int32(-2147483648)  # the bits of −0.0: the weight of a pair that may not be seen


@compiled
def block_count(c):
    """Blocks that a strip meets at most."""
    return (c[at.LONGEST] + BLOCK - 1) // BLOCK


@compiled
def size(c):
    """Floats that observing adds to a strip."""
    return (2 + 3 * block_count(c) + c[at.LONGEST] + 2 * (c[at.LONGEST] // RUN)) * LANES


@compiled
def above(watched):
    """[LANES]: L − top, once a strip is done."""
    return after(watched, LANES)


@compiled
def block_factor(watched, block):
    """[LANES]: the running maximum under which a block's weights were computed; later what makes them whole."""
    return after(watched, (2 + 3 * block) * LANES)


@compiled
def block_rows(watched, block):
    """First and last row of a block that were computed, two int32."""
    return as_ints(after(watched, (3 + 3 * block) * LANES))


@compiled
def block_runs(watched, block):
    """First and one past the last run of a block; what the last has beyond the rows that were computed is −0.0."""
    rows = block_rows(watched, block)
    return int64(rows[0]) // RUN, (int64(rows[1]) + RUN - 1) // RUN


@compiled
def block_inside(watched, block):
    """[LANES]: Σ_n p_n (n mod RUN), which with the sums of the runs gives Σ_n p_n n."""
    return after(watched, (4 + 3 * block) * LANES)


@compiled
def weights(c, watched, block):
    """[BLOCK][LANES] of one block."""
    return after(watched, (2 + 3 * block_count(c) + block * BLOCK) * LANES)


@compiled
def run_maxima(c, watched, block):
    """[BLOCK / RUN][LANES]: the largest weight of every run of a block, under the block's own maximum as the weights are."""
    return after(weights(c, watched, 0), (c[at.LONGEST] + block * (BLOCK // RUN)) * LANES)


@compiled
def run_sums(c, watched, block):
    """[BLOCK / RUN][LANES]: the sum of every run."""
    return after(run_maxima(c, watched, block), c[at.LONGEST] // RUN * LANES)


@compiled
def begin(c, watched):
    """Before the first key."""
    store(watched, 0, splat(float32(0.0)))
    for block in range(block_count(c)):
        block_rows(watched, block)[0] = block_rows(watched, block)[1] = int32(0)


@compiled
def note_run(run, a, b, c, d, maxima, sums, inside):
    """The largest of four weights and their sum; returns Σ_n p_n (n mod RUN) with theirs added.

    Weights are compared by their bits: so −0.0, which may not be seen, is less than 0.
    """
    high = larger(larger(bits(a), bits(b)), larger(bits(c), bits(d)))
    store(maxima, run * LANES, bits(high))
    later = c + d
    store(sums, run * LANES, (a + b) + later)
    return inside + (fma(later, splat(float32(2.0)), b) + d)


@compiled
def note_runs(c, watched, block):
    """The runs of a block again, after its weights were changed."""
    w, maxima, sums = weights(c, watched, block), run_maxima(c, watched, block), run_sums(c, watched, block)
    first, last = block_runs(watched, block)
    inside = splat(float32(0.0))
    for run in range(first, last):
        p, q = load(w, RUN * run * LANES), load(w, (RUN * run + 1) * LANES)
        r, s = load(w, (RUN * run + 2) * LANES), load(w, (RUN * run + 3) * LANES)
        inside = note_run(run, p, q, r, s, maxima, sums, inside)
    store(block_inside(watched, block), 0, inside)


@compiled
def make_whole(w, factor, tame, first, last):
    """A block's weights become those of whole rows, in lanes that are not tame; what may not be seen keeps −0.0."""
    for n in range(first, last):
        p = load(w, n * LANES)
        store(w, n * LANES, where(tame | (bits(p) == splat_int(NEVER)), p, p * factor))


@compiled
def blank(w, kept, first, last):
    """No weight, not even NaN, in the lanes that do not count; what may not be seen keeps −0.0."""
    for n in range(first, last):
        p = load(w, n * LANES)
        store(w, n * LANES, where(kept | (bits(p) == splat_int(NEVER)), p, splat(float32(0.0))))


@compiled
def sum_rows(w, first, last):
    """Σ_n w[n][lane], in four running sums: one alone would wait for each addition to end."""
    zero = splat(float32(0.0))
    a, b, c, d = zero, zero, zero, zero
    whole = first + (last - first) // 4 * 4
    for n in range(first, whole, 4):
        a = a + load(w, n * LANES)
        b = b + load(w, (n + 1) * LANES)
        c = c + load(w, (n + 2) * LANES)
        d = d + load(w, (n + 3) * LANES)
    for n in range(whole, last):
        a = a + load(w, n * LANES)
    return (a + b) + (c + d)
