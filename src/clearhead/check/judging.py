"""Whether one result is right: the candidate's error beside what plain PyTorch loses, by the tolerance rule of `testing`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from clearhead.check.choices import Formula
from clearhead.check.formula import Bench, Case
from clearhead.check.functions import FunctionSubject
from clearhead.check.state import Reading, meant_options
from clearhead.testing import Comparison, compare, math_path


def judged(case: Case, formula: Formula, dtype: torch.dtype, *, what: str, plain: bool = False) -> Comparison:
    """A case's target, made in `dtype`, against the formula in float64.

    The baseline is the tolerance rule's math path in that dtype; with `plain`, the worse of it and the same steps written out
    with every one of them rounded to `dtype`, as code that follows the formula in that dtype does.
    """
    bench = Bench(case)
    truth = torch.from_numpy(np.array(bench.out(formula)))
    q, k, v = (torch.from_numpy(np.ascontiguousarray(t)) for t in bench.heads(formula))
    seen = bench.visible(formula)
    visible = None
    if seen is not None:
        visible = torch.from_numpy(np.array(seen)).expand(q.shape[0], q.shape[1], -1, -1)
    scale = bench.scale(formula)
    sinks = None if case.sinks is None else torch.from_numpy(np.array(case.sinks))
    low = [t.to(dtype) for t in (q, k, v)]
    plainly = math_path(*low, visible=visible, scale=scale, softcap=case.softcap, sinks=sinks)
    baseline = _whole(bench, formula, plainly)
    if plain:
        z = (low[0] @ low[1].mT) * scale
        if case.softcap is not None:
            z = case.softcap * torch.tanh(z / case.softcap)
        if visible is not None:
            z = z.masked_fill(~visible, float("-inf"))
        stepwise = _whole(bench, formula, torch.softmax(z, -1) @ low[2])
        worse = (stepwise - truth).abs().nan_to_num() > (baseline - truth).abs().nan_to_num()
        baseline = torch.where(worse, stepwise, baseline)
    # A score is rounded to its own last digit before e is raised to it, and that moves the weights by as much.
    largest = float((q.norm(dim=-1).amax() * k.norm(dim=-1).amax()) * abs(scale))
    magnitude = float(truth.nan_to_num().abs().max()) * (1 + largest)
    target = case.target
    assert target is not None  # noqa: S101
    empty = bench.empty_rows(formula)
    got = torch.from_numpy(np.array(target)).to(dtype)
    if empty is not None:  # what such rows should be is a question of its own
        rows = torch.from_numpy(np.array(empty))
        rows = rows.any(1)[..., None] if case.heads else rows[..., None]
        got, truth, baseline = (t.masked_fill(rows.expand_as(t), 0.0) for t in (got, truth, baseline))
    return compare(got, truth, baseline, magnitude=magnitude, what=what)


def _whole(bench: Bench, formula: Formula, y: torch.Tensor) -> torch.Tensor:
    """The weighted sums of a baseline, merged and projected as the formula does."""
    made = bench.merged(formula, y.double().numpy())
    return torch.from_numpy(np.array(made))


@contextmanager
def in_dtype(reading: Reading, dtype: torch.dtype) -> Iterator[None]:
    """Inside, the candidate is run in another dtype."""
    subject = reading.subject
    before = subject.dtype
    subject.dtype = dtype
    try:
        if not isinstance(subject, FunctionSubject):
            kept = {name: t.detach().clone() for name, t in _floating(subject.root)}
            subject.root.to(dtype)
            fixed = dict(subject.fixed)
            for name, value in fixed.items():
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    subject.fixed[name] = value.to(dtype)
        yield
    finally:
        subject.dtype = before
        if not isinstance(subject, FunctionSubject):
            subject.root.to(before)
            with torch.no_grad():  # 16 bits have rounded them
                for name, t in _floating(subject.root):
                    t.copy_(kept[name])
            subject.fixed.clear()
            subject.fixed.update(fixed)


def _floating(root: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, t in (*root.named_parameters(), *root.named_buffers()):
        if t.is_floating_point():
            yield name, t


def case_of(
    reading: Reading,
    name: str = "square",
    *,
    batch: int = 2,
    tq: int | None = None,
    tk: int | None = None,
    seed: int = 0,
    gain: float = 1.0,
) -> Case:
    """Run the candidate on a batch of given lengths of queries and keys; default its ordinary ones. Raises `Failed`."""
    subject = reading.subject
    meant = meant_options(reading)
    if isinstance(subject, FunctionSubject):
        o = reading.ordinary
        sizes = dataclasses.replace(o, B=batch, Tq=tq or o.Tq, Tk=tk or tq or o.Tk)
        return subject.case(name, sizes, seed=seed, gain=gain, **meant)
    return subject.case(
        name, batch, tq or subject.length, seed=seed, other=tk if subject.takes_three else None, gain=gain, **meant
    )
