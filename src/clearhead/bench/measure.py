"""Taking times fairly, and the arithmetic on them.

Candidates run interleaved, A B C A B C …, so that whatever else the machine does hits all of them alike. Ratios are taken
within a round and then summarised, since two runs that stand next to each other share their circumstances.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Clock = Callable[[], float]
ROUNDS = 21
LEAST_ROUNDS = 5
SAMPLE = 5e-3  # seconds a sample should last at least: shorter calls are repeated within it
MOST_CALLS = 500


class Spread(NamedTuple):
    """The median, and the values below which 10 % and 90 % lie."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Summarise one value a round.

    >>> spread([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0])
    Spread(median=6.0, low=2.0, high=10.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return Spread(statistics.median(values), tenths[0], tenths[-1])


def ratio(above: Sequence[float], below: Sequence[float]) -> Spread:
    """The spread of above / below, taken round by round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


@dataclass(frozen=True)
class Timed:
    """Seconds a call, for every candidate one value a round; `interrupted` when Ctrl-C ended it early."""

    seconds: Mapping[str, list[float]]
    rounds: int
    interrupted: bool = False


def interleave(
    calls: Mapping[str, Callable[[], object]],
    repeats: Mapping[str, int],
    rounds: int,
    *,
    rest: Mapping[str, float] | None = None,
    clock: Clock = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
    progress: Callable[[int], object] | None = None,
) -> Timed:
    """Time every candidate once a round, `rounds` times; Ctrl-C keeps the rounds that are whole.

    Arguments:
        calls: what to time, by name; already warmed up.
        repeats: calls a sample, for those too short to be timed alone.
        rest: seconds to wait before a candidate's sample, for those with threads of their own.
        progress: told how many rounds are done.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    interrupted = False
    try:
        for done in range(rounds):
            for name, run in calls.items():
                if rest and rest.get(name):
                    sleep(rest[name])
                n = repeats[name]
                if n > 1:  # a short call would otherwise pay for whatever its neighbour left in the caches
                    run()
                start = clock()
                for _ in range(n):
                    run()
                seconds[name].append((clock() - start) / n)
            if progress is not None:
                progress(done + 1)
    except KeyboardInterrupt:
        interrupted = True
    whole = min(map(len, seconds.values()), default=0)
    return Timed({name: times[:whole] for name, times in seconds.items()}, whole, interrupted)


def repeats_for(seconds: float) -> int:
    """How many calls make one sample long enough for the clock.

    >>> repeats_for(0.5), repeats_for(0.002), repeats_for(0.0)
    (1, 3, 500)
    """
    return MOST_CALLS if seconds <= SAMPLE / MOST_CALLS else max(1, math.ceil(SAMPLE / seconds))


def rounds_for(seconds: float, budget: float) -> int:
    """How many rounds of `seconds` each fit a budget: 21, or fewer for slow cases, but never fewer than 5.

    >>> rounds_for(0.01, 30.0), rounds_for(3.0, 30.0), rounds_for(60.0, 30.0)
    (21, 10, 5)
    """
    return ROUNDS if seconds * ROUNDS <= budget else max(LEAST_ROUNDS, int(budget / seconds))
