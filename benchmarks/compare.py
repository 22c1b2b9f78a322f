"""Candidates interleaved in one process: A B C A B C …, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple


class Ratio(NamedTuple):
    """How much longer a candidate takes than the first one: median of the rounds, and the middle half of them."""

    seconds: float
    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:5.2f} ({self.low:.2f}-{self.high:.2f})"


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int = 21) -> dict[str, Ratio]:
    """Time every candidate once a round after one warm-up round; ratios are taken within a round, to the first."""
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for _ in range(rounds):
        for name, run in candidates.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    base = next(iter(times.values()))
    found = {}
    for name, of_candidate in times.items():
        ratios = [t / b for t, b in zip(of_candidate, base, strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        found[name] = Ratio(statistics.median(of_candidate), median, low, high)
    return found
