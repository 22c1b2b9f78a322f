"""Which formula gives what the candidate gave? First the right ones, then one choice otherwise, then two, then three.

The search knows nothing but the grid of `choices.py`. It runs on one case, the most telling of those that no right formula
explains, and what it finds must then hold on all the others too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass

from clearhead.check.choices import DEFAULT, DIMENSIONS, INDEX, Formula, changed, differences
from clearhead.check.formula import Bench
from clearhead.check.steps import Refused, no_type_check

EXACT = 1e-9  # of the largest number: float64 in another order
SINGLE = 3e-5  # float32 somewhere inside
LOUD = 1e-2  # scores so large that their last digit moves weights
FIXED_FILLS = tuple(f"=-1{'0' * n}" for n in range(6))
ADDED_FILLS = tuple(f"add=-1{'0' * n}" for n in range(1, 6))
TILES = tuple(f"tiles{both}={n}" for n in (1, 2, 3, 4, 8, 16, 32, 64, 128) for both in ("", " both"))
NORMS = ("layer", "rms wide", "layer wide")  # only for what holds norm layers
BEAM = 160
CLOSE = 3  # levels of formulas that are one choice away, or one number of their own
HIDING = frozenset(INDEX[name] for name in ("sees", "align", "mask", "hide"))


@no_type_check
def tolerance_of(bench: Bench) -> float:
    """How far a formula may be from a case and still be what was computed."""
    return LOUD if bench.case.loud else SINGLE


@dataclass(frozen=True)
class Match:
    """A formula that gives what the candidate gave, on all cases or on some."""

    formula: Formula
    mistakes: tuple[tuple[str, str], ...]  # (dimension, option)
    rank: int
    error: float  # the largest over the cases it is about
    cases: frozenset[str]


@no_type_check
@dataclass
class Search:
    """The cases, what counts as a mistake, and how far to look.

    `forbidden` are conventions that the caller has ruled out; `forgiven` mistakes that are none for this kind of candidate.
    """

    benches: Sequence[Bench]
    forbidden: frozenset[tuple[str, str]] = frozenset()
    forgiven: frozenset[tuple[str, str]] = frozenset()
    dimensions: frozenset[str] = frozenset(INDEX)  # those that can differ for this kind of candidate
    tries: int = 60_000  # formulas; no clock, so that the answer is the same on a busy machine
    bases: tuple[str, ...] = ()  # of rotary positions, besides the usual ones

    def __post_init__(self) -> None:
        self.by_name = {bench.case.name: bench for bench in self.benches}
        # What a formula must explain: overflow on large scores is none.
        self.must = frozenset(b.case.name for b in self.benches if b.finite or not b.case.loud)
        self.windowed = any(bench.case.window for bench in self.benches)

    # What is a mistake --------------------------------------------------------------------------------------------------

    def is_mistake(self, dimension: str, option: str) -> bool:
        """Whether this option is wrong here."""
        if (dimension, option) in self.forbidden:
            return True
        if dimension == "sees" and option.startswith("window=") and self.windowed:
            return True
        if (dimension, option) in self.forgiven:
            return False
        return DIMENSIONS[INDEX[dimension]].option(option).mistake

    def mistakes(self, formula: Formula) -> tuple[tuple[str, str], ...]:
        """The wrong options of a formula."""
        pairs = ((dimension.name, option) for dimension, option in zip(DIMENSIONS, formula, strict=True))
        return tuple((name, option) for name, option in pairs if self.is_mistake(name, option))

    def rank(self, formula: Formula) -> int:
        """How far-fetched a formula is."""
        pairs = zip(DIMENSIONS, formula, strict=True)
        return sum(dimension.option(option).rank + (option != dimension.options[0].id) for dimension, option in pairs)

    # Right formulas -----------------------------------------------------------------------------------------------------

    def conventions(self) -> list[Formula]:
        """Every formula without a mistake, the plainest first; windows of any width that fits the cases."""
        lengths = [bench.case.sources["q" if "q" in bench.case.sources else "qkv"].shape for bench in self.benches]
        longest = max(
            (shape[1] if bench.case.heads else shape[2]) for shape, bench in zip(lengths, self.benches, strict=True)
        )
        choices = []
        for dimension in DIMENSIONS:
            names = [option.id for option in dimension.options if not self.is_mistake(dimension.name, option.id)]
            if dimension.name == "rope":
                more = [f"{layout} {base}" for base in self.bases for layout in ("half", "pairs")]
                names += [name for name in more if name not in names]
                if "none" in names:  # a part of a head is turned only where turning is meant at all
                    names = [name for name in names if "-first-" not in name]
            if dimension.name not in self.dimensions or dimension.name == "hide":  # a fill of −1e9 is told apart below
                names = names[:1]
            if dimension.name == "sees" and not any(bench.case.window for bench in self.benches):
                names += [f"window={w}" for w in range(2, longest) if not self.is_mistake("sees", f"window={w}")]
            if dimension.name == "sees" and not self.windowed:
                names = [name for name in names if name != "around"]
            if dimension.name == "align" and all(bench.square for bench in self.benches):
                names = names[:1]
            choices.append(names)
        return sorted(_few_apart(choices), key=self.rank)

    def matched(self, formula: Formula) -> frozenset[str]:
        """The cases on which a formula gives what the candidate gave."""
        return frozenset(b.case.name for b in self.benches if b.error(formula) <= tolerance_of(b))

    def best_convention(self) -> tuple[Formula, frozenset[str]]:
        """The right formula that explains most cases, and which."""
        formulas, first = self.conventions(), self.benches[0]
        wanted = tolerance_of(first)
        likely = [formula for formula in formulas if first.error(formula) <= wanted]
        best, cases = formulas[0], frozenset[str]()
        for formula in likely or formulas[:40]:
            here = self.matched(formula)
            if len(here) > len(cases):
                best, cases = formula, here
                if len(here) == len(self.benches):
                    break
        return best, cases

    # Wrong formulas -----------------------------------------------------------------------------------------------------

    def options(self, bench: Bench, starts: Sequence[Formula]) -> list[tuple[int, str]]:
        """Every option that can make a difference on this case, as (dimension, option)."""
        found = []
        for n, dimension in enumerate(DIMENSIONS):
            if dimension.name not in self.dimensions or not matters(dimension.name, bench):
                continue
            names = [option.id for option in dimension.options]
            if dimension.name == "sees":
                names = [
                    n
                    for n in names
                    if bench.case.window or n not in ("window+1", "window-1", "window, future too", "around")
                ]
            if dimension.name == "scale" and bench.case.scale is None:
                names.remove("ignored")
            if dimension.name == "hide":
                names += FIXED_FILLS + (ADDED_FILLS if bench.case.loud else ())
            if dimension.name == "axis":
                names += TILES
            if dimension.name == "unit":
                names = [name for name in names if name not in NORMS or not self.is_mistake("unit", name)]
            turned = starts[0][n].rpartition(" ")[2] if dimension.name == "rope" else "10000"
            if turned not in ("10000", "none"):
                names += [
                    name.replace(" 10000", f" {turned}") for name in names if "-" in name and name.endswith(" 10000")
                ]
            if dimension.name == "sees":
                keys = bench.case.sources["k" if "k" in bench.case.sources else "qkv"].shape[
                    1 if bench.case.heads else 2
                ]
                names += [f"window={w}" for w in range(2, keys)]
            for name in names:
                if dimension.name == "scale" and self._same_scale(bench, starts[0], name):
                    continue
                found.append((n, name))
        return found

    def _same_scale(self, bench: Bench, start: Formula, name: str) -> bool:
        """Whether a scale is that of the start, or speaks of several heads where there is one."""
        if name == "1/sqrt(D)":
            return False
        try:
            if "H" in name and bench.sizes(start)["H"] == 1:
                return True
            return math.isclose(bench.scale(changed(start, scale=name)), bench.scale(start), rel_tol=1e-9)
        except (Refused, KeyError, ZeroDivisionError):
            return True

    def diagnose(self, base: Formula, explained: frozenset[str]) -> list[Match]:
        """The formulas with the fewest mistakes that give what the candidate gave, the likeliest first; [] if none does.

        `base` is the right formula that explains most, `explained` the cases it explains.
        """
        failing = [bench for bench in self.benches if bench.case.name not in explained]
        failing = [bench for bench in failing if not (bench.case.loud and not bench.finite)]  # overflow is no formula
        failing.sort(key=lambda bench: (not bench.tells, bench.case.notes.get("order", 50)))
        partial: list[Match] = []
        # First what is near on every case, then what is farther on every case: a case on which nothing is near (a mistake
        # may show there in two ways) must not use up all the tries.
        levels = [(bench, self._levels(bench, base, self.tries)) for bench in failing[:3]]
        left, near = self.tries, 0
        while levels and left > 0:
            still = []
            for bench, level in levels:
                found, tried = next(level, (None, 0))
                left -= tried
                if found is None:
                    continue
                judged = [self._judge(formula, base, explained) for formula in found]
                wider = [self._widened(match, base, explained) for match in self._widest(judged)]
                judged += [match for match in wider if match is not None]
                whole = [match for match in judged if self.must <= match.cases]
                if whole:
                    return self._order(whole)
                partial += judged
                if not judged:  # else what explains this case is known
                    still.append((bench, level))
                if left <= 0:
                    break
            levels, near = still, near + 1
            if near == CLOSE:  # pairs and more take long: of cases that ask the same, one is enough
                levels = _of_each_kind(levels)
            if any({b.case.name for b, _ in levels} <= match.cases for match in partial):
                break
        names = {bench.case.name for bench in failing}
        joint = [match for match in partial if names <= match.cases]
        if joint:
            return self._order(joint)
        ordinary = {bench.case.name for bench in failing if not bench.case.loud} or names
        most = max((len(match.cases & ordinary) for match in partial), default=0)
        if 2 * most <= len(ordinary):  # what explains the smaller part of what is wrong is a coincidence
            return []
        return self._order([match for match in partial if len(match.cases & ordinary) == most])

    @staticmethod
    def _widest(partial: list[Match]) -> list[Match]:
        """The matches that explain most, the likeliest first."""
        return sorted(partial, key=lambda m: (-len(m.cases), len(m.mistakes), m.rank))[:4]

    def _widened(self, match: Match, base: Formula, explained: frozenset[str]) -> Match | None:
        """A match that explains some cases, with what else it takes to explain the others; None where nothing does."""
        best = match
        for _ in range(3):
            left = [b for b in self.benches if b.case.name not in best.cases]
            if not left:
                break
            found = self._judged_changes(best.formula, left, base, explained)
            better = [m for m in found if len(m.cases) > len(best.cases)]
            if not better:
                break
            best = min(better, key=lambda m: (-len(m.cases), len(m.mistakes), m.rank))
        return best if best is not match else None

    def _judged_changes(
        self, formula: Formula, left: list[Bench], base: Formula, explained: frozenset[str]
    ) -> list[Match]:
        """One change, or two about who is seen and how hiding is done, under which cases that are left are explained."""
        found = []
        for bench in left:
            options = self.options(bench, [formula])
            near = [[pair] for pair in options]
            near += [list(pair) for pair in itertools.combinations([o for o in options if o[0] in HIDING], 2)]
            for changes in near:
                made = formula
                for n, name in changes:
                    made = with_option(made, n, name)
                if made != formula and bench.error(made) <= tolerance_of(bench):
                    found.append(self._judge(made, base, explained))
            if not found and bench.case.loud:
                for quiet in self.benches:
                    if not quiet.case.loud and quiet.case.name in self.matched(formula):
                        fitted = self._fitted(quiet, [formula], "hide", tolerance_of(quiet))
                        found += [self._judge(made, base, explained) for made in fitted]
            if found:
                break
        return found

    def _judge(self, formula: Formula, base: Formula, explained: frozenset[str]) -> Match:
        cases = self.matched(formula)
        if explained - cases:  # it is about some inputs only: on those, what is not as elsewhere is the mistake
            error = max((self.by_name[name].error(formula) for name in cases), default=0.0)
            apart = differences(formula, base)
            rank = sum(1 + DIMENSIONS[INDEX[name]].option(option).rank for name, option in apart.items())
            return Match(formula, tuple(apart.items()), rank, error, cases)
        error = max(
            (self.by_name[name].error(formula) for name in cases if not self.by_name[name].case.loud), default=0.0
        )
        return Match(formula, self.mistakes(formula), self.rank(formula), error, cases)

    def _order(self, matches: Iterable[Match]) -> list[Match]:
        """Fewest mistakes first; only those as good as the best; no formula twice."""
        made = sorted({m.formula: m for m in matches}.values(), key=lambda m: (len(m.mistakes), m.rank, m.error))
        if not made:
            return []
        closest = min(m.error for m in made)
        made = [m for m in made if m.error <= max(EXACT, 8 * closest)]
        fewest = len(made[0].mistakes)
        made = [m for m in made if len(m.mistakes) == fewest and m.rank <= made[0].rank + 4]
        seen: set[tuple[tuple[str, str], ...]] = set()
        unique = []
        for match in made:
            if match.mistakes not in seen:
                seen.add(match.mistakes)
                unique.append(match)
        return unique

    def _levels(self, bench: Bench, base: Formula, tries: int) -> Generator[tuple[list[Formula], int]]:
        """The formulas that match this case, by how many choices they are away from a right one, and how many were tried."""
        wanted = tolerance_of(bench)
        starts = self._starts(base)
        options = self.options(bench, starts)
        errors: dict[Formula, float] = {}

        def level(formulas: Iterable[Formula], most: int) -> tuple[list[Formula], list[Formula]]:
            """The new ones of some formulas, tried, and those that match."""
            new: list[Formula] = []
            for formula in formulas:
                if formula in errors:
                    continue
                if len(new) >= most:
                    break
                errors[formula] = bench.error(formula)
                new.append(formula)
            return new, [f for f in new if errors[f] <= wanted and f != base]

        one, found = level((with_option(s, n, name) for s in starts for n, name in options), tries)
        yield found, len(one)
        for dimension in ("scale", "hide"):
            yield self._fitted(bench, starts, dimension, wanted), 60 * len(starts)
        options = [(n, name) for n, name in options if not DIMENSIONS[n].option(name).alone]
        pairs = [(a, b) for a, b in itertools.combinations(options, 2) if a[0] != b[0]]
        two, found = level((with_option(with_option(s, *a), *b) for s in starts for a, b in pairs), tries)
        yield found, len(two)
        closest = sorted((f for f in errors if errors[f] < math.inf), key=errors.__getitem__)[:BEAM]
        three, found = level((with_option(s, n, name) for s in closest for n, name in options), tries // 2)
        yield found, len(three)
        for dimension in ("scale", "hide"):
            yield self._fitted(bench, one, dimension, wanted), 40 * len(one)
        closest = sorted((f for f in three if errors[f] < math.inf), key=errors.__getitem__)[: BEAM // 8]
        four, found = level((with_option(s, n, name) for s in closest for n, name in options), tries // 4)
        yield found, len(four)

    def _starts(self, base: Formula) -> list[Formula]:
        """The right formula that explains most, seeing everything and seeing the past; and the plainest."""
        made = [base]
        for plain in (base, DEFAULT):
            for sees in ("past", "all"):
                formula = changed(plain, sees=sees, align="end")
                if formula not in made:
                    made.append(formula)
        return made if len(made) < 4 else made[:5]

    def _fitted(self, bench: Bench, formulas: Sequence[Formula], dimension: str, wanted: float) -> list[Formula]:
        """The formulas with one number of their own (the scale, the fill) that matches best, found by trying."""
        found = []
        n = INDEX[dimension]
        for formula in formulas:
            default = DEFAULT[n]
            if formula[n] != default or (
                dimension == "hide" and formula[INDEX["sees"]] == "all" and bench.case.mask is None
            ):
                continue
            best = _smallest(lambda x, f=formula: bench.error(with_option(f, n, f"={x!r}")), dimension)  # type: ignore[misc]
            if best is not None:
                made = with_option(formula, n, f"={best:.6g}")
                if bench.error(made) <= wanted:
                    found.append(made)
        return found


Tried = Generator[tuple[list[Formula], int]]


def _of_each_kind(levels: list[tuple[Bench, Tried]]) -> list[tuple[Bench, Tried]]:
    """The first case of every kind, loud ones only where there are no others."""
    kept: dict[tuple[object, ...], tuple[Bench, Tried]] = {}
    quiet = any(not bench.case.loud for bench, _ in levels)
    for bench, level in levels:
        case = bench.case
        kind = (bench.square, case.mask is None, case.past > 0, case.unmasked, case.window, case.kv_heads, case.softcap)
        if not (quiet and case.loud):
            kept.setdefault(kind, (bench, level))
    return list(kept.values())


@no_type_check
def _few_apart(choices: list[list[str]]) -> Iterable[Formula]:
    """The products of some choices that are at most three away from the first of each; who sees whom is not counted."""
    free = INDEX["sees"], INDEX["align"]
    others = [(n, name) for n, names in enumerate(choices) if n not in free for name in names[1:]]
    plain = tuple(names[0] for names in choices)
    for sees in choices[free[0]]:
        for align in choices[free[1]] if sees != "all" else choices[free[1]][:1]:
            start = with_option(with_option(plain, free[0], sees), free[1], align)
            for count in range(2 if sees.startswith("window=") else 4):
                for apart in itertools.combinations(others, count):
                    if len({n for n, _ in apart}) == count:
                        formula = start
                        for n, name in apart:
                            formula = with_option(formula, n, name)
                        yield formula


def matters(dimension: str, bench: Bench) -> bool:
    """Whether a dimension can make a difference on a case at all."""
    case = bench.case
    if dimension == "mask":
        return case.mask is not None
    if dimension == "cap":
        return case.softcap is not None
    if dimension == "cache":
        return case.past > 0
    return case.sinks is not None if dimension == "sinks" else True


@no_type_check
def with_option(formula: Formula, n: int, name: str) -> Formula:
    """The formula with dimension n set to `name`."""
    return (*formula[:n], name, *formula[n + 1 :])


@no_type_check
def _smallest(error: Callable[[float], float], dimension: str) -> float | None:
    """The number in a wide range where the error is smallest: a coarse look, then a closer and closer one."""
    if dimension == "scale":
        grid = [2.0 ** (e / 2) for e in range(-16, 9)] + [-(2.0**e) for e in range(-6, 4)]
    else:
        grid = [-(10.0 ** (e / 4)) for e in range(-4, 24)]
    errors = [error(x) for x in grid]
    best = min(range(len(grid)), key=errors.__getitem__)
    if errors[best] == math.inf or errors[best] > 0.7:
        return None
    ratio = 2.0 if dimension == "scale" else 10.0**0.25
    low, high = grid[best] / ratio, grid[best] * ratio
    for _ in range(60):
        third = (high - low) / 3
        if error(low + third) < error(high - third):
            high -= third
        else:
            low += third
        if abs(high - low) <= 1e-9 * abs(high):
            break
    return float(low + high) / 2
