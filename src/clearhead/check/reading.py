"""Reading a candidate: what it is, how it is called, and which formula it computes on a handful of cases."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clearhead.check.calling import Failed, Habits, Watcher
from clearhead.check.cases import function_cases, long_case, module_cases
from clearhead.check.functions import LAYOUTS, FunctionSubject
from clearhead.check.inputs import Sizes, arrays_of, inputs
from clearhead.check.masking import MASK_SENSES
from clearhead.check.modules import LENGTHS, ModuleSubject
from clearhead.check.settling import (
    full_size,
    settle_causal,
    settle_heads,
    settle_length,
    settle_mask,
    settle_repeats,
    settle_rotary,
)
from clearhead.check.state import FEW, FUNCTION_SIZES, Reading, diagnose, settled
from clearhead.check.subjects import CannotRun, Options, Subject, framework_hint, subject_of, trouble_of

Progress = Callable[[str], None]


def read(candidate: Any, name: str, options: Options, progress: Progress, habits: Habits, watcher: Watcher) -> Reading:
    """Find out what the candidate is and what it computes. Raises `CannotRun`."""
    subject = subject_of(candidate, name, options, habits, watcher)
    subject.seconds = options.seconds
    progress(f"calling {subject.name}")
    if isinstance(subject, FunctionSubject):
        return _read_function(subject, options, progress)
    return _read_module(subject, options, progress)


def _read_function(subject: FunctionSubject, options: Options, progress: Progress) -> Reading:
    ordinary = _first_call(subject, options)
    reading = Reading(subject, options, [], [], ordinary=ordinary)
    settle_length(reading, ordinary)
    settle_repeats(reading)
    if subject.mask_argument is not None:
        progress("finding out how it wants its mask")
        settle_mask(reading)
    settle_causal(reading)
    progress("running it on cases")
    function_cases(reading)
    ordinary_only = not settled(reading) and any(
        not b.case.loud and b.case.name not in reading.explained for b in reading.benches
    )
    if subject.layout == "bhtd" and options.layout is None and ordinary_only:
        other = FunctionSubject(**{**vars(subject), "layout": "bthd"})
        second = Reading(other, options, [], [], ordinary=ordinary, causal_because=reading.causal_because)
        second.random = reading.random
        try:
            if other.mask_argument is not None:
                settle_mask(second)
            function_cases(second)
        except (Failed, CannotRun):
            second.benches = []
        if second.benches and settled(second):
            return second
        progress("looking for the formula that explains it")
        diagnose(reading)
        if not reading.right and not reading.matches and second.benches:
            diagnose(second, tries=6000)
            if second.matches and len(second.matches[0].cases) == len(second.benches):
                return second
        return reading
    progress("looking for the formula that explains it")
    diagnose(reading, tries=FEW if reading.right and long_case(reading) else None)
    return reading


def _first_call(subject: FunctionSubject, options: Options) -> Sizes:
    """Find a framework, layout, dtype and sizes that run. Raises `CannotRun`."""
    layouts = [options.layout] if options.layout else ["bhtd", "btd", "td"]
    if subject.heads_argument is not None and not options.layout:
        layouts = ["btc", *layouts]
    errors: list[tuple[str, Failed]] = []
    hinted = framework_hint(subject.function)
    subject.device = options.device or "cpu"
    for sizes in FUNCTION_SIZES:
        for framework in hinted:
            for layout in layouts:
                for dtype in (torch.float64, torch.float32):
                    subject.framework, subject.layout, subject.dtype = framework, layout, dtype
                    small = subject.limited(sizes)
                    try:
                        out = _with_any_mask(subject, functools.partial(subject.run, *inputs(small, options.seed)))
                    except Failed as failed:
                        errors.append((f"{framework} {LAYOUTS[layout]} {small}", failed))
                        if failed.why in ("took too long", "exited", "too much memory"):
                            raise CannotRun(trouble_of(subject, errors)) from None
                        continue
                    subject.device = options.device or "cpu"
                    if sizes.Tq > 32 and out.numel() == 0:
                        continue
                    return small if layout in ("btd", "td", "tbd") else sizes
        if errors and all(
            f.error in ("TypeError", "NameError", "ImportError", "ModuleNotFoundError") for _, f in errors
        ):
            break
    if options.device is None and torch.cuda.is_available():
        return _first_call(subject, Options(**{**vars(options), "device": "cuda"}))
    raise CannotRun(trouble_of(subject, errors))


def _with_any_mask(subject: Subject, run: Callable[[], Tensor]) -> Tensor:
    """A first call; where a mask must be given and None will not do, with the first form of one that hides nothing and runs."""
    try:
        return run()
    except Failed as failed:
        if not subject.mask_required or failed.why not in ("refused", "broke"):
            raise
        for form in itertools.product(("b1tt", "tt", "btt", "bt"), MASK_SENSES[:3]):
            subject.mask_shape, subject.mask_sense = form
            try:
                return run()
            except Failed:
                continue
        subject.mask_shape = subject.mask_sense = None
        raise


def _read_module(subject: ModuleSubject, options: Options, progress: Progress) -> Reading:
    if options.layout:
        subject.layout = options.layout
    reading = Reading(subject, options, [], [])
    _first_module_call(reading)
    settle_repeats(reading)
    settle_causal(reading)
    settle_rotary(reading)
    if subject.mask_argument is not None:
        progress("finding out how it wants its mask")
        settle_mask(reading)
    progress("running it on cases")
    module_cases(reading)
    settle_heads(reading)
    progress("looking for the formula that explains it")
    if settled(reading):
        from clearhead.check.decoding import chunk_benches

        reading.benches += chunk_benches(reading)
    diagnose(reading)
    if not (reading.right or reading.matches or reading.random) and subject.found.others:
        raise CannotRun(
            f"{subject.signature} holds more than attention ({', '.join(subject.found.others[:4])}), and what it gives is no "
            "attention as it comes; put its attention into a module or function of its own, and name that"
        )
    return reading


def _first_module_call(reading: Reading) -> None:
    """Find a layout, dtype and length that run. Raises `CannotRun`."""
    subject, options = reading.subject, reading.options
    assert isinstance(subject, ModuleSubject)  # noqa: S101
    lengths = [n for n in LENGTHS if subject.found.block is None or n <= subject.found.block]
    if subject.found.block:
        lengths += [n for n in (subject.found.block,) if n not in lengths]
    layouts = [subject.layout] if options.layout else ["tbc"] * (subject.layout == "tbc") + ["btc", "tc"]
    errors: list[tuple[str, Failed]] = []
    frozen = not isinstance(subject.root, nn.Module) or subject.forward != subject.root.forward
    dtypes = [subject.dtype] if frozen else [torch.float64, torch.float32]
    # Weights that are arguments can be arrays of any kind; layers are PyTorch's.
    given = any(isinstance(value, Tensor) for value in subject.fixed.values())
    frameworks = framework_hint(subject.forward) if given else [subject.framework]
    for framework, layout in itertools.product(frameworks, layouts):
        before = len(errors)
        for length in lengths:
            for dtype in dtypes:
                subject.layout, subject.length, subject.dtype, subject.framework = layout, length, dtype, framework
                if not frozen:
                    subject.root.to(dtype)
                x = subject.inputs(2, length, options.seed)
                try:
                    _with_any_mask(subject, functools.partial(subject.run, x))
                except Failed as failed:
                    shown = f"{arrays_of(framework)} {tuple(subject.to_layout(x).shape)}"
                    errors.append((shown, failed))
                    if failed.why in ("took too long", "exited", "too much memory"):
                        raise CannotRun(trouble_of(subject, errors)) from None
                    continue
                if length != lengths[0]:
                    first = errors[before][1]
                    if full_size(first, length) and subject.found.block:
                        reading.uncropped = (lengths[0], length)
                    reading.refusals.append((f"T={lengths[0]}", f"T={lengths[0]}", first))
                return
    raise CannotRun(trouble_of(subject, errors))
