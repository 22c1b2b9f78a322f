"""Settling by calls what names do not say: the mask's form, what is random, whether it is meant to be causal, its heads."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from clearhead.check.calling import Failed
from clearhead.check.formula import Bench, Case
from clearhead.check.functions import FunctionSubject
from clearhead.check.inputs import Sizes, inputs
from clearhead.check.masking import MASK_SENSES, MASK_SHAPES, some_mask
from clearhead.check.modules import ModuleSubject, query_width
from clearhead.check.source import source_of
from clearhead.check.state import FUNCTION_SIZES, Reading, meant_options, search_for
from clearhead.check.subjects import CannotRun, Subject

MAKES_TRIANGLES = {"tril", "tril_", "triu", "triu_", "tril_indices", "triu_indices"}
KEEPS = "two equal calls give different results: it keeps something from one call to the next"


def settle_length(reading: Reading, ordinary: Sizes) -> None:
    """If only longer inputs than the first ones run, note what failed."""
    subject = reading.subject
    if ordinary.Tq == FUNCTION_SIZES[0].Tq or not isinstance(subject, FunctionSubject):
        return
    try:
        smaller = Sizes(ordinary.B, ordinary.Hq, ordinary.Hk, 7, 7, ordinary.D, ordinary.Dv)
        subject.run(*inputs(smaller, 0))
    except Failed as failed:
        if full_size(failed, ordinary.Tq):
            reading.uncropped = (7, ordinary.Tq)
        reading.refusals.append(("T=7", str(smaller), failed))


def full_size(failed: Failed, only: int) -> bool:
    """Whether a call broke because something of the one length that works met something of another: a mask not cut."""
    met = re.search(r"must match|broadcast", failed.said) is not None
    return failed.why == "broke" and met and re.search(rf"\b{only}\b", failed.said) is not None


def settle_repeats(reading: Reading) -> None:
    """If two equal calls differ, find out whether dropout is why, and switch it off for all that follows."""
    subject = reading.subject

    def twice(*, draw: bool = True) -> bool:
        if isinstance(subject, FunctionSubject):
            given = inputs(reading.ordinary, 0)
            one = subject.run(*given)
            _draw(draw)
            two = subject.run(*given)
        else:
            x = subject.inputs(2, subject.length, 0)
            one = subject.run(x)
            _draw(draw)
            two = subject.run(x)
        return bool(torch.equal(one.nan_to_num(), two.nan_to_num()))

    subject.watcher.dropped.clear()
    with torch.no_grad():
        if twice() and not subject.watcher.dropped:
            return
        heard = list(subject.watcher.dropped)
        subject.watcher.silence = True
        same = twice()
    if heard:
        name, p = heard[0]
        reading.random = f"dropout is active (p={p:g}, {name}) though nothing trains here"
        if not same:
            reading.random += ", and something else is random too"
    else:
        with torch.no_grad():
            kept = not twice(draw=False)
        reading.random = (
            KEEPS if kept else "two equal calls give different results: it draws random numbers, and not in dropout"
        )


def _draw(really: bool) -> None:
    """Move every generator on: a call leaves them as they were, so that the next would draw the same numbers."""
    if not really:
        return
    torch.rand(1)
    np.random.random()
    random.random()  # noqa: S311


def settle_mask(reading: Reading) -> None:
    """Find the shape and sense of mask with which a right formula explains it; else those with which it runs."""
    subject = reading.subject
    role = next((p.role for p in subject.parameters or [] if p.name == subject.mask_argument), "mask")
    shapes = ["bt", "b11t"] if role == "padding" else list(MASK_SHAPES)
    senses = list(MASK_SENSES)
    runs: list[tuple[str, str]] = []
    for shape in shapes:
        for sense in senses:
            subject.mask_shape, subject.mask_sense = shape, sense
            try:
                with torch.no_grad():
                    case = masked_case(reading)
            except Failed:
                continue
            runs.append((shape, sense))
            bench = Bench(case)
            search = search_for(reading, [bench])
            _, cases = search.best_convention()
            if cases:
                return
        if len(runs) >= 5:
            break
    if not runs:
        subject.mask_shape = subject.mask_sense = None
        if subject.mask_required:
            raise CannotRun(
                f"{subject.signature}: {subject.mask_argument} must be given, and no usual mask works (bool, 0 and 1 or "
                f"added; (Tq, Tk), (B, Tq, Tk), (B, 1, Tq, Tk) or (B, Tk)); give it a default: {subject.mask_argument}=None"
            )
        return
    subject.mask_shape, subject.mask_sense = _likeliest_mask(reading, runs)


def _likeliest_mask(reading: Reading, runs: list[tuple[str, str]]) -> tuple[str, str]:
    """Of the forms of mask that run, the one under which the fewest mistakes explain the result."""
    subject = reading.subject
    best, fewest = runs[0], 99
    for form in runs[:5]:
        subject.mask_shape, subject.mask_sense = form
        with torch.no_grad():
            bench = Bench(masked_case(reading))
        search = search_for(reading, [bench], tries=4000)
        base, cases = search.best_convention()
        found = search.diagnose(base, cases)
        if found and len(found[0].mistakes) < fewest:
            best, fewest = form, len(found[0].mistakes)
            if fewest == 1 and found[0].mistakes[0] != ("mask", "ignored"):
                break
    return best


def masked_case(reading: Reading, seed: int = 0) -> Case:
    """The case with a mask given. Raises `Failed`."""
    subject = reading.subject
    if isinstance(subject, FunctionSubject):
        return subject.case("mask", reading.ordinary, seed=seed, mask=True, order=20, **meant_options(reading))
    batch = 1 if subject.layout == "tc" else 2
    sizes = Sizes(batch, 1, 1, subject.length, subject.length, 1, 1)
    mask = some_mask(sizes, seed, subject.mask_shape)
    return subject.case("mask", batch, subject.length, seed=seed, mask=mask, order=20, **meant_options(reading))


def settle_causal(reading: Reading) -> None:
    """What says that it is meant to be causal, if anything does."""
    subject, options = reading.subject, reading.options
    flag = subject.parameter("causal")
    if flag is not None and options.causal is not False and not isinstance(flag.default, Tensor):
        before = subject.fixed.get(flag.name, flag.default)
        subject.fixed[flag.name] = True
        try:
            _plain_call(reading)
            reading.causal_because = f"{flag.name}=True is passed"
        except Failed:  # some want a mask with it
            subject.fixed[flag.name] = before
    window = subject.parameter("window")
    if window is not None and options.window is not None:
        subject.fixed[window.name] = options.window
    for role, value in (("scale", options.scale), ("softcap", options.softcap)):
        parameter = subject.parameter(role)
        if parameter is not None and value is not None:
            subject.fixed[parameter.name] = value
    if options.causal is not None or reading.causal_because:
        if options.causal not in (None, False):
            reading.causal_because = "you said so"
        return
    if re.search(r"causal", subject.name, re.IGNORECASE):
        reading.causal_because = "its name says so"
    elif isinstance(subject, ModuleSubject) and subject.found.block:
        reading.causal_because = f"it holds a triangular {subject.found.tril!r}"
    elif (
        isinstance(subject, ModuleSubject)
        and subject.mask_argument is None  # else it may count on being given the triangle
        and any(getattr(subject.root, name, None) is True for name in ("causal", "is_causal"))
    ):
        reading.causal_because = "its attribute causal is True"
    else:
        with _triangles(subject):
            try:
                _plain_call(reading)
            except Failed:
                return
        made = MAKES_TRIANGLES & subject.watcher.called
        if made:
            reading.causal_because = f"it makes a triangle ({sorted(made)[0].rstrip('_')})"


class _Tables(TorchFunctionMode):
    """Hears whether a call uses one of some tensors, or a piece of one."""

    def __init__(self, tables: list[Tensor]) -> None:
        self.places = {t.untyped_storage().data_ptr() for t in tables}
        self.used = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for each in args:
            if isinstance(each, Tensor) and not self.used:
                self.used = each.untyped_storage().data_ptr() in self.places
        return func(*args, **(kwargs or {}))


def settle_rotary(reading: Reading) -> None:
    """Whether it means to turn query and key: its code speaks of that, and a call makes cosines or takes them from a table."""
    subject = reading.subject
    if not isinstance(subject, ModuleSubject):
        return
    named = [*subject.root.named_buffers(), *((n, v) for m in subject.root.modules() for n, v in vars(m).items())]
    tables = [
        t
        for n, t in named
        if isinstance(t, Tensor) and re.search(r"cos|sin|freq|rope|rotary|angle", n.rpartition(".")[2])
    ]
    heard = _Tables(tables)
    try:
        with heard:
            _plain_call(reading)
    except Failed:
        return
    if heard.used or {"cos", "sin", "polar"} & subject.watcher.called:
        code = "\n".join(line.split("#")[0] for source in source_of(subject.root) for line in source.lines)
        reading.rotary = re.search(r"rope|rotary|rotat|rot_", code, re.IGNORECASE) is not None


def _plain_call(reading: Reading) -> None:
    subject = reading.subject
    subject.watcher.called.clear()
    with torch.no_grad():
        if isinstance(subject, FunctionSubject):
            subject.run(*inputs(reading.ordinary, 0))
        else:
            subject.run(subject.inputs(2, subject.length, 0))


@contextmanager
def _triangles(subject: Subject) -> Iterator[None]:
    """Inside, NumPy's triangles are heard too."""
    names = ("tril", "triu", "tri")
    before = {name: getattr(np, name) for name in names}

    def heard(name: str) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            subject.watcher.called.add("triu" if name == "triu" else "tril")
            return before[name](*args, **kwargs)

        return function

    if subject.framework != "numpy":
        yield
        return
    try:
        for name in names:
            setattr(np, name, heard(name))
        yield
    finally:
        for name in names:
            setattr(np, name, before[name])


def settle_heads(reading: Reading) -> None:
    """A module that does not say how many heads it has: try the divisors of its width, fewest first."""
    subject = reading.subject
    assert isinstance(subject, ModuleSubject)  # noqa: S101
    q = query_width(subject.found)
    if subject.found.heads is not None or not q:
        return
    for heads in [n for n in range(1, q + 1) if q % n == 0 and n <= 64]:
        benches = [Bench(_with_heads(bench.case, heads)) for bench in reading.benches]
        _, cases = search_for(reading, benches).best_convention()
        if len(cases) == len(benches):
            reading.benches = benches
            subject.heads = subject.kv_heads = heads
            return


def _with_heads(case: Case, heads: int) -> Case:
    return Case(**{**vars(case), "heads": heads, "kv_heads": heads})
