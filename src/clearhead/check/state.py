"""What is known of a candidate while it is read, and the formulas that explain it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clearhead.check.calling import Failed
from clearhead.check.choices import DEFAULT, INDEX, Formula, changed
from clearhead.check.formula import Bench
from clearhead.check.inputs import Sizes
from clearhead.check.modules import ModuleSubject
from clearhead.check.search import Match, Search
from clearhead.check.subjects import Options, Subject

FUNCTION_SIZES = (
    Sizes(), Sizes(2, 6, 6, 8, 8, 5, 5), Sizes(2, 4, 4, 8, 8, 16, 16), Sizes(2, 4, 4, 16, 16, 16, 16),
    Sizes(2, 4, 4, 32, 32, 16, 16), Sizes(2, 4, 4, 64, 64, 64, 64), Sizes(2, 4, 4, 128, 128, 64, 64),
    Sizes(2, 6, 6, 4, 4, 5, 5),
)  # fmt: skip

FEW = 1000  # formulas for a candidate that most lengths break: there every one takes long, and the error says more


@dataclass
class Reading:
    """A candidate that runs, what it gave on the cases, and the formulas that explain it."""

    subject: Subject
    options: Options
    benches: list[Bench]
    refusals: list[tuple[str, str, Failed]]  # (case, sizes, why)
    base: Formula = DEFAULT  # the right formula that explains most
    explained: frozenset[str] = frozenset()
    matches: list[Match] = field(default_factory=list)  # wrong formulas that explain what is wrong, if something is
    search: Search | None = None
    causal_because: str = ""
    rotary: bool = False  # whether it turns query and key, or means to
    random: str = ""  # why two equal calls differ, "" if they do not
    uncropped: tuple[int, int] | None = None  # (a length that failed, the only one that works)
    ordinary: Sizes = FUNCTION_SIZES[0]  # for functions: the sizes that work

    @property
    def right(self) -> bool:
        """Whether one right formula explains every case."""
        return len(self.explained) == len(self.benches)

    @property
    def plainest_first(self) -> list[Bench]:
        """The cases, those that are easiest to understand first."""
        order = ("square", "other sizes", "Tq < Tk", "grouped heads", "mask")
        return sorted(self.benches, key=lambda b: order.index(b.case.name) if b.case.name in order else len(order))

    def bench(self, name: str) -> Bench | None:
        """The case of that name, None if it could not be run."""
        return next((b for b in self.benches if b.case.name == name), None)

    def meant(self) -> Formula:
        """What the candidate should compute: the right formula, or the likeliest wrong one with its mistakes put right."""
        if self.right or not self.matches or self.search is None:
            return self.base
        formula = self.matches[0].formula
        for name, _ in self.matches[0].mistakes:
            formula = righted(formula, name, self.base)
        return formula


def righted(formula: Formula, name: str, base: Formula) -> Formula:
    """The formula with the mistake in one dimension put right. `base`: the right formula that explains most."""
    option = "past" if name == "sees" else DEFAULT[INDEX[name]]
    if name == "rope":  # the same pairs and base, without the fault
        word, _, number = formula[INDEX["rope"]].rpartition(" ")
        option = f"{word.partition('-')[0]} {number}" if word else base[INDEX["rope"]]
    return changed(formula, **{name: option})


def meant_options(reading: Reading) -> dict[str, Any]:
    """What its cases are meant to use: what the caller said, else the parameters' own defaults."""
    found: dict[str, Any] = {}
    for role in ("scale", "window", "softcap"):
        said = getattr(reading.options, role)
        parameter = reading.subject.parameter(role)
        default = None if parameter is None else reading.subject.fixed.get(parameter.name, parameter.default)
        number = isinstance(default, int | float) and not isinstance(default, bool) and default > 0
        found[role] = said if said is not None else default if number else None
    return found


def search_for(reading: Reading, benches: list[Bench], tries: int = 60_000) -> Search:
    """The search over these cases, with what is a mistake for this candidate and what is not."""
    subject, options = reading.subject, reading.options
    forbidden: set[tuple[str, str]] = set()
    forgiven: set[tuple[str, str]] = set()
    if options.causal is False:
        forbidden |= {("sees", "past")}
    elif reading.causal_because:
        forbidden |= {("sees", "all"), ("sees", "around")}
    if any(bench.case.past for bench in benches):  # behind a cache only one alignment gives what the whole gives
        forbidden |= {("align", "start")}
    if options.causal in ("end", "start"):
        forbidden |= {("align", "start" if options.causal == "end" else "end")}
    dimensions = {
        "roles", "over", "scale", "sees", "hide", "axis", "result", "unit", "align", "mask", "cap", "sinks", "heads",
    }  # fmt: skip
    if isinstance(subject, ModuleSubject):
        forgiven |= {("roles", "kqv")}
        dimensions |= {"split", "rope", "merge", "output", "bias", "cache"}
        if "qkv" in subject.found.sources:
            forgiven |= {("roles", name) for name in ("qvk", "vkq", "vqk", "kvq")}
            dimensions |= {"fused"}
        elif not subject.found.named:
            forgiven |= {("roles", name) for name in ("qvk", "vkq", "vqk", "kvq")}
        if reading.rotary:
            forbidden |= {("rope", "none")}
        if subject.found.norms:
            forgiven |= {("unit", name) for name in ("rms", "l2", "layer", "rms wide", "layer wide")}
    elif subject.layout == "btc":
        dimensions |= {"split", "merge"}
    base = subject.found.base if isinstance(subject, ModuleSubject) else None
    bases = () if base is None else (f"{base:.17g}",)
    return Search(benches, frozenset(forbidden), frozenset(forgiven), frozenset(dimensions), tries, bases)


def settled(reading: Reading) -> bool:
    """Whether a right formula explains every case; keeps it."""
    search = search_for(reading, reading.benches)
    reading.search = search
    reading.base, reading.explained = search.best_convention()
    return reading.right


def diagnose(reading: Reading, tries: int | None = None) -> None:
    """Find the right formula that explains most, and if something is left the wrong ones that explain it."""
    if settled(reading) or (reading.random and "dropout" not in reading.random.split(",")[0]):
        return
    search = reading.search
    assert search is not None  # noqa: S101
    search.tries = tries or (FEW if any(name.startswith("T=") for name, _, _ in reading.refusals) else search.tries)
    reading.matches = search.diagnose(reading.base, reading.explained)
