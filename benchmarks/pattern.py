"""Looking closer, timed: tiles cold and kept, rollout, `received`; and how far off `estimate` is. Each beside its target.

`python benchmarks/pattern.py --threads 2`. A row is the median of some runs, in brackets the fastest and the slowest.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch

from clearhead import Causal, Observables, Pattern, estimate, observe, rollout
from clearhead.errors import dtype_name


def timed(call: Callable[[], object], runs: int) -> tuple[float, float, float]:
    """Median, least and most seconds."""
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return median(seconds), min(seconds), max(seconds)


def row(name: str, found: tuple[float, float, float], target: float | None = None) -> None:
    middle, least, most = (1000 * x for x in found)
    beside = "" if target is None else f"   target < {1000 * target:,.0f} ms, {found[0] / target:.0%} of it"
    print(f"{name:<58} {middle:9.1f} ms  ({least:.1f}-{most:.1f}){beside}")


def patterns(T: int, heads: int, *, kv: int | None = None, dtype: torch.dtype = torch.float32) -> Callable[[], Pattern]:
    """What makes a causal pattern of these sizes that has kept no tile yet; its lse is known, as after `observe`."""
    q, k = (torch.randn(1, n, T, 64).to(dtype) for n in (heads, kv or heads))
    lse = observe(q, k, k, mask=Causal(), observables=Observables.light()).lse
    return lambda: Pattern(q, k, mask=Causal(), lse=lse)


def tiles(T: int, runs: int, cold: float, *, seen: float | None) -> None:
    make = patterns(T, 1)
    levels = make().levels
    for level in range(levels):
        across, down = make().tiles(level)
        deepest = level == levels - 1
        x, y = across // 3, down - 1  # all of its pairs are seen, but at the end of the text
        row(f"T={T} level {level}, cold", timed(lambda: make().tile(level, x, y), runs), 0.02 if deepest else cold)  # noqa: B023
    if seen is not None:
        pattern = make()
        pattern.tile(0, 0, 0)
        row(f"T={T} level 0, once seen", timed(lambda: pattern.tile(0, 0, 0), 9), seen)
        some = [(n, *(int(torch.randint(m, ())) for m in pattern.tiles(n))) for n in range(1, levels) for _ in range(5)]
        worst = max((timed(lambda: pattern.tile(*at), 1) for at in some), key=lambda t: t[0])  # noqa: B023
        row(f"T={T} the slowest of {len(some)} other tiles after level 0", worst, seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    runs = options.runs
    print(f"{options.threads} threads, float32, causal, D=64, lse known\n")
    tiles(8192, runs, 0.15, seen=None)
    tiles(32768, min(3, runs), 1.0, seen=0.02)
    make = patterns(2048, 9, kv=3)
    row("rollout, 30 layers of 9 heads, T=2048", timed(lambda: rollout([make()] * 30, 2047), min(3, runs)), 3.0)
    whole = patterns(8192, 8, dtype=torch.bfloat16)()
    row("received, 8 heads, T=8192, bfloat16", timed(whole.received, runs))
    print("\nestimate against what observing then takes")
    for T, heads, dtype in (
        (512, 12, torch.float32),
        (2048, 12, torch.float32),
        (8192, 4, torch.float32),
        (4096, 8, torch.bfloat16),
    ):
        x = torch.randn(1, heads, T, 64).to(dtype)
        expected = estimate(x, x, x, mask=Causal())
        observe(x, x, x, mask=Causal())
        took = timed(lambda: observe(x, x, x, mask=Causal()), runs)  # noqa: B023
        name = f"T={T}, {heads} heads, {dtype_name(dtype)}"
        row(f"{name}: expected {1000 * expected.seconds:.1f} ms, {expected.seconds / took[0]:.2f} of", took)


if __name__ == "__main__":
    main()
