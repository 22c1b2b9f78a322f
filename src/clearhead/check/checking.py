"""What every check is made with: the decorator, the five outcomes, and ways to run a candidate again."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clearhead.check.calling import Failed, Habits, Watcher
from clearhead.check.functions import FunctionSubject
from clearhead.check.inputs import inputs, some_sinks
from clearhead.check.reading import read
from clearhead.check.report import Finding
from clearhead.check.state import Reading, meant_options
from clearhead.check.subjects import Options

Check = Callable[..., Finding]
CHECKS: dict[str, Check] = {}


def check(function: Callable[[Reading], Finding]) -> Check:
    """Make a check that also takes a candidate as it is, and that never raises because of one."""

    @functools.wraps(function)
    def checked(candidate: Any, **options: Any) -> Finding:
        reading = candidate
        if not isinstance(candidate, Reading):
            name = getattr(candidate, "__name__", type(candidate).__name__)
            reading = read(candidate, name, Options(**options), lambda _: None, Habits(), Watcher())
        try:
            with torch.no_grad():
                return function(reading)
        except Failed as failed:
            said = f"{'refuses' if failed.why == 'refused' else 'fails'}: {failed.said}"
            return Finding(function.__name__, "note" if failed.why == "refused" else "wrong", said)

    CHECKS[function.__name__] = checked
    return checked


def right(name: str, said: str, **numbers: float) -> Finding:
    """A finding that all is well."""
    return Finding(name, "right", said, numbers)


def wrong(name: str, said: str, **numbers: float) -> Finding:
    """A finding that something is wrong."""
    return Finding(name, "wrong", said, numbers)


def warning(name: str, said: str, **numbers: float) -> Finding:
    """Something that is right by itself, and makes trouble elsewhere."""
    return Finding(name, "warning", said, numbers)


def note(name: str, said: str, **numbers: float) -> Finding:
    """Something worth saying that is not wrong."""
    return Finding(name, "note", said, numbers)


def skipped(name: str, why: str) -> Finding:
    """A check that could not be made, and why."""
    return Finding(name, "not tested", why)


def run(reading: Reading, given: tuple[Tensor, ...], mask: Tensor | None = None, **kw: Any) -> Tensor:
    """The candidate on (q, k, v) or on (x,)."""
    subject = reading.subject
    if isinstance(subject, FunctionSubject):
        return subject.run(given[0], given[1], given[2], mask, **kw)
    return subject.run(given[0], mask)


def given_to(reading: Reading, seed: int = 0, **sizes: int) -> tuple[Tensor, ...]:
    """Ordinary inputs, (q, k, v) or (x,)."""
    subject = reading.subject
    if isinstance(subject, FunctionSubject):
        return inputs(subject.limited(dataclasses.replace(reading.ordinary, **sizes)), seed)
    return (subject.inputs(sizes.get("B", 2), sizes.get("Tq", subject.length), seed),)


def far_apart(one: Tensor, other: Tensor) -> float:
    """max|one − other| as a share of the largest number; infinite where a NaN is not in both."""
    a, b = one.detach().double(), other.detach().double()
    if a.shape != b.shape:
        return float("inf")
    gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    largest = max(float(b.nan_to_num(0, 0, 0).abs().max()) if b.numel() else 0.0, 1e-30)
    return float(gap.nan_to_num(nan=float("inf")).max() / largest) if gap.numel() else 0.0


def rounding(reading: Reading) -> float:
    """How far two runs may be apart that should agree but for rounding."""
    return 1e-7 if reading.subject.dtype == torch.float64 else 1e-4


def poisoned(given: tuple[Tensor, ...], at: int) -> tuple[Tensor, ...]:
    """Inputs whose keys and values from a place on are other, large, finite numbers."""
    if len(given) == 1:
        x = given[0].clone()
        x[:, at:] = x[:, at:] * 3 + 10
        return (x,)
    q, k, v = (t.clone() for t in given)
    k[:, :, at:] *= 100
    v[:, :, at:] += 1000
    return q, k, v


def all_meant(reading: Reading, heads: int) -> dict[str, Any]:
    """What its calls are meant to use, the sinks that must be given included."""
    sinks = reading.subject.parameter("sinks")
    made = meant_options(reading)
    return made | ({"sinks": some_sinks(heads).numpy()} if sinks is not None and sinks.required else {})


def keeping(function: Callable[..., Any], kept: list[Any]) -> Callable[..., Any]:
    """The function, with everything it returns kept in a list."""

    @functools.wraps(function)
    def kept_too(*args: Any, **kwargs: Any) -> Any:
        kept.append(function(*args, **kwargs))
        return kept[-1]

    return kept_too
