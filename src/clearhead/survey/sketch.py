"""A histogram with buckets so fine that any quantile can be read from it, and that adds up over documents and ranks.

Buckets are cut from the bits of a float32: its exponent and the first five bits of its fraction, so that a bucket is at most
1/32 of its lower end wide, and a number read from its middle is at most 1/64 (1.6%) away from every number in it. Numbers of a
size below `2 ** low` count as 0, and those of a size from `2 ** high` on as the largest bucket. Counts are integers: adding two
sketches loses nothing, in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FINE = 5  # bits of the fraction that tell buckets apart
RELATIVE_ERROR = 2.0 ** -(FINE + 1)
BUCKETS = (40 << FINE) + 1


@dataclass(frozen=True)
class Scale:
    """Which sizes a sketch tells apart: from 2 ** low to 2 ** high, of both signs if `signed`.

    >>> Scale(-20, 20).places(np.array([0.0, 1.0, 1.5], np.float32)).tolist()
    [0, 641, 657]
    >>> round(float(Scale(-20, 20).value(np.array([657]))[0]), 4)
    1.5156
    """

    low: int
    high: int
    signed: bool = False

    @property
    def side(self) -> int:
        """Buckets of one sign."""
        return (self.high - self.low) << FINE

    def places(self, numbers: NDArray[np.float32]) -> NDArray[np.int64]:
        """The bucket of every number, from 0 on. NaN counts as the largest."""
        bits = numbers.view(np.int32).astype(np.int64)
        size = (bits & 0x7FFFFFFF) >> (23 - FINE)
        near = np.clip(size - ((127 + self.low) << FINE) + 1, 0, self.side)
        return self.side + np.where(bits < 0, -near, near) if self.signed else np.where(bits < 0, 0, near)

    def value(self, places: NDArray[np.int64]) -> NDArray[np.float64]:
        """The middle of each bucket."""
        near = places - self.side if self.signed else places
        size = np.abs(near) - 1
        fraction = 1 + ((size & ((1 << FINE) - 1)) + 0.5) / (1 << FINE)
        found = np.sign(near) * fraction * np.exp2((size >> FINE) + float(self.low))
        return np.where(near == 0, 0.0, found)

    def quantiles(self, places: NDArray[np.int64], counts: NDArray[np.int64], shares: list[float]) -> list[float]:
        """The numbers below which these shares of all lie; NaN of nothing. `places` ascend."""
        total = int(counts.sum())
        if not total:
            return [float("nan")] * len(shares)
        below = np.cumsum(counts)
        at = [np.searchsorted(below, min(max(1, int(np.ceil(share * total))), total)) for share in shares]
        return [float(x) for x in self.value(places[at])]
