"""Queries that may see nothing: what this code gives them, whether that reaches anything else, and the line that mends it.

Frameworks differ here (0 in PyTorch's fused kernels and in ONNX, the mean of all values in JAX, NaN in a softmax that is
written down), so the answer alone is never wrong. What it does to other rows is measured: in the same call, in gradients, in
a next layer.
"""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import torch
from torch import Tensor

from clearhead.check.calling import Failed
from clearhead.check.checking import (
    all_meant,
    check,
    far_apart,
    given_to,
    note,
    right,
    rounding,
    run,
    skipped,
    warning,
    wrong,
)
from clearhead.check.choices import INDEX, Formula, changed
from clearhead.check.formula import Bench, Case
from clearhead.check.functions import FunctionSubject, as_case
from clearhead.check.inputs import Sizes
from clearhead.check.mending import Edit, rewritten
from clearhead.check.report import Finding, Line
from clearhead.check.search import SINGLE
from clearhead.check.source import Source, Works, mended
from clearhead.check.state import Reading
from clearhead.check.steps import Array, Refused

HIDDEN = 2  # keys in front that are hidden: what padding on the left does
PADDED = "left padding in a batch makes such queries"
MEND = "a fill of torch.finfo(scores.dtype).min, or .nan_to_num(0.0) behind the softmax, mends it"


def masked_sizes(reading: Reading) -> Sizes:
    """The sizes of a call that is given a mask."""
    subject = reading.subject
    if isinstance(subject, FunctionSubject):
        return subject.limited(reading.ordinary)
    return Sizes(2, 1, 1, subject.length, subject.length, 1, 1)


@check
def empty_rows(reading: Reading) -> Finding:
    """A query that may see nothing: what it gets, and that no NaN of it reaches other rows, in gradients or in a next layer."""
    name, subject = "empty_rows", reading.subject
    if subject.mask_argument is None or subject.mask_shape is None:
        return skipped(name, "it takes no mask, so every query sees something")
    given, mask = given_to(reading), padded(reading)
    out = run(reading, given, mask)
    bench = Bench(_case(reading, given, mask, out))
    blind = _blind(bench, reading.meant())
    if not blind.any():
        return skipped(name, "no mask it takes leaves a query without keys")
    spare = torch.from_numpy(blind)
    if bool(_at(out, ~spare).isnan().any()):
        return wrong(name, "a query that may see nothing makes NaN of other rows too")
    nan = bool(_at(out, spare).isnan().any())
    which = _answer(bench, reading.meant(), blind)
    if nan and (subject.mask_sense or "").startswith("added"):  # the −inf are the caller's
        said = "a query to whose scores the mask adds −inf everywhere gets NaN; masks of a finite number avoid it"
        return note(name, said)
    spread = _gradients(reading, given, mask, spare, nan=nan) or (_next(reading, out, mask, spare) if nan else "")
    who = f"a query that may see nothing gets {'NaN (0/0 in its softmax)' if nan else which}"
    if spread:
        return warning(name, f"{who}, and {spread}; {PADDED}")
    if nan:
        return note(name, f"{who}, which was not seen to reach other rows; {PADDED}")
    if which.startswith("0"):
        return right(name, who)
    harm = "harmless where such rows are dropped, not where they are pooled or count in a loss"
    return note(name, f"{who}, where PyTorch's own gives 0: {harm}; {PADDED}; out.masked_fill(those rows, 0.0) gives 0")


def padded(reading: Reading) -> Tensor:
    """A mask (B, 1, Tq, Tk), True may be seen, under which some queries see nothing.

    The last sequence is padded on the left; where no query is hidden by that, it is nothing but padding.
    """
    sizes = masked_sizes(reading)
    mask = torch.ones(sizes.B, 1, sizes.Tq, sizes.Tk, dtype=torch.bool)
    n = min(HIDDEN, sizes.Tq - 1)
    which = slice(None) if reading.subject.mask_shape == "tt" else slice(-1, None)
    if reading.subject.mask_shape not in ("bt", "b11t"):
        mask[which, :, :n] = False
        mask[which, :, :, :n] = False
    elif reading.meant()[INDEX["sees"]] == "past" and n:
        mask[-1, :, :, :n] = False
    else:
        mask[-1] = False
    return mask


def _case(reading: Reading, given: tuple[Tensor, ...], mask: Tensor, out: Tensor) -> Case:
    subject = reading.subject
    if isinstance(subject, FunctionSubject):
        q, k, v = given
        return as_case("", q, k, v, mask, out, **all_meant(reading, q.shape[1]))
    return subject.case("", len(given[0]), given[0].shape[1], mask=mask)


def _blind(bench: Bench, formula: Formula) -> Array:
    """(B, Tq), True for the queries that may see nothing."""
    q, k, _ = bench.heads(formula)
    seen = bench.visible(formula)
    if seen is None:
        return np.zeros((q.shape[0], q.shape[2]), dtype=bool)
    whole = np.broadcast_to(seen, (q.shape[0], seen.shape[1], q.shape[2], k.shape[2]))
    return np.asarray(~whole.any((1, 3)))


def _at(out: Tensor, rows: Tensor) -> Tensor:
    """The numbers of some rows (B, T) of a result (B, H, T, ·) or (B, T, ·)."""
    return (out.transpose(1, 2) if out.ndim == 4 else out)[rows]


def _answer(bench: Bench, formula: Formula, blind: Array) -> str:
    """What such queries get, in words: which of several things people do gives these numbers."""
    v = bench.heads(formula)[2]
    weights = bench.weights(formula)
    shape = (*weights.shape[:3], v.shape[-1])
    ways = {
        "0": np.zeros(shape),
        "the mean of all values": np.broadcast_to(v.mean(2, keepdims=True), shape),
    }
    plain = changed(formula, mask="ignored")
    bare = bench.visible(plain)
    if bare is not None:
        share = bare / np.maximum(bare.sum(-1, keepdims=True), 1)
        ways["the mean of all earlier values, hidden ones too"] = np.broadcast_to(share, weights.shape) @ v
    ways["what it would get without the mask"] = bench.weights(plain) @ v
    target = bench.case.target
    assert target is not None  # noqa: S101
    for words, y in ways.items():
        try:
            mine = bench.merged(formula, y)
        except Refused:
            continue
        if (
            mine.shape == target.shape
            and far_apart(*(_at(torch.from_numpy(np.array(t)), torch.from_numpy(blind)) for t in (mine, target)))
            < SINGLE
        ):
            if words == "0" and bench.case.project is not None and bool(bench.case.project[1].any()):
                return "0 from every head, and the output layer's bias"
            return words
    return "an average of values it may not see"


def _gradients(reading: Reading, given: tuple[Tensor, ...], mask: Tensor, blind: Tensor, *, nan: bool) -> str:
    """What is NaN in the gradients of a loss that looks at numbers alone, in words; "" when nothing is."""
    subject = reading.subject
    if subject.framework != "torch":
        return ""
    with torch.enable_grad():
        leaves = [t.to(subject.dtype).requires_grad_() for t in given]
        names = ["query", "key", "value"][: len(leaves)] if len(leaves) > 1 else ["x"]
        if not isinstance(subject, FunctionSubject):
            weights = {n: p for n, p in subject.root.named_parameters() if p.requires_grad}
            leaves, names = [*leaves, *weights.values()], [*names, *weights]
        made = run(reading, tuple(leaves[: len(given)]), mask)
        if not made.requires_grad:
            return ""
        loss = _at(made, ~blind if nan else torch.ones_like(blind)).sum()
        got = torch.autograd.grad(loss, leaves, allow_unused=True)
    found = [n for n, g in zip(names, got, strict=True) if g is not None and bool(g.isnan().any())]
    if not found:
        return ""
    listed = ", ".join(found[:4]) + (" …" if len(found) > 4 else "")
    which = "the other rows alone" if nan else "the numbers that come out"
    verb = "s of" if len(found) > 1 else " of"
    return f"a loss of {which} has NaN in the gradient{verb} {listed}"


def _next(reading: Reading, out: Tensor, mask: Tensor, blind: Tensor) -> str:
    """Whether a second layer over the result makes NaN of rows that see something, in words; "" when not, or when none fits."""
    count = 3 if isinstance(reading.subject, FunctionSubject) else 1
    try:
        again = run(reading, (out,) * count, mask)
    except Failed:
        return ""
    return (
        "a second layer makes NaN of the other rows too (0 · NaN is NaN)"
        if bool(_at(again, ~blind).isnan().any())
        else ""
    )


def with_remedy(reading: Reading, finding: Finding, sources: list[Source]) -> Finding:
    """The finding with the line that mends it and how it could read, where one was found that works; else how in words."""
    if finding.outcome not in ("warning", "note") or "NaN" not in finding.said or "adds −inf" in finding.said:
        return finding
    works = _sound(reading)
    for source in sources:
        for pattern in (r"softmax\(", r"-inf|\binf\b"):
            for number, text in enumerate(source.lines):
                if re.search(pattern, text.split("#")[0]):
                    line = Line(source.file, source.first + number, text.strip())
                    change = mended([source], line, "empty:nan", works)
                    if change:
                        return dataclasses.replace(finding, line=line, change=change)
    return dataclasses.replace(finding, said=f"{finding.said}; {MEND}")


def _sound(reading: Reading) -> Works:
    """Whether with a line put differently nothing is NaN, and all else is as it was."""

    def works(*edits: Edit) -> bool:
        try:
            given, mask = given_to(reading), padded(reading)
            with torch.no_grad():
                before = run(reading, given)
                with rewritten(*edits):
                    out = run(reading, given, mask)
                    if not bool(out.isfinite().all()) or far_apart(run(reading, given), before) > rounding(reading):
                        return False
                    blind = torch.from_numpy(_blind(Bench(_case(reading, given, mask, out)), reading.meant()))
                    fine = all(
                        b.case.again is not None and Bench(b.case.again()).error(reading.meant()) <= SINGLE
                        for b in reading.benches
                        if b.case.name == "mask"
                    )
                    return fine and not _gradients(reading, given, mask, blind, nan=False)
        except (Failed, Refused, SyntaxError, LookupError, ValueError):
            return False

    return works
