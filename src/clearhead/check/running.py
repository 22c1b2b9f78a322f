"""A whole check in this process: read the candidate, run every check, explain, and put the report together."""

from __future__ import annotations

import dataclasses
import re
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from clearhead.check.calling import Failed, Habits, Watcher
from clearhead.check.checks import CHECKS
from clearhead.check.diagnosis import explanations, words
from clearhead.check.emptiness import with_remedy
from clearhead.check.evidence import evidence, smallest_failing
from clearhead.check.reading import read
from clearhead.check.report import Finding, Report
from clearhead.check.source import Source, source_of
from clearhead.check.state import Reading
from clearhead.check.subjects import CannotRun, Options

STRICT = (
    "half_precision",
    "strides",
    "empty_rows",
    "result_kind",
    "gradients",
    "lengths",
)  # whose notes are wrong with strict, as every warning is
Progress = Callable[[str], None]


def examine(candidate: Any, name: str, options: Options, progress: Progress = lambda _: None) -> Report:
    """Everything about a candidate, in this process and without limits on memory; see `clearhead.check`."""
    start = time.perf_counter()
    habits, watcher = Habits(), Watcher()
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(1)  # small sizes: more threads only cost
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with habits.undone():
                reading = read(candidate, name, options, progress, habits, watcher)
        except CannotRun as trouble:
            return Report(
                name, "could not run", trouble=str(trouble), seconds=time.perf_counter() - start, strict=options.strict
            )
        finally:
            torch.set_num_threads(threads)
            torch.set_grad_enabled(grad)
        torch.set_num_threads(1)
        try:
            return _report(candidate, name, reading, options, progress, start)
        finally:
            torch.set_num_threads(threads)
            torch.set_grad_enabled(grad)


def _report(candidate: Any, name: str, reading: Reading, options: Options, progress: Progress, start: float) -> Report:
    findings = []
    for check, function in CHECKS.items():
        progress(f"checking {check.replace('_', ' ')}")
        findings.append(_safely(check, function, reading))
    sources = source_of(_original(candidate, reading))
    if reading.right:
        findings = [_remedied(f, reading, sources) for f in findings]
    if options.strict:
        findings = [
            dataclasses.replace(f, outcome="wrong")
            if f.outcome == "warning" or (f.outcome == "note" and f.check in STRICT)
            else f
            for f in findings
        ]
    wrong = [f for f in findings if f.outcome == "wrong"]
    if not reading.right and not wrong:
        wrong = [_unexplained(reading)]
        findings = [*wrong, *findings]
    progress("explaining")
    diagnosis = explanations(reading, findings, sources) if wrong else ()
    picture, first = evidence(reading) if wrong else (None, "")
    return Report(
        name,
        "wrong" if wrong else "right",
        words(reading),
        tuple(findings),
        diagnosis,
        picture,
        first,
        smallest_failing(reading) if wrong else "",
        tuple(_not_tested(reading, findings)),
        "",
        time.perf_counter() - start,
        options.strict,
    )


def _remedied(finding: Finding, reading: Reading, sources: list[Source]) -> Finding:
    return with_remedy(reading, finding, sources) if finding.check == "empty_rows" else finding


def _safely(check: str, function: Callable[..., Finding], reading: Reading) -> Finding:
    """A check that itself falls over says so; it is our fault, and no verdict on the candidate."""
    try:
        return function(reading)
    except Failed as failed:
        return Finding(check, "wrong", failed.said)
    except Exception as error:  # noqa: BLE001
        return Finding(check, "not tested", f"the check itself failed: {type(error).__name__}: {error}")


def _unexplained(reading: Reading) -> Finding:
    wrong = [b.case.name for b in reading.benches if b.case.name not in reading.explained]
    return Finding("values", "wrong", f"differs on {', '.join(repr(name) for name in wrong)}")


def _original(candidate: Any, reading: Reading) -> Any:
    forward, root = getattr(reading.subject, "forward", None), getattr(reading.subject, "root", None)
    if isinstance(forward, types.FunctionType | types.MethodType):  # not a module's own, whose classes tell more
        return forward
    if isinstance(candidate, type) or (isinstance(root, nn.Module) and isinstance(candidate, nn.Module)):
        return root if isinstance(root, nn.Module) else candidate
    return candidate


def _not_tested(reading: Reading, findings: list[Finding]) -> list[str]:
    said = [f"{f.check.replace('_', ' ')}: {f.said}" for f in findings if f.outcome == "not tested"]
    tested = {text.partition(":")[0] for text in said}
    for name, _, failed in reading.refusals:
        if name not in tested and not re.fullmatch(r"T=\d+", name):  # the check of lengths speaks of those
            said.append(
                f"{name}: it {'refuses with' if failed.why == 'refused' else 'raises'} {failed.error or failed.said[:60]}"
            )
    bench = reading.benches[0]
    sizes = bench.sizes(reading.base)
    if not reading.search or (bench.case.heads and sizes["C"] == sizes["D"]):
        said.append(
            f"whether the scale follows the head's width or the input's: both are {sizes['D']} here; try two heads"
        )
    return said
