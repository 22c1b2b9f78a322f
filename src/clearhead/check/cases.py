"""The cases a candidate is run on: sizes that cannot be taken for one another, large scores, a mask, options of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from clearhead.check.calling import Failed
from clearhead.check.formula import Bench, Case
from clearhead.check.functions import FunctionSubject
from clearhead.check.inputs import Sizes, some_sinks
from clearhead.check.modules import ModuleSubject
from clearhead.check.search import SINGLE
from clearhead.check.settling import masked_case
from clearhead.check.source import in_tiles
from clearhead.check.state import Reading, meant_options
from clearhead.check.subjects import CannotRun, said_of

# Scores as large as that: where a fill of −100, −1e4, −1e5 is no longer low.
LOUDNESS = (300.0, 2e4, 4e5)
LONG = 129  # keys: more than the usual tiles hold


def function_cases(reading: Reading) -> None:
    """Run the function on every case it takes."""
    subject, o = reading.subject, reading.ordinary
    assert isinstance(subject, FunctionSubject)  # noqa: S101
    meant = meant_options(reading)
    seed = reading.options.seed
    friendly = o.D != Sizes().D or o.Tq != Sizes().Tq
    small = Sizes(3, 2, 2, 4, 4, 11, 11) if not friendly else Sizes(3, 2, 2, o.Tq, o.Tk, o.D * 2, o.Dv * 2)
    plan: list[tuple[str, Sizes, dict[str, Any]]] = [
        ("square", o, {"order": 10}),
        ("other sizes", small, {"order": 12}),
        ("Tq < Tk", Sizes(o.B, o.Hq, o.Hk, max(1, o.Tk * 4 // 7), o.Tk, o.D, o.Dv), {"order": 5}),
        ("one query", Sizes(o.B, o.Hq, o.Hk, 1, o.Tk, o.D, o.Dv), {"order": 40}),
        ("Dv < D", Sizes(o.B, o.Hq, o.Hk, o.Tq, o.Tk, o.D, max(1, o.Dv * 3 // 5)), {"order": 30}),
    ]
    if subject.layout not in ("btd", "td", "tbd"):
        plan.append(("grouped heads", Sizes(o.B, o.Hq, o.Hq // 2, o.Tq, o.Tk, o.D, o.Dv), {"order": 15}))
    if subject.layout == "btc" and subject.kv_heads_argument is None:
        plan = [entry for entry in plan if entry[0] != "grouped heads"]
    for n, loud in enumerate(LOUDNESS):
        plan.append((f"scores near {loud:g}", o, {"order": 25 - n, "loud": loud}))
    with torch.no_grad():
        for name, sizes, extra in plan:
            _try_case(reading, name, sizes, functools.partial(subject.case, name, sizes, seed=seed, **extra, **meant))
        if any(name == "Tq < Tk" and failed.why in ("refused", "broke") for name, _, failed in reading.refusals):
            # One row meets all of a square mask by broadcasting, where two rows do not fit: it runs, and says nothing.
            reading.benches = [bench for bench in reading.benches if bench.case.name != "one query"]
        if subject.mask_argument is not None and subject.mask_shape is not None:
            _try_case(reading, "mask", o, lambda: masked_case(reading, seed))
        _option_cases(reading, subject, o, meant)


def long_case(reading: Reading) -> bool:
    """One sequence of many keys, for a candidate that goes through them in tiles; whether it was run and came out wrong."""
    subject, o = reading.subject, reading.ordinary
    assert isinstance(subject, FunctionSubject)  # noqa: S101
    if not in_tiles(subject.function):
        return False
    sizes = Sizes(1, 1, 1, LONG, LONG, o.D, o.Dv)
    meant, before = meant_options(reading), len(reading.benches)
    with torch.no_grad():
        run = functools.partial(subject.case, "many keys", sizes, seed=reading.options.seed, order=9, **meant)
        _try_case(reading, "many keys", sizes, run)
    if len(reading.benches) > before and reading.benches[-1].error(reading.base) <= SINGLE:
        reading.benches.pop()  # it says nothing that the others do not, and searching in it takes long
    return len(reading.benches) > before


def _option_cases(reading: Reading, subject: FunctionSubject, o: Sizes, meant: dict[str, Any]) -> None:
    """Cases for parameters by which the function can be told a scale, a softcap, a window or sinks."""
    seed = reading.options.seed
    plan: list[tuple[str, str, Any, dict[str, Any]]] = []
    for role, value in (("scale", 0.3), ("softcap", 1.5), ("window", 3)):
        parameter = subject.parameter(role)
        if (
            parameter is not None
            and getattr(reading.options, role) is None
            and not (role == "scale" and parameter.required)
        ):
            plan.append((role, parameter.name, value, {role: value}))
    sinks = subject.parameter("sinks")
    if sinks is not None and not sinks.required:
        logits = some_sinks(subject.limited(o).Hq)
        plan.append(("sinks", sinks.name, subject.to_framework(logits), {"sinks": logits.numpy()}))
    flag = subject.parameter("causal")
    if flag is not None and subject.fixed.get(flag.name) is True:
        plan.append((f"{flag.name}=False", flag.name, False, {"unmasked": True}))
    for name, argument, value, extra in plan:
        if name == "window" and flag is None and reading.options.causal is None:
            reading.causal_because = reading.causal_because or ""
        run = functools.partial(subject.case, name, o, seed=seed, order=8, **(meant | extra))
        _try_case(reading, name, o, functools.partial(_with_fixed, subject, argument, value, run))


def _with_fixed(subject: FunctionSubject, argument: str, value: Any, run: Callable[[], Case]) -> Case:
    """A case with an argument of its own passed."""
    before = dict(subject.fixed)
    subject.fixed[argument] = value
    try:
        return run()
    finally:
        subject.fixed.clear()
        subject.fixed.update(before)


def _try_case(reading: Reading, name: str, sizes: object, run: Callable[[], Case]) -> None:
    try:
        case = run()
        case.again = run
        reading.benches.append(Bench(case))
    except Failed as failed:
        if failed.why in ("took too long", "exited", "too much memory") and not reading.benches:
            raise CannotRun(f"{reading.subject.signature}: on the case {name!r} it {said_of(failed)}") from None
        reading.refusals.append((name, str(sizes), failed))


def module_cases(reading: Reading) -> None:
    """Run the module on every case it takes. Raises `CannotRun` when it takes none."""
    subject, seed, meant = reading.subject, reading.options.seed, meant_options(reading)
    assert isinstance(subject, ModuleSubject)  # noqa: S101
    t = subject.length
    batch = 1 if subject.layout == "tc" else 2
    shorter = 4 if t > 4 else max(1, t - 1)
    if reading.uncropped is not None:
        shorter = t
    plan: list[tuple[str, int, int, dict[str, Any]]] = [
        ("square", batch, t, {"order": 10}),
        ("other sizes", 1 if batch == 1 else 3, shorter, {"order": 12}),
    ]
    if subject.takes_three or subject.context_argument is not None:
        plan.append(("Tq < Tk", batch, max(1, t * 4 // 7), {"order": 5, "other": t}))
    for n, loud in enumerate(LOUDNESS):
        plan.append((f"scores near {loud:g}", batch, t, {"order": 25 - n, "loud": loud}))
    with torch.no_grad():
        for name, b, length, extra in plan:
            _try_case(
                reading, name, f"B={b}, T={length}",
                functools.partial(subject.case, name, b, length, seed=seed, **extra, **meant),
            )  # fmt: skip
        if subject.mask_argument is not None and subject.mask_shape is not None:
            _try_case(reading, "mask", f"B={batch}, T={t}", lambda: masked_case(reading, seed))
    if not reading.benches:
        name, sizes, failed = reading.refusals[0]
        raise CannotRun(f"{subject.signature}: on the case {name!r} ({sizes}) it {said_of(failed)}")
