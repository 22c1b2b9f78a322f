"""Weights that are kept while a strip is observed, and where.

The weights of a strip stay, block by block, until all its keys have passed. Then L is known, and one factor a lane turns the
weights of each block into those of whole rows. Memory of one strip, in float32 from `watched` on:

    energy, above        LANES each: Σ p (z − top) under the running maximum; L − top at the end
    blocks               for each block: the maximum its weights were computed under, later their factor [LANES], and its first
                         and last row that were computed (two int32 at the beginning of LANES floats)
    weights              [keys][LANES]; −0.0 where a pair may not be seen
"""

from numba import float32, int32

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.machine import BLOCK
from clearhead.kernels.cpu.vector import LANES, after, as_ints, bits, compiled, load, splat, splat_int, store, where

NEVER = int32(-2147483648)  # the bits of −0.0: the weight of a pair that may not be seen


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
