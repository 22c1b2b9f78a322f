"""Measurements as lines of text."""

from __future__ import annotations

from clearhead.bench.machine import Machine
from clearhead.bench.measure import ROUNDS, Spread
from clearhead.bench.run import Result, Row, limit_percent

RISEN = 1.05  # times as high as measured at first: more than chance


def machine_lines(machine: Machine) -> list[str]:
    """The machine and its limits."""
    m = machine
    return [
        f"{m.cpu}, {m.threads} of {m.cores} cores, {m.vectors}",
        f"limits measured here: arithmetic {m.fma_gflops:.0f} GFLOP/s float32 (one thread {m.fma_gflops_one:.0f}), "
        f"reading memory {m.read_gbs:.1f} GB/s (one thread {m.read_gbs_one:.1f})",
        "each line: median time, useful work a second, % of the limit, × SDPA's speed (and its range)",
    ]


def risen_lines(first: Machine, last: Machine) -> list[str]:
    """What to say when the limits turned out to be higher than was thought at first; nothing when they did not."""
    risen = max(last.fma_gflops / first.fma_gflops, last.read_gbs / first.read_gbs)
    if risen <= RISEN:
        return []
    return [
        f"the machine was busy at first: its limits are {last.fma_gflops:.0f} GFLOP/s and {last.read_gbs:.1f} GB/s; "
        f"% of limit is too high by up to {risen:.1f} × above, and right in --json and --plot"
    ]


def result_lines(result: Result, machine: Machine, told: set[tuple[str, str]] | None = None) -> list[str]:
    """A case: its name, and a line a candidate.

    `told` holds who was skipped and why, as far as it was said; they have no line again, and new ones go in there.
    """
    told = set() if told is None else told
    news = {(row.candidate, row.reason or "") for row in result.rows if row.status == "skipped"}
    rows = [row for row in result.rows if (row.candidate, row.reason or "") not in told & news]
    told |= news
    rounds = f"{result.rounds} round{'' if result.rounds == 1 else 's'}"
    if result.interrupted:
        rounds += ", interrupted"
    elif result.slow:
        rounds += f", not {ROUNDS}: the case is slow"
    return [f"{result.case.name}   ({rounds})", *(f"  {_row(row, machine)}" for row in rows)]


def _row(row: Row, machine: Machine) -> str:
    share = limit_percent(row, machine)
    if row.ms is None or share is None:
        return f"{row.candidate:<15} skipped: {row.reason}"
    speed = f"{row.gflops:7.1f} GFLOP/s" if row.gbs is None else f"{row.gbs:7.1f} GB/s   "
    line = f"{row.candidate:<15} {row.ms.median:9.3f} ms {speed} {share:5.1f} %"
    if row.status == "differs":
        return f"{line}  not compared: {row.reason}"
    if row.ratio is not None:
        line += f"  {_spread(row.ratio)} ×"
    if row.cost is not None:
        line += f"\n{'':17} {_spread(row.cost)} × the time of not observing"
    return line


def _spread(x: Spread) -> str:
    return f"{x.median:.2f} ({x.low:.2f}-{x.high:.2f})"
