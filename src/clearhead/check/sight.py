"""Checks of who sees whom: causality, masks, grouped heads, and text in chunks."""

from __future__ import annotations

from clearhead.check.checking import check, far_apart, given_to, note, poisoned, right, rounding, run, skipped, wrong
from clearhead.check.choices import INDEX, changed
from clearhead.check.decoding import chunked_module
from clearhead.check.emptiness import masked_sizes
from clearhead.check.functions import FunctionSubject
from clearhead.check.masking import some_mask
from clearhead.check.report import Finding
from clearhead.check.search import SINGLE
from clearhead.check.state import Reading


@check
def causality(reading: Reading) -> Finding:
    """Change the future, with large finite numbers: no earlier row may notice."""
    name, formula = "causality", reading.meant()
    if formula[INDEX["sees"]] == "around":
        return skipped(name, "a window to both sides sees the future")
    if formula[INDEX["sees"]] == "all":
        return note(name, "not causal: every query sees every key; if that is not meant, say causal=True")
    given = given_to(reading)
    whole = run(reading, given)
    t = whole.shape[2] if isinstance(reading.subject, FunctionSubject) else whole.shape[1]
    for at in range(1, t):
        changed_ = poisoned(given, at)
        out = run(reading, changed_)
        rows = (out[:, :, :at], whole[:, :, :at]) if out.ndim == 4 else (out[:, :at], whole[:, :at])
        far = far_apart(*rows)
        if far > rounding(reading):
            gap = (rows[0] - rows[1]).abs().nan_to_num(nan=1e30)
            by_row = gap.flatten(2).amax(-1) if gap.ndim == 3 else gap.amax((1, 3))
            first = int((by_row.amax(0) > rounding(reading)).nonzero()[0])
            return wrong(name, f"query {first} changes when key {at} and later ones do: it sees the future", error=far)
    return right(name, "no query notices a change in its future")


@check
def alignment(reading: Reading) -> Finding:
    """With fewer queries than keys, does the causal mask end with the last key, or start with the first?"""
    name, formula = "alignment", reading.meant()
    bench = reading.bench("Tq < Tk")
    if formula[INDEX["sees"]] == "all":
        return skipped(name, "nothing is causal")
    if bench is None:
        return skipped(name, "it takes only as many queries as keys")
    end, start = (bench.error(changed(formula, align=a)) for a in ("end", "start"))
    wanted = reading.options.causal
    if min(end, start) > SINGLE:
        return wrong(name, "with fewer queries than keys it is right in neither alignment", end=end, start=start)
    which = "END" if end <= start else "START"
    if wanted in ("end", "start") and which != str(wanted).upper():
        return wrong(
            name, f"aligned at the {which}, where the {str(wanted).upper()} is asked for", end=end, start=start
        )
    if which == "START":
        return note(
            name,
            "aligned at the START (query 0 sees key 0 only), as PyTorch's is_causal; decoding with a cache needs END",
        )
    return right(name, "aligned at the END: the last query sees the last key")


@check
def masks(reading: Reading) -> Finding:
    """A mask that is given hides what it says, and nothing else."""
    name, subject = "masks", reading.subject
    if subject.mask_argument is None:
        return skipped(name, "it takes no mask")
    bench = reading.bench("mask")
    if bench is None:
        return skipped(name, "no usual form of mask works")
    error = bench.error(reading.meant())
    how = f"{subject.mask_argument}: {subject.mask_sense}"
    if error > SINGLE:
        return wrong(name, f"with a mask given ({how}) it is off by {error:.2g} of the largest number", error=error)
    return right(name, how)


@check
def padding(reading: Reading) -> Finding:
    """Whatever stands in places that the mask hides changes nothing."""
    name, subject = "padding", reading.subject
    if subject.mask_argument is None or subject.mask_shape is None:
        return skipped(name, "it takes no mask")
    given = given_to(reading)
    sizes = masked_sizes(reading)
    mask = some_mask(sizes, 0, "bt").clone()
    mask[:] = True
    last = sizes.Tk - 1
    mask[..., last] = False
    before = run(reading, given, mask)
    after = run(reading, poisoned(given, last), mask)
    rows = (after[..., :last, :], before[..., :last, :])
    far = far_apart(*rows)
    if far > rounding(reading):
        return wrong(name, "what stands in a padded place changes the other rows", error=far)
    return right(name, "what stands in padded places changes nothing")


@check
def grouped_heads(reading: Reading) -> Finding:
    """Fewer key heads than query heads: neighbouring query heads share one."""
    name, bench = "grouped_heads", reading.bench("grouped heads")
    subject = reading.subject
    if not isinstance(subject, FunctionSubject) and subject.kv_heads < subject.heads:
        bench = reading.bench("square")
    if bench is None:
        return skipped(name, "it takes only as many key heads as query heads")
    error = bench.error(reading.meant())
    if error > SINGLE:
        return wrong(
            name, f"with fewer key heads than query heads it is off by {error:.2g} of the largest number", error=error
        )
    return right(name, "query heads share key heads in groups of neighbours")


@check
def chunked(reading: Reading) -> Finding:
    """A text in pieces, with what was before kept, gives what it gives as a whole."""

    name, subject, formula = "chunked", reading.subject, reading.meant()
    if not isinstance(subject, FunctionSubject):
        return chunked_module(reading)
    if formula[INDEX["sees"]] in ("all", "around") or reading.bench("Tq < Tk") is None:
        return skipped(
            name,
            "it is not causal"
            if formula[INDEX["sees"]] in ("all", "around")
            else "it takes only as many queries as keys",
        )
    if formula[INDEX["align"]] == "start" and reading.options.causal != "end":
        return skipped(name, "START-aligned: pieces cannot be asked for")
    q, k, v = given_to(reading)
    whole = subject.run(q, k, v)
    for start, stop in ((0, 3), (3, 5), (5, 6), (6, q.shape[2])):
        part = subject.run(q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop])
        far = far_apart(part, whole[:, :, start:stop])
        if far > 1e3 * rounding(reading):
            return wrong(
                name,
                f"queries {start} to {stop - 1} over the first {stop} keys differ from the whole by {far:.2g}",
                error=far,
            )
    return right(name, "in pieces or as a whole: the same")
