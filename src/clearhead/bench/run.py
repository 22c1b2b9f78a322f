"""One case, from its tensors to its rows: make everybody ready, compare the results, take the times."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clearhead.bench import candidates as have
from clearhead.bench.candidates import Candidate, Forward, Unavailable
from clearhead.bench.cases import Case, Inputs
from clearhead.bench.engines import ONNXRUNTIME, OPENVINO
from clearhead.bench.machine import Machine
from clearhead.bench.measure import (
    ROUNDS,
    SAMPLE,
    Clock,
    Spread,
    Timed,
    interleave,
    ratio,
    repeats_for,
    rounds_for,
    spread,
)
from clearhead.testing import compare

SDPA = Candidate("SDPA", have.sdpa)
OTHERS = (Candidate("math", have.math), Candidate("flex", have.flex, compiles=True), ONNXRUNTIME, OPENVINO)
RESULTS = ("output", "gradient of query", "gradient of key", "gradient of value")
Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Row:
    """What one candidate did in one case; numbers are there when `status` is "measured" or "differs".

    "differs": its result is not SDPA's within the tolerance, so there is no `ratio`. "skipped": `reason` says why.
    """

    candidate: str
    status: Literal["measured", "differs", "skipped"]
    reason: str | None = None
    impl: str | None = None
    ms: Spread | None = None  # a call
    calls: int = 0  # a sample
    gflops: float | None = None
    gbs: float | None = None  # where reading is the limit
    ratio: Spread | None = None  # how many times as fast as SDPA
    cost: Spread | None = None  # for observing: time as a multiple of the same attention unobserved


@dataclass(frozen=True)
class Result:
    """A case with its rows and the rounds they were measured in."""

    case: Case
    rounds: int
    rows: tuple[Row, ...]
    slow: bool = False  # so slow that fewer rounds than usual were chosen
    interrupted: bool = False


def candidates_for(case: Case, impls: Sequence[str] = ()) -> list[Candidate]:
    """SDPA first, then ours, then the rest; what observing costs is asked of ourselves alone."""
    ours = ["auto", *impls]
    attending = [SDPA, *map(have.clearhead, ours)]
    if case.kind != "observe":
        return [*attending, *OTHERS]
    return [*attending, *(have.observing(impl, light=light) for impl in ours for light in (False, True))]


def run_case(
    case: Case,
    candidates: Sequence[Candidate],
    *,
    rounds: int | None = None,
    budget: float = 30.0,
    quick: bool = False,
    clock: Clock = time.perf_counter,
    progress: Callable[[str], object] | None = None,
) -> Result:
    """Measure a case.

    Arguments:
        candidates: whom to measure; SDPA is the one they are compared to.
        rounds: how many; None: as many as fit `budget` seconds, 5 to 21.
        quick: leave out candidates that need seconds to get ready.
        progress: told what is being done.
    """
    say = progress or (lambda _: None)
    inputs = Inputs(case)
    ready: dict[str, Call] = {}
    results: dict[str, tuple[Tensor, ...]] = {}
    reasons: dict[str, str] = {}
    for candidate in candidates:
        say(f"getting {candidate.name} ready")
        if quick and candidate.compiles:
            reasons[candidate.name] = "takes seconds to compile: not in a quick run"
            continue
        try:
            ready[candidate.name], results[candidate.name] = _prepared(candidate, case, inputs)
        except Unavailable as why:
            reasons[candidate.name] = str(why)
        except Exception as error:  # noqa: BLE001 - other people's code fails in its own ways, and the others go on
            reasons[candidate.name] = f"{type(error).__name__}: {_first_line(error)}"
    say("comparing the results")
    unlike = differences(case, results)
    took = {name: _once(call, clock) for name, call in ready.items()}
    rest = {c.name: c.rest for c in candidates}
    a_round = sum((max(t, SAMPLE) + rest[name] for name, t in took.items()), start=0.0)
    wanted = rounds or rounds_for(a_round, budget)
    repeats = {name: repeats_for(t) for name, t in took.items()}
    timed = interleave(
        ready, repeats, wanted, rest=rest, clock=clock, progress=lambda done: say(f"round {done} of {wanted}")
    )
    rows = tuple(_row(c, case, timed, repeats, reasons.get(c.name), unlike.get(c.name)) for c in candidates)
    return Result(case, timed.rounds, rows, slow=rounds is None and wanted < ROUNDS, interrupted=timed.interrupted)


def _prepared(candidate: Candidate, case: Case, inputs: Inputs) -> tuple[Call, tuple[Tensor, ...]]:
    """The candidate's call, with gradients where the case has them, and what its first, untimed, run returned."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of experimental features and the like: we know, and nobody could act on it
        call = _whole(case, inputs, candidate.build(case, inputs))
        return call, tuple(x.detach().clone() for x in call())


def _whole(case: Case, inputs: Inputs, forward: Forward) -> Call:
    """The forward pass, or forward and backward, as one call that returns all results."""
    if case.kind != "backward":
        return lambda: (forward(),)
    leaves = (inputs.query, inputs.key, inputs.value)

    def both() -> tuple[Tensor, ...]:
        out = forward()
        return (out, *torch.autograd.grad(out, leaves, inputs.gradient))

    return both


def differences(case: Case, results: dict[str, tuple[Tensor, ...]]) -> dict[str, str]:
    """Whose result is not SDPA's, and how far it is off.

    The project's tolerance rule with SDPA for a baseline: no further from what SDPA gives in float64 than twice (gradients:
    three times) what SDPA itself is, plus a rounding term. Empty when SDPA did not run.
    """
    if SDPA.name not in results:
        return {}
    exact = Inputs(case, torch.float64)
    truth = _whole(case, exact, have.sdpa(case, exact))()
    unlike = {}
    for name, parts in results.items():
        for what, got, true, base in zip(RESULTS, parts, truth, results[SDPA.name], strict=False):
            if got.shape != true.shape or got.dtype != base.dtype:
                unlike[name] = f"{what}: {got.dtype} {tuple(got.shape)} instead of {base.dtype} {tuple(true.shape)}"
                break
            found = compare(got, true, base, gradient=what != RESULTS[0], what=what)
            if not found.ok:
                unlike[name] = (
                    f"{what} is off by {found.error:.1e}, allowed {found.allowed:.1e} (SDPA: {found.baseline_error:.1e})"
                )
                break
    return unlike


def _row(
    candidate: Candidate,
    case: Case,
    timed: Timed,
    repeats: dict[str, int],
    skipped: str | None,
    unlike: str | None,
) -> Row:
    name = candidate.name
    if skipped is None and timed.rounds == 0:
        skipped = "interrupted before its first round"
    if skipped is not None:
        return Row(name, "skipped", reason=skipped, impl=candidate.impl)
    seconds = timed.seconds[name]
    typical = spread(seconds)
    gflops = case.useful_flops / typical.median / 1e9
    gbs = case.useful_bytes / typical.median / 1e9 if case.limit == "read" else None
    base = timed.seconds.get(SDPA.name)
    unobserved = timed.seconds.get(candidate.unobserved or "")
    return Row(
        name,
        "measured" if unlike is None else "differs",
        reason=unlike,
        impl=candidate.impl,
        ms=Spread(*(1e3 * t for t in typical)),
        calls=repeats[name],
        gflops=gflops,
        gbs=gbs,
        ratio=ratio(base, seconds) if base is not None and unlike is None else None,
        cost=ratio(seconds, unobserved) if unobserved is not None and unlike is None else None,
    )


def limit_percent(row: Row, machine: Machine) -> float | None:
    """How much of the machine's limit a row reaches, %; None where it was not measured."""
    if row.gbs is not None:
        return 100 * row.gbs / machine.read_gbs
    return None if row.gflops is None else 100 * row.gflops / machine.fma_gflops


def _once(call: Callable[[], object], clock: Clock) -> float:
    """Seconds of one run, to plan by."""
    start = clock()
    call()
    return clock() - start


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")[:160]
