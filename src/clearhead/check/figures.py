"""Checks of numbers: results, gradients, large scores, 16 bits, lengths, and the weights that are returned."""

from __future__ import annotations

import re
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.check.calling import Failed, as_tensor
from clearhead.check.checking import (
    all_meant,
    check,
    far_apart,
    given_to,
    keeping,
    note,
    right,
    rounding,
    skipped,
    wrong,
)
from clearhead.check.choices import Formula
from clearhead.check.formula import Bench
from clearhead.check.functions import FunctionSubject, as_case
from clearhead.check.judging import case_of, in_dtype, judged
from clearhead.check.layers import listening
from clearhead.check.modules import result_place
from clearhead.check.report import Finding
from clearhead.check.search import EXACT, SINGLE
from clearhead.check.source import in_tiles
from clearhead.check.state import Reading
from clearhead.errors import dtype_name
from clearhead.reference import attention

ORDINARY = ("square", "other sizes", "Tq < Tk", "one query", "Dv < D", "scale", "softcap", "window", "sinks")


@check
def values(reading: Reading) -> Finding:
    """The result, on several sizes, is that of the formula in float64, within what plain PyTorch loses."""
    name, formula, subject = "values", reading.meant(), reading.subject
    if not isinstance(subject, FunctionSubject) and subject.found.shared > 1:
        return wrong(name, f"its {subject.found.shared} heads are one and the same layer: what one computes, all do")
    for bench in reading.benches:
        if bench.case.name in ORDINARY or "=False" in bench.case.name:
            error = bench.error(formula)
            if error > SINGLE:
                sizes = bench.sizes(formula)
                shown = ", ".join(f"{n}={sizes[n]}" for n in ("B", "H", "Tq", "T", "D"))
                largest = (
                    float(np.abs(np.nan_to_num(bench.case.target)).max()) if bench.case.target is not None else 0.0
                )
                amount = f"error {error * largest:.2g} on numbers up to {largest:.2g}"
                if error == float("inf"):
                    nan = bench.case.target is not None and not np.isfinite(bench.case.target).all()
                    amount = "NaN or infinity in it" if nan else "another shape"
                return wrong(name, f"differs on {bench.case.name!r} ({shown}): {amount}", error=error)
    try:
        with in_dtype(reading, torch.float32):
            case = case_of(reading)
    except Failed as failed:
        return wrong(name, f"float32 inputs: {failed.said}")
    found = judged(case, formula, torch.float32, what="output")
    numbers = {"error": found.error, "allowed": found.allowed}
    if not found.ok and found.error > 10 * found.allowed:
        return wrong(name, str(found), **numbers)
    return right(name, f"float32 error {found.error:.1e}, plain PyTorch loses {found.baseline_error:.1e}", **numbers)


@check
def gradients(reading: Reading) -> Finding:
    """The gradients of query, key and value (or of x) are those of the formula."""
    name, subject = "gradients", reading.subject
    if subject.framework != "torch":
        return skipped(name, f"{subject.framework} results carry no gradients")
    if not reading.right:
        return skipped(name, "only where all values are right")
    formula = reading.meant()
    if not isinstance(subject, FunctionSubject):
        return _module_gradients(reading)
    with torch.enable_grad():
        leaves = tuple(t.to(subject.dtype).requires_grad_() for t in given_to(reading))
        out = subject.run(*leaves)
        if not out.requires_grad:
            return note(name, "the result carries no gradient: it cannot be trained through")
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).cos()
        got = torch.autograd.grad((out * weight).sum(), leaves, allow_unused=True)
    wanted = _true_gradients(leaves, weight, formula, reading)
    for letter, g, w in zip(("query", "key", "value"), got, wanted, strict=True):
        if g is None:
            return wrong(name, f"no gradient reaches the {letter} (is something detached?)")
        far = far_apart(g, w)
        if far > 1e3 * rounding(reading):
            size = "it is zero" if not bool(g.any()) else f"off by {far:.2g} of the largest"
            return wrong(name, f"the gradient of the {letter} is wrong: {size}", error=far)
    return right(name, "of query, key and value")


def _true_gradients(
    leaves: tuple[Tensor, ...], weight: Tensor, formula: Formula, reading: Reading
) -> tuple[Tensor, ...]:
    """Gradients of the right formula, from `reference`."""

    q, k, v = (t.detach().double().requires_grad_() for t in leaves)
    meant = all_meant(reading, q.shape[1])
    bench = Bench(as_case("", q, k, v, None, weight, **meant))
    seen = bench.visible(formula)
    shape = (1, 1, q.shape[2], k.shape[2])
    visible = torch.ones(shape, dtype=torch.bool) if seen is None else torch.from_numpy(np.array(seen))
    sinks = None if meant.get("sinks") is None else torch.from_numpy(meant["sinks"])
    with torch.enable_grad():
        out = attention(
            q,
            k,
            v,
            visible=visible.expand(1, 1, -1, -1),
            scale=bench.scale(formula),
            softcap=meant["softcap"],
            sinks=sinks,
        )
        return torch.autograd.grad((out * weight.double()).sum(), (q, k, v))


def _module_gradients(reading: Reading) -> Finding:
    """A module's gradient in one direction against the change of its own (checked) values in that direction."""
    name, subject = "gradients", reading.subject
    assert not isinstance(subject, FunctionSubject)  # noqa: S101
    if subject.dtype != torch.float64:
        return skipped(name, "needs float64, which it does not take")
    x = subject.inputs(2, subject.length, 0)
    with torch.enable_grad():
        leaf = x.clone().requires_grad_()
        parameters = [p for p in subject.root.parameters() if p.requires_grad]
        out = subject.run(leaf)
        if not out.requires_grad:
            return note(name, "the result carries no gradient: it cannot be trained through")
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).cos()
        got = torch.autograd.grad((out * weight).sum(), (leaf, *parameters), allow_unused=True)
    fine = all(b.case.loud or b.error(reading.base) <= EXACT for b in reading.benches)
    step, allowed = (1e-5, 1e-4) if fine else (1e-3, 3e-3)  # with float32 inside, small steps drown in its rounding
    made = torch.Generator().manual_seed(5)
    tensors = [("x", None, got[0]), *(("a weight", p, g) for p, g in zip(parameters, got[1:], strict=True))]
    for what, p, g in tensors:
        like = x if p is None else p
        along = torch.randn(like.shape, generator=made, dtype=torch.float32).to(like.dtype)
        ends = []
        for sign in (1, -1):
            if p is None:
                ends.append(subject.run(x + sign * step * along))
            else:
                before = p.detach().clone()
                p.add_(sign * step * along)
                ends.append(subject.run(x))
                p.copy_(before)
        slope = float(((ends[0] - ends[1]) * weight).sum() / (2 * step))
        mine = 0.0 if g is None else float((g * along).sum())
        if abs(slope - mine) > allowed * max(1.0, abs(slope)):
            return wrong(
                name,
                f"the gradient of {what} is {mine:.4g} where the result changes by {slope:.4g} (is something detached?)",
            )
    return right(name, "of x and of every weight")


@check
def extreme_scores(reading: Reading) -> Finding:
    """Scores in the hundreds, ten thousands and hundred thousands: no overflow, and what is hidden stays hidden."""
    name, formula = "extreme_scores", reading.meant()
    found = [b for b in reading.benches if b.case.loud]
    if not found:
        return skipped(name, "it could not be run on them")
    for bench in found:
        target = bench.case.target
        error = bench.error(formula)
        if error > 0.05:
            nan = target is not None and not np.isfinite(target).all()
            why = "NaN or infinity comes out" if nan else f"the result is off by {error:.2g} of the largest number"
            return wrong(name, f"{bench.case.name}: {why}", error=error)
    return right(name, f"up to {found[-1].case.name.split()[-1]}")


@check
def half_precision(reading: Reading) -> Finding:
    """bfloat16 and float16 in: no further from float64 than the formula, step by step in that dtype, is."""
    name, subject = "half_precision", reading.subject
    if subject.framework != "torch":
        return skipped(name, f"{subject.framework} has no such dtypes here")
    if not reading.right:
        return skipped(name, "only where all values are right")
    formula, said, numbers, outcome = reading.base, [], {}, "right"
    for dtype in (torch.bfloat16, torch.float16):
        short = dtype_name(dtype)
        try:
            with in_dtype(reading, dtype):
                case = case_of(reading)
        except Failed as failed:
            said.append(f"{short}: does not run ({shorten(failed.said, 160, placeholder=' …')})")
            outcome = "note" if outcome == "right" else outcome
            continue
        found = judged(case, formula, dtype, what=short, plain=True)
        numbers[short] = found.error
        if not np.isfinite(found.error):
            return wrong(name, f"{short}: NaN or infinity comes out", **numbers)
        if found.error > 8 * found.allowed:
            return wrong(name, str(found), **numbers)
        if not found.ok:
            outcome = "note"
            said.append(f"{short} loses {found.error:.1e}, more than {found.allowed:.1e}")
        else:
            said.append(f"{short} {found.error:.1e} (allowed {found.allowed:.1e})")
    return Finding(name, outcome, "; ".join(said), numbers)  # type: ignore[arg-type]


@check
def lengths(reading: Reading) -> Finding:
    """One token, two, and lengths around powers of two."""
    name, subject, formula = "lengths", reading.subject, reading.meant()
    if reading.uncropped is not None:
        shorter, only = reading.uncropped
        return wrong(name, f"fails at T={shorter}, runs at T={only}: is the mask cut to [:T, :T]?")
    for at, _, failed in reading.refusals:
        if re.fullmatch(r"T=\d+", at) and failed.why == "broke":
            only = reading.ordinary.Tq if isinstance(subject, FunctionSubject) else subject.length
            where = f" (line {failed.line})" if failed.line else ""
            square = only in {b.sizes(formula)["D"] for b in reading.benches[:1]}
            hint = "; T is the width there: is a transpose missing?" if square else ""
            return wrong(name, f"fails at {at}, runs at T={only}: {failed.said}{where}{hint}")
    longest = subject.found.block if not isinstance(subject, FunctionSubject) else None
    refused: list[str] = []
    sound = reading.bench("square")
    if sound is None or sound.error(formula) > SINGLE:
        return skipped(name, "only where all values are right")
    tried = [1, 2, 3, 15, 16, 17, 33]
    if longest is None and in_tiles(subject.function if isinstance(subject, FunctionSubject) else subject.root):
        tried += [129, 257]  # tiles of 128 are not to be all there is
    for t in tried:
        if longest is not None and t > longest:
            continue
        for batch in (2, 1) if t <= 2 else (2,):
            try:
                case = case_of(reading, batch=batch, tq=t, seed=t)
            except Failed as failed:
                if failed.why == "refused" or t > (
                    reading.ordinary.Tq if isinstance(subject, FunctionSubject) else subject.length
                ):
                    refused.append(f"T={t}")
                    continue
                return wrong(name, f"T={t}, B={batch}: {failed.said}")
            bench = Bench(case)
            error = bench.error(formula)
            if error > SINGLE:
                return wrong(name, f"T={t}, B={batch}: off by {error:.2g} of the largest number", error=error)
    return right(
        name,
        "T = "
        + ", ".join(map(str, tried))
        + (f", but not taken: {', '.join(dict.fromkeys(refused))}" if refused else ""),
    )


@check
def weights_returned(reading: Reading) -> Finding:
    """Weights that are returned beside the result are those of the formula."""
    name, subject = "weights_returned", reading.subject
    if not isinstance(subject, FunctionSubject):
        return _module_weights(reading)
    q, k, v = given_to(reading)
    kept: list[Any] = []
    original = subject.function
    subject.function = keeping(original, kept)
    try:
        out = subject.run(q, k, v)
    finally:
        subject.function = original
    found = _weights_in(kept[-1], (q.shape[2], k.shape[2]), subject.place or 0)
    if found is None:
        return skipped(name, "it returns none")
    bench = Bench(as_case("", q, k, v, None, out, **all_meant(reading, q.shape[1])))
    return _compare_weights(name, found, bench, reading)


def _module_weights(reading: Reading) -> Finding:
    name, subject = "weights_returned", reading.subject
    assert not isinstance(subject, FunctionSubject)  # noqa: S101
    x = given_to(reading)[0]
    with listening(subject.found):
        result = subject.raw(x)
        sources = subject.sources(x)
    place = result_place(result, x.shape[1])
    found = _weights_in(result, (x.shape[1], x.shape[1]), place)
    if found is None:
        return skipped(name, "it returns none")
    bench = Bench(subject.as_case("", sources, as_tensor(result[place])))
    return _compare_weights(name, found, bench, reading)


def _weights_in(result: Any, shape: tuple[int, int], place: int) -> Tensor | None:
    """The first of several results that has (…, Tq, Tk), the result itself aside."""
    if not isinstance(result, tuple | list):
        return None
    for other in (*result[:place], *result[place + 1 :]):
        if isinstance(other, Tensor | np.ndarray):
            t = torch.as_tensor(other).detach().double()
            if t.ndim >= 2 and tuple(t.shape[-2:]) == shape:
                return t
    return None


def _compare_weights(name: str, found: Tensor, bench: Bench, reading: Reading) -> Finding:
    wanted = torch.from_numpy(bench.weights(reading.meant()))
    for other in (wanted, wanted.mean(1), wanted[0, 0]):
        if other.numel() == found.numel():
            far = far_apart(found.reshape(other.shape), other)
            if far <= SINGLE:
                return right(name, "the weights it returns are the formula's")
            rows = float(found.sum(-1).sub(1).abs().max())
            why = "; their rows do not sum to 1" if rows > 1e-3 else ""
            return wrong(name, f"the weights it returns are off by {far:.2g}{why}", error=far)
    return note(name, f"what it returns beside the result has shape {tuple(found.shape)}, which was not understood")


@check
def result_kind(reading: Reading) -> Finding:
    """float32 in, float32 out, on the device of the inputs."""
    name, subject = "result_kind", reading.subject
    if subject.framework == "lists":
        return skipped(name, "lists have no dtype")
    kept: list[Any] = []
    if isinstance(subject, FunctionSubject):
        original = subject.function
        subject.function = keeping(original, kept)
        try:
            with in_dtype(reading, torch.float32):
                subject.run(*given_to(reading))
        finally:
            subject.function = original
    else:
        with in_dtype(reading, torch.float32):
            kept.append(subject.raw(given_to(reading)[0]))
    out = as_tensor(kept[-1])
    if subject.framework == "torch" and out.device.type != torch.device(subject.device).type:
        return wrong(name, f"inputs on {subject.device} give a result on {out.device}")
    if out.dtype != torch.float32:
        short = dtype_name(out.dtype)
        return note(name, f"float32 in, {short} out")
    return right(name, "float32 in, float32 out")
