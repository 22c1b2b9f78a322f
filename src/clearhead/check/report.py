"""What a check of somebody's attention comes to: findings, a diagnosis, a verdict. Plain data; torch is not needed here."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

SCHEMA = 1
Outcome = Literal["right", "wrong", "warning", "note", "not tested"]
Verdict = Literal["right", "wrong", "could not run"]


@dataclass(frozen=True)
class Line:
    """A line of the candidate's own source."""

    file: str
    number: int
    text: str


@dataclass(frozen=True)
class Finding:
    """What one named check saw."""

    check: str
    outcome: Outcome
    said: str
    numbers: dict[str, float] = field(default_factory=dict)
    line: Line | None = None  # where it can be mended, if that was found
    change: str = ""  # that line as it could read

    @property
    def ok(self) -> bool:
        """Whether the check found nothing wrong."""
        return self.outcome != "wrong"


@dataclass(frozen=True)
class Mistake:
    """One thing that was done otherwise than is right."""

    id: str  # dimension:option, for example scale:1/sqrt(C)
    said: str  # what was computed
    right: str  # what to compute instead
    line: Line | None = None  # where, if a line could be pointed at
    change: str = ""  # that line as it could read


@dataclass(frozen=True)
class Change:
    """A line of the candidate's as it could read; "": it is left out."""

    line: Line
    text: str


@dataclass(frozen=True)
class Explanation:
    """A formula that gives what the candidate gives, by its mistakes."""

    mistakes: tuple[Mistake, ...]
    error_truth: float  # largest difference between the candidate and what is right; NaN where the candidate has NaN
    error_here: float  # largest difference between the candidate and this formula
    where: str = ""  # the inputs it is about, "" for all
    together: tuple[Change, ...] = ()  # lines that must change together; with all of them the whole is right

    @property
    def ids(self) -> tuple[str, ...]:
        """The mistakes by name."""
        return tuple(mistake.id for mistake in self.mistakes)

    @property
    def distances(self) -> str:
        """How far the candidate's numbers are from what is right and from this formula, in words."""
        far = f"{self.error_truth:.2g} from what is right"
        if self.error_truth != self.error_truth:
            return f"not numbers (NaN or infinite) in places, and elsewhere {self.error_here:.1g} from this formula"
        if self.error_truth == float("inf"):
            far = "of another shape than what is right"
        return f"{far}, {self.error_here:.1g} from this formula"


@dataclass(frozen=True)
class Picture:
    """Right, yours and the difference, as three small matrices."""

    what: str  # "weights of sample 0, head 1; queries down, keys across"
    right: list[list[float | None]]
    yours: list[list[float | None]]

    @property
    def difference(self) -> list[list[float | None]]:
        """Yours − right; None where either is not a number."""
        return [
            [None if a is None or b is None else b - a for a, b in zip(x, y, strict=True)]
            for x, y in zip(self.right, self.yours, strict=True)
        ]


@dataclass(frozen=True)
class Report:
    """The result of `check`.

    Print it for one screen of words; `.ok`, `.exit_code`, `.to_dict()`, `.to_json()`, `.html()`, `.save(path)` for the rest.
    """

    candidate: str
    verdict: Verdict
    reading: tuple[str, ...] = ()  # how it was read, in words
    findings: tuple[Finding, ...] = ()
    diagnosis: tuple[Explanation, ...] = ()  # the first is the likeliest; several: they compute the same
    picture: Picture | None = None
    first_wrong: str = ""
    smallest: str = ""
    not_tested: tuple[str, ...] = ()
    trouble: str = ""  # why it could not run, what was tried, and the line that would help
    seconds: float = 0.0
    strict: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong."""
        return self.verdict == "right"

    @property
    def exit_code(self) -> int:
        """0 right, 1 wrong, 2 could not run."""
        return {"right": 0, "wrong": 1, "could not run": 2}[self.verdict]

    @property
    def wrong(self) -> tuple[Finding, ...]:
        """The findings that are wrong."""
        return tuple(finding for finding in self.findings if finding.outcome == "wrong")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The findings that are right by themselves and make trouble elsewhere."""
        return tuple(finding for finding in self.findings if finding.outcome == "warning")

    @property
    def mistakes(self) -> tuple[str, ...]:
        """Names of the mistakes in the likeliest explanation."""
        return self.diagnosis[0].ids if self.diagnosis else ()

    def finding(self, check: str) -> Finding:
        """What the check of that name found; raises KeyError when it did not run."""
        for finding in self.findings:
            if finding.check == check:
                return finding
        raise KeyError(check)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it."""
        made = asdict(self)
        made["picture"] = (
            None if self.picture is None else asdict(self.picture) | {"difference": self.picture.difference}
        )
        whole: dict[str, Any] = _finite({"schema": SCHEMA, "ok": self.ok, "exit_code": self.exit_code} | made)
        return whole

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False)

    @classmethod
    def from_dict(cls, made: dict[str, Any]) -> Report:
        """Back from `to_dict`."""
        names = {"schema", "ok", "exit_code"}
        rest = {name: value for name, value in made.items() if name not in names}
        rest["findings"] = tuple(Finding(**(f | {"line": _line(f["line"])})) for f in rest["findings"])
        rest["diagnosis"] = tuple(_explanation(found) for found in rest["diagnosis"])
        if rest["picture"] is not None:
            rest["picture"] = Picture(**{name: rest["picture"][name] for name in ("what", "right", "yours")})
        for name in ("reading", "not_tested"):
            rest[name] = tuple(rest[name])
        return cls(**rest)

    def html(self) -> str:
        """One self-contained page."""
        from clearhead.check.page import page

        return page(self)

    def save(self, path: str | Path) -> None:
        """Write `.html()`, or `.to_json()` for a name that ends in .json."""
        path = Path(path)
        path.write_text(self.to_json() if path.suffix == ".json" else self.html(), encoding="utf-8")

    def __str__(self) -> str:
        from clearhead.check.show import as_text

        return as_text(self)


def _line(made: dict[str, Any] | None) -> Line | None:
    return None if made is None else Line(**made)


def _explanation(made: dict[str, Any]) -> Explanation:
    mistakes = tuple(Mistake(**(m | {"line": _line(m["line"])})) for m in made["mistakes"])
    together = tuple(Change(Line(**change["line"]), change["text"]) for change in made["together"])
    return Explanation(**(made | {"mistakes": mistakes, "together": together}))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: they are written as words."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
