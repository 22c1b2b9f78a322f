"""What a reader can look at: a picture of right, yours and difference; the first wrong weight; the smallest failing input."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from clearhead.check.calling import Failed
from clearhead.check.choices import Formula
from clearhead.check.formula import Bench
from clearhead.check.functions import FunctionSubject
from clearhead.check.inputs import Sizes, inputs
from clearhead.check.judging import case_of
from clearhead.check.report import Picture
from clearhead.check.search import SINGLE, tolerance_of
from clearhead.check.state import Reading
from clearhead.check.steps import Array, Refused

SHOWN = 8  # rows and columns of a picture


def evidence(reading: Reading) -> tuple[Picture | None, str]:
    """The picture, and a sentence on the first wrong weight (or row) if something is wrong."""
    meant = reading.meant()
    bench = _telling(reading, meant)
    if bench is None:
        return None, ""
    if reading.matches:
        here = reading.matches[0]
        bench = next((b for b in [bench, *reading.benches] if b.case.name in here.cases and _differs(b, meant)), bench)
        weights = _weights_of(bench, here.formula, meant)
        if weights is not None:
            right, yours = weights
            where = _first(right, yours)
            if where is not None:
                return _picture(f"weights on {bench.case.name!r}", right, yours, where), _said(
                    right, yours, where, bench
                )
    else:
        read_out = weights_read(reading)
        if read_out is not None:
            right, yours, name = read_out
            where = _first(right, yours)
            if where is not None:
                return _picture(f"weights on {name}", right, yours, where), _said(right, yours, where, bench)
    return _result_picture(bench, meant)


def _telling(reading: Reading, meant: Formula) -> Bench | None:
    """The plainest case that differs."""
    return next((b for b in reading.plainest_first if _differs(b, meant)), None)


def _differs(bench: Bench, meant: Formula) -> bool:
    return bench.error(meant) > tolerance_of(bench)


def _weights_of(bench: Bench, formula: Formula, meant: Formula) -> tuple[Array, Array] | None:
    try:
        right, yours, out = bench.weights(meant), bench.weights(formula), bench.out(meant)
    except Refused:
        return None
    if right.shape != yours.shape:
        return None
    target = bench.case.target
    if target is not None and target.shape == out.shape and target.ndim == yours.ndim:
        fine = np.abs(np.nan_to_num(target, nan=1e30) - out).max(-1) <= SINGLE
        own = np.isnan(yours).all(-1) & fine  # a row that sees nothing by the formula, and that the candidate has right
        yours = np.where(own[..., None], right, yours)
    return right, yours


def _first(right: Array, yours: Array) -> tuple[int, int, int, int] | None:
    gap = np.abs(np.nan_to_num(yours, nan=1e9, posinf=1e9, neginf=-1e9) - np.nan_to_num(right))
    wrong = np.argwhere(gap > 1e-6)
    return None if not len(wrong) else tuple(int(n) for n in wrong[0])  # type: ignore[return-value]


def _said(right: Array, yours: Array, where: tuple[int, int, int, int], bench: Bench) -> str:
    b, h, i, j = where
    return (
        f"first wrong weight: batch {b}, head {h}, query {i}, key {j}: {yours[where]:.4f}, where {right[where]:.4f} is right"
        f" ({bench.case.name!r})"
    )


def _picture(what: str, right: Array, yours: Array, where: tuple[int, int, int, int]) -> Picture:
    b, h = where[:2]
    return Picture(f"{what}, sequence {b}, head {h}: queries down, keys across", _rows(right[b, h]), _rows(yours[b, h]))


def _rows(matrix: Array) -> list[list[float | None]]:
    return [[round(float(x), 6) if math.isfinite(x) else None for x in row[:SHOWN]] for row in matrix[:SHOWN]]


def _result_picture(bench: Bench, meant: Formula) -> tuple[Picture | None, str]:
    """The result itself, where there are no weights to show."""
    target = bench.case.target
    try:
        right = bench.out(meant)
    except Refused:
        return None, ""
    if target is None or right.shape != target.shape:
        return None, ""
    gap = np.abs(np.nan_to_num(target, nan=1e30) - np.nan_to_num(right))
    at = tuple(int(n) for n in np.argwhere(gap > SINGLE * max(1e-30, float(np.abs(np.nan_to_num(right)).max())))[0])
    letters = ("batch", "head", "query", "dimension") if target.ndim == 4 else ("batch", "query", "dimension")
    named = ", ".join(f"{letter} {n}" for letter, n in zip(letters, at, strict=True))
    said = f"first wrong number: {named}: {target[at]:.4f}, where {right[at]:.4f} is right ({bench.case.name!r})"
    index = at[:-2]
    return Picture(
        f"result on {bench.case.name!r}, {named.rsplit(', ', 2)[0]}: tokens down, dimensions across",
        _rows(right[index]),
        _rows(target[index]),
    ), said


def weights_read(reading: Reading) -> tuple[Array, Array, str] | None:
    """The weights a function uses, read off by giving it unit vectors as values; None where that cannot be done."""
    subject = reading.subject
    if not isinstance(subject, FunctionSubject):
        return None
    o = reading.ordinary
    t = min(o.D, o.Tq, 6)
    sizes = subject.limited(Sizes(o.B, o.Hq, o.Hq, t, t, o.D, o.Dv))
    q, k, v = inputs(sizes, 0)
    v = torch.eye(t, sizes.Dv, dtype=v.dtype).expand(sizes.B, sizes.Hk, t, sizes.Dv).contiguous()
    try:
        with torch.no_grad():
            case = subject.case("unit values", sizes)
            case.sources["v"], case.target = v.numpy(), subject.run(q, k, v).double().numpy()
    except Failed:
        return None
    if case.target is None:
        return None
    bench = Bench(case)
    return bench.weights(reading.meant()), case.target[..., :t], f"B={sizes.B}, H={sizes.Hq}, T={t}, D={sizes.D}"


def smallest_failing(reading: Reading) -> str:
    """The smallest input, by its sizes, on which the candidate is wrong; "" when none of the small ones is."""
    meant, subject = reading.meant(), reading.subject
    for sizes in _small(reading):
        try:
            with torch.no_grad():
                if isinstance(subject, FunctionSubject):
                    case = subject.case("", sizes, seed=1)
                else:
                    case = case_of(reading, "", batch=sizes.B, tq=sizes.Tq, seed=1)
        except Failed:
            continue
        error = Bench(case).error(meant)
        if error > SINGLE:
            if isinstance(subject, FunctionSubject):
                return f"B={sizes.B}, H={sizes.Hq}, T={sizes.Tq}, D={sizes.D} (seed 1)"
            return f"B={sizes.B}, T={sizes.Tq} (seed 1)"
    return ""


def _small(reading: Reading) -> Iterator[Sizes]:
    subject = reading.subject
    if not isinstance(subject, FunctionSubject):
        for b, t in ((1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (2, 3), (1, 4), (2, 4)):
            if t <= subject.length and (reading.uncropped is None):
                yield Sizes(B=b, Tq=t, Tk=t)
        return
    seen = set()
    grid = sorted(
        ((b, h, t, d) for b in (1, 2) for h in (1, 2) for t in (1, 2, 3, 4) for d in (1, 2, 3)),
        key=lambda s: (s[0] * s[1] * s[2] * s[3], s),
    )
    for b, h, t, d in grid:
        sizes = subject.limited(Sizes(b, h, h, t, t, d, d))
        if sizes not in seen:
            seen.add(sizes)
            yield sizes
