"""The memory of one strip: what is kept for LANES queries while their keys pass by.

    queries   [D][LANES]       times scale · log2(e)
    output    [wide][LANES]    unnormalised; `wide` is Dv rounded up to whole tiles
    top, total, lo, hi         LANES each: running maximum and sum, key intervals
    spans     8 integers       least and greatest lo, least and greatest hi, greatest hi of the lower lanes

Places are counted in float32 from the beginning of the strip.
"""

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.tile import ROWS
from clearhead.kernels.cpu.vector import LANES, after, as_ints, as_longs, compiled


@compiled
def rounded_up(n, to):
    """The next multiple."""
    return (n + to - 1) // to * to


@compiled
def wide(c):
    """Dv rounded up to whole tiles."""
    return rounded_up(c[at.DV], ROWS)


@compiled
def size(c):
    """Floats in one strip."""
    return (c[at.D] + wide(c) + 4) * LANES + 16


@compiled
def output(c, strip):
    """[wide][LANES]."""
    return after(strip, c[at.D] * LANES)


@compiled
def top(c, strip):
    """[LANES]: the largest logit so far."""
    return after(strip, (c[at.D] + wide(c)) * LANES)


@compiled
def total(c, strip):
    """[LANES]: Σ 2^(z − top) so far."""
    return after(top(c, strip), LANES)


@compiled
def intervals(c, strip):
    """[2][LANES] int32: lo and hi."""
    return as_ints(after(top(c, strip), 2 * LANES))


@compiled
def spans(c, strip):
    """[5] int64: least and greatest lo, least and greatest hi, greatest hi of the lower lanes."""
    return as_longs(after(top(c, strip), 4 * LANES))
