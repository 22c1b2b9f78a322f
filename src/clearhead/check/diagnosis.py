"""From formulas and findings to sentences: what was computed, what is right, where, and how far off either is."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import torch

from clearhead.check.calling import Failed
from clearhead.check.choices import BY_NAME, DIMENSIONS, INDEX, Formula
from clearhead.check.formula import Bench
from clearhead.check.functions import LAYOUTS as FUNCTION_LAYOUTS
from clearhead.check.functions import FunctionSubject
from clearhead.check.inputs import arrays_of
from clearhead.check.judging import case_of, judged
from clearhead.check.mending import Edit, rewritten
from clearhead.check.modules import LAYOUTS as MODULE_LAYOUTS
from clearhead.check.modules import ModuleSubject, query_width
from clearhead.check.report import Change, Explanation, Finding, Line, Mistake
from clearhead.check.search import Match, tolerance_of
from clearhead.check.settling import KEEPS
from clearhead.check.source import Source, Works, constructors, mended, point, several
from clearhead.check.state import Reading, righted
from clearhead.check.steps import Refused
from clearhead.errors import dtype_name

# What is right where rotary positions are wrong, by the fault.
ROPE_RIGHT = {
    "with-pair-angles": "halves go with the angles twice over: torch.cat((angles, angles), -1)",
    "with-half-angles": "neighbours go with every angle twice: angles.repeat_interleave(2, -1)",
    "q-only": "turn the key too, by the angles of its own position",
    "k-only": "turn the query too, by the angles of its own position",
    "v-too": "turn query and key, and leave the value as it is",
    "k-backwards": "turn query and key in the same direction",
    "q-backwards": "turn query and key in the same direction",
    "again": "keep keys as they were turned once, or keep them unturned and turn all of them when they are read",
    "no-minus": "a pair (a, b) becomes (a cos − b sin, b cos + a sin): one minus, one plus",
    "over-heads": "count positions along the tokens: angles (T, D/2), for x (B, H, T, D)",
}

# Mistakes that are no formula, but a habit a check has seen: check → (id, what is right).
DROPOUT_RIGHT = "F.dropout(weights, p, training=self.training), or nn.Dropout: nothing is dropped in eval"
HABITS = {
    "empty_rows": ("empty:not 0", "where a query may see nothing, give 0: weights.masked_fill(~mask, 0.0) after the softmax"),
    "inputs_kept": ("calls:changes its input", "make a new tensor (q = q * scale), do not change the caller's (q *= scale)"),
    "strides": ("calls:assumes contiguous memory", "use .reshape, or .contiguous() first; never as_strided or raw memory"),
    "weights_returned": ("weights:returned ones are others", "return the weights the result was made with, before dropout"),
    "dropout_place": ("dropout:on scores", "dropout(softmax(scores)): on the weights, after the softmax"),
    "gradients": ("gradient:cut", "no .detach(), .data, .item() or no_grad on the way from query, key and value to the result"),
    "half_precision": ("precision:half", "compute scores, softmax and sums in float32, and round once at the end"),
}  # fmt: skip


def explanations(reading: Reading, findings: list[Finding], sources: list[Source]) -> tuple[Explanation, ...]:
    """All that explains what is wrong; the likeliest first. Empty when nothing is wrong, or nothing explains it."""
    extra = _habits(reading, findings, sources)
    meant = reading.meant()
    found: list[Explanation] = []
    for match in reading.matches[:6]:
        bench = _shown(reading, match, meant)
        mistakes = tuple(
            _mistake(name, option, bench, match.formula, reading, sources) for name, option in match.mistakes
        )
        found.append(
            Explanation(
                mistakes + extra,
                _gap(bench, meant),
                _gap(bench, match.formula),
                "" if len(match.cases) == len(reading.benches) else _where(reading, match),
                _together(reading, match, sources)
                if not found and (len(mistakes) > 1 or not mistakes[0].change)
                else (),
            )
        )
    if not found and not reading.random:
        precision = _precision(reading, sources)
        if precision is not None:
            return (precision,)
    if not found and extra:
        found.append(Explanation(extra, 0.0, 0.0))
    return tuple(found)


def _shown(reading: Reading, match: Match, meant: Formula) -> Bench:
    """A case the match is about and on which it matters, the plainest."""
    mine = [b for b in reading.plainest_first if b.case.name in match.cases]
    return next((b for b in mine if b.error(meant) > tolerance_of(b)), mine[0])


def _gap(bench: Bench, formula: Formula) -> float:
    target = bench.case.target
    largest = (
        1.0 if target is None else float(np.abs(np.nan_to_num(target, nan=0, posinf=0, neginf=0)).max(initial=0.0))
    )
    error = bench.error(formula)
    if error == math.inf and not bench.finite:
        return math.nan
    return error * largest


def _where(reading: Reading, match: Match) -> str:
    """The inputs a partial explanation is about; "" when it is about all that are wrong, and they are many."""
    wrong = [b.case.name for b in reading.benches if b.case.name in match.cases - reading.explained]
    others = [b.case.name for b in reading.benches if b.case.name not in match.cases | reading.explained]
    if len(wrong) <= 3:
        return "on " + ", ".join(repr(name) for name in wrong)
    loud = {b.case.name for b in reading.benches if b.case.loud}
    if others and loud.issuperset(others):
        return "on all inputs but those with scores in the hundreds and more"
    return "on all inputs but " + ", ".join(repr(name) for name in others) if others else ""


def _mistake(
    name: str, option: str, bench: Bench, formula: Formula, reading: Reading, sources: list[Source]
) -> Mistake:
    dimension = BY_NAME[name]
    sizes = bench.sizes(formula)
    said = dimension.option(option).said.format_map(sizes)
    if name == "sees" and option == "all":
        said = "every query sees every key, the future too"
        if reading.causal_because:
            said += f"; it is read as causal because {reading.causal_because}"
        if any(re.search(r"\b(masked_fill|where|fill_diagonal)\(", line) for s in sources for line in s.lines):
            said += " (is the result of masked_fill kept?)"
    elif name == "sees" and option == "past":
        said = "the future is hidden, where causal=False is asked for"
    elif name == "sees" and option.startswith("window=") and bench.case.window:
        said += f", where window={bench.case.window} is meant"
    elif name == "align" and option == "start":
        said += ", where the END is meant"
    right = dimension.right
    if name == "roles" and option == "qqv" and isinstance(reading.subject, ModuleSubject):
        said += " (is the query's layer used for the key too?)"
    elif name == "over" and option == "batch" and isinstance(reading.subject, ModuleSubject):
        right += "; if x is meant to be (T, B, C), say so: --layout tbc"
        if any(getattr(part, "batch_first", True) is False for part in reading.subject.root.modules()):
            right = (
                "MultiheadAttention(…, batch_first=True) for x (B, T, C); if it is meant to be (T, B, C): --layout tbc"
            )
    elif name == "axis" and option.startswith("tiles"):
        right = "c = exp(old − new); l = l * c + p.sum(-1, keepdim=True); out = out * c + p @ v"
    elif name == "heads" and "tiled" not in option:
        right = "each head uses its own: k[:, h], or all of k at once"
        if sizes["Hk"] != sizes["H"]:
            right += f"; query head h reads key head h // {sizes['group']}"
    elif name == "rope":
        fault = option.rpartition(" ")[0].partition("-")[2]
        right = ROPE_RIGHT.get(fault, right)
        if option == "none":
            said = "rotary positions have no effect: the result is as it would be without them"
            right = f"{ROPE_RIGHT['over-heads']}; and use what comes back"
    if name == "scale":
        right = f"scores / √D with D = {sizes['D']}, the width of a head"
        if bench.case.scale is not None:
            right = f"scores × {bench.case.scale:g}, the scale that is asked for"
    line, change = point(sources, f"{name}:{option}", _works(name, bench, formula, reading.base))
    return Mistake(f"{name}:{option}", said, right, line, change)


def _together(reading: Reading, match: Match, sources: list[Source]) -> tuple[Change, ...]:
    """The lines of all mistakes, put right one mistake after the other; () unless with all of them everything is right."""
    edits: tuple[Edit, ...] = ()
    formula = match.formula
    for name, option in match.mistakes:
        before, formula = formula, righted(formula, name, reading.base)
        telling = [b for b in reading.plainest_first if b.case.again is not None and _apart(b, before, formula)][:2]
        made = several(sources, f"{name}:{option}", edits, _gives(telling, formula))
        if made is None:
            return ()
        edits = made
    benches = [b for b in reading.benches if b.case.name != "grouped heads"]
    whole = _gives(benches, reading.meant())(*edits)
    if not whole or (len(benches) < len(reading.benches) and not _takes_groups(reading, edits)):
        return ()
    lines = {source.function: source for source in sources}
    return tuple(
        Change(Line(source.file, edit.number, source.lines[edit.number - source.first].strip()), edit.text)
        for edit in sorted(edits, key=lambda edit: edit.number)
        for source in (lines[edit.function],)
    )


def _takes_groups(reading: Reading, edits: tuple[Edit, ...]) -> bool:
    """Whether with these edits fewer key heads than query heads are right, or are not taken: a mistake can be why they were."""
    bench = reading.bench("grouped heads")
    assert bench is not None  # noqa: S101
    assert bench.case.again is not None  # noqa: S101
    try:
        with torch.no_grad(), rewritten(*edits):
            return Bench(bench.case.again()).error(reading.meant()) <= tolerance_of(bench)
    except Failed:
        return True


def _apart(bench: Bench, one: Formula, other: Formula) -> bool:
    """Whether two formulas differ on a case."""
    try:
        a, b = bench.out(one), bench.out(other)
    except (Refused, ValueError):
        return False
    return a.shape != b.shape or not np.allclose(a, b, rtol=0, atol=tolerance_of(bench), equal_nan=True)


def _works(name: str, bench: Bench, formula: Formula, base: Formula) -> Works:
    """Whether the candidate, with a line put differently, gives the formula's numbers with that one mistake put right."""
    return _gives([bench], righted(formula, name, base))


def _gives(benches: list[Bench], formula: Formula) -> Works:
    """Whether the candidate, with a line put differently, gives the formula's numbers on some cases."""

    def works(*edits: Edit) -> bool:
        try:
            with torch.no_grad(), rewritten(*edits):
                return bool(benches) and all(
                    bench.case.again is not None and Bench(bench.case.again()).error(formula) <= tolerance_of(bench)
                    for bench in benches
                )
        except (Failed, Refused, SyntaxError, LookupError, ValueError, AttributeError):
            return False

    return works


def _habits(reading: Reading, findings: list[Finding], sources: list[Source]) -> tuple[Mistake, ...]:
    """Mistakes that checks have seen and that are no formula."""
    made: list[Mistake] = []
    by_name = {finding.check: finding for finding in findings if finding.outcome == "wrong"}
    if reading.random:
        if reading.random.startswith("dropout"):
            name, right, pattern = "calls:dropout is always on", DROPOUT_RIGHT, r"dropout"
        elif reading.random == KEEPS:
            name, right, pattern = (
                "calls:keeps something",
                "keep nothing from one call to the next",
                r"append|global|self\.\w+ =",
            )
        else:
            name, right, pattern = "calls:random", "the same input gives the same result: draw nothing", r"rand"
        line = _line(sources, pattern)
        made.append(Mistake(name, reading.random, right, line, mended(sources, line, name, _quiet(reading))))
    elif "repeat_calls" in by_name:
        made.append(
            Mistake("calls:keeps something", by_name["repeat_calls"].said, "keep nothing from one call to the next")
        )
    if reading.uncropped is not None:
        made.append(
            Mistake(
                "sees:not cropped",
                f"the mask keeps its full size: T = {reading.uncropped[0]} fails, T = {reading.uncropped[1]} runs",
                "mask[:T, :T]: cut it to the length at hand",
                _line(sources, r"masked_fill|tril|mask"),
            )
        )
    if not isinstance(reading.subject, FunctionSubject) and (shared := reading.subject.found.shared) > 1:
        right = f"a head of its own in every place: nn.ModuleList([Head(…) for _ in range({shared})])"
        said = f"all {shared} heads are one and the same layer, so that they can only learn one thing"
        made.append(
            Mistake("heads:one layer", said, right, _line(constructors(reading.subject.root), r"ModuleList\(.*\]\s*\*"))
        )
    if reading.random and not reading.random.startswith("dropout"):  # then no two runs agree, whatever else is right
        by_name.clear()
    if "inputs_kept" in by_name:  # an input that is changed in place breaks these too
        by_name.pop("strides", None), by_name.pop("gradients", None)
    for check, (name, right) in HABITS.items():
        if check in by_name and not (check == "gradients" and reading.matches):
            finding = by_name[check]
            name = "empty:nan" if check == "empty_rows" and "NaN" in finding.said else name
            line = finding.line or _line(sources, _WORDS.get(check, r"$^"))
            made.append(Mistake(name, finding.said, right, line, finding.change))
    if "padding" in by_name and reading.right and by_name["padding"].numbers.get("error", 2.0) < 2:
        # Right while hidden scores are as large as the others; else what is left of those, not what is hidden.
        said = "weights are brought back to a sum of 1 after the mask: beside far larger hidden scores the others come out as 0"
        right = 'scores.masked_fill(hidden, float("-inf")) before the softmax'
        made.append(Mistake("hide:0/0", said, right, _line(sources, r"/.*sum\(") or _line(sources, r"sum\(|mask")))
    if "extreme_scores" in by_name and not reading.matches and "NaN" in by_name["extreme_scores"].said:
        one = _line(sources, r"\.max\(\)|\bnp\.max\(\w+\)|\.amax\(\)")
        said = "e is raised to the scores as they are, which overflows when one passes 88 (float32) or 709 (float64)"
        if one is not None:
            said = "one score, the largest of all rows, is subtracted: in rows far below it every e^score is 0, and 0/0 is NaN"
        if one is None and _line(sources, r"softmax\(") is not None and _line(sources, r"\bexp\(") is None:
            said = "weights are brought back to a sum of 1 after the mask: where hidden scores are far larger, that is 0/0, NaN"
            right = 'scores.masked_fill(hidden, float("-inf")) before the softmax'
            made.append(Mistake("hide:0/0", said, right, _line(sources, r"sum\(")))
            return tuple(made)
        line = one or _line(sources, r"exp\(")
        change = mended(
            sources, line, "overflow:", _gives([b for b in reading.benches if b.case.loud], reading.meant())
        )
        made.append(
            Mistake(
                "axis:overflow" if one is None else "axis:one maximum",
                said,
                "subtract each row's largest score first, or use softmax: the weights are the same",
                line,
                change,
            )
        )
    return tuple(made)


def _quiet(reading: Reading) -> Works:
    """Whether the candidate, with a line put differently, calls no dropout any more."""
    watcher = reading.subject.watcher

    def works(*edits: Edit) -> bool:
        watcher.dropped.clear()
        try:
            with torch.no_grad(), rewritten(*edits):
                case_of(reading)
        except (Failed, SyntaxError, LookupError, ValueError):
            return False
        return not watcher.dropped

    return works


_WORDS = {
    "empty_rows": r"softmax|exp\(",
    "inputs_kept": r"\*=|/=|\+=|-=|_\(",
    "dropout_place": r"dropout|drop\(",
    "gradients": r"detach|\.data\b|no_grad|item\(",
    "half_precision": r"half|float16|bfloat16",
    "weights_returned": r"return",
    "strides": r"as_strided|view|data_ptr",
}


def _line(sources: list[Source], pattern: str) -> Line | None:
    for source in sources:
        for number, line in enumerate(source.lines):
            if re.search(pattern, line.split("#")[0]):
                return Line(source.file, source.first + number, line.strip())
    return None


def _precision(reading: Reading, sources: list[Source]) -> Explanation | None:
    """Whether it is the right formula, computed in 16 bits somewhere inside."""
    bench = reading.bench("square")
    if bench is None or not bench.tells:
        return None
    search = reading.search
    assert search is not None  # noqa: S101
    best: tuple[float, Formula] | None = None
    for formula in search.conventions()[:400]:
        error = bench.error(formula)
        if best is None or error < best[0]:
            best = (error, formula)
    if best is None or not 3e-5 < best[0] < 0.03 or not _rough(reading, best[1]):
        return None
    for dtype in (torch.float16, torch.bfloat16):
        found = judged(bench.case, best[1], dtype, what="", plain=True)
        if found.error <= 3 * found.baseline_error:
            short = dtype_name(dtype)
            said = f"the right formula, computed in {short}: its error is what {short} loses"
            line = _line(sources, r"half\(|float16|autocast|\.to\(")
            change = mended(sources, line, "precision:", _gives([bench], best[1]))
            mistake = Mistake(f"precision:{short}", said, HABITS["half_precision"][1], line, change)
            reading.base = best[1]
            return Explanation((mistake,), _gap(bench, best[1]), found.baseline_error)
    return None


def _rough(reading: Reading, formula: Formula) -> bool:
    """Whether the error is that of rounding: for inputs a little larger it is another, where that of a wrong formula stays."""
    errors = []
    for gain in (1.0, 1.003):
        try:
            with torch.no_grad():
                case = case_of(reading, gain=gain)
        except Failed:
            return False
        target = case.target
        if target is None:
            return False
        errors.append(target - Bench(case).out(formula))
    return bool(np.abs(errors[1] - errors[0]).max() > 0.3 * np.abs(errors[0]).max())


def words(reading: Reading) -> tuple[str, ...]:
    """How the candidate is read, in words."""
    subject, meant = reading.subject, reading.meant()
    said = []
    if isinstance(subject, FunctionSubject):
        said.append(
            f"a function {subject.signature} of {arrays_of(subject.framework)} {FUNCTION_LAYOUTS[subject.layout]}"
        )
    else:
        said.append(_module_words(subject))
        if subject.inside:
            said.append(f"its part {subject.inside!r} is the attention that is checked")
    sees = meant[INDEX["sees"]]
    causal = "causal" if sees == "past" else "sees everything" if sees == "all" else BY_NAME["sees"].option(sees).said
    if sees == "past" and reading.causal_because and reading.causal_because != "you said so":
        causal += f" ({reading.causal_because})"
    if meant[INDEX["align"]] == "start" and reading.bench("Tq < Tk") is not None:
        causal += ", START-aligned: query 0 sees key 0 only"
    said.append(causal)
    bench = reading.benches[0]
    sizes = bench.sizes(meant)
    scale = reading.options.scale
    should_be = (
        " should be" if any(name == "scale" for match in reading.matches[:1] for name, _ in match.mistakes) else ""
    )
    said.append(f"scale{should_be} 1/√{sizes['D']}" if scale is None else f"scale{should_be} {scale:g}, as you said")
    for dimension, option in zip(DIMENSIONS, meant, strict=True):
        ordinary = dimension.name in ("sees", "align", "scale") or option == dimension.options[0].id
        if not ordinary:
            said.append(dimension.option(option).said.format_map(sizes))
    if subject.mask_argument is not None and subject.mask_sense is not None:
        said.append(f"{subject.mask_argument}: {subject.mask_sense}")
    said += list(subject.habits.said.values())
    return tuple(said)


def _module_words(subject: Any) -> str:
    heads = "a single head" if subject.heads == 1 else f"{subject.heads} heads"
    if subject.kv_heads != subject.heads:
        heads += f" over {subject.kv_heads} key head{'' if subject.kv_heads == 1 else 's'}"
    parts = "/".join(dict.fromkeys(source.path for source in subject.found.sources.values()))
    d = query_width(subject.found) // max(1, subject.heads)
    x = f"x {MODULE_LAYOUTS[subject.layout]} with C={subject.width}"
    if subject.framework != "torch":
        x += f", {arrays_of(subject.framework)}"
    words = f"{subject.signature}, {x}: {heads} of width {d}, from {parts}"
    if subject.found.output is not None:
        words += f", mixed by {subject.found.output_path}"
    if subject.heads > 1 and d == subject.width:
        words += "; each head is as wide as the input"
    return words
