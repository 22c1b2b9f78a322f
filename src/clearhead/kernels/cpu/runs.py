"""The sum, or the largest, of the weights of many keys of a block: by whole runs, and what is beside them one by one."""

from numba import float32

from clearhead.kernels.cpu.kept import sum_rows
from clearhead.kernels.cpu.machine import RUN
from clearhead.kernels.cpu.strip import rounded_up
from clearhead.kernels.cpu.vector import LANES, compiled, larger, load, splat


@compiled
def whole_runs(first, last):
    """The first whole run of keys first … last − 1, and the one after the last; the same where there is none."""
    begin_ = rounded_up(first, RUN) // RUN
    return begin_, max(begin_, last // RUN)


@compiled
def sum_keys(w, sums, first, last):
    """Σ_n w[n][lane] for keys first … last − 1 of a block."""
    begin_, end = whole_runs(first, last)
    if begin_ == end:
        return sum_rows(w, first, last)
    total = sum_rows(sums, begin_, end)
    if begin_ * RUN != first:
        total = total + sum_rows(w, first, begin_ * RUN)
    if end * RUN != last:
        total = total + sum_rows(w, end * RUN, last)
    return total


@compiled
def largest_of_keys(w, maxima, first, last):
    """The largest weight of keys first … last − 1 of a block, in every lane."""
    begin_, end = whole_runs(first, last)
    high = splat(float32(0.0))
    for n in range(first, min(last, begin_ * RUN)):
        high = larger(load(w, n * LANES), high)
    for n in range(max(first, end * RUN), last):
        high = larger(load(w, n * LANES), high)
    for r in range(begin_, end):
        high = larger(load(maxima, r * LANES), high)
    return high
