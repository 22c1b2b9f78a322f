"""Checks as tests: a decorator that makes one test of every check, and a plug-in that does so from the command line.

    @parametrize_with_checks([my_attention, Head])
    def test_attention(candidate, check):
        check(candidate)

or, without a file of one's own, `pytest -p clearhead.check.pytest_plugin --check-attention lecture.py:Head`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clearhead.check import check as run
from clearhead.check.report import Report

# The checks by name, in the order they run in; they are named here so that collecting tests need not load torch.
NAMES = (
    "alignment", "batch_isolation", "causality", "chunked", "dropout_place", "empty_rows", "extreme_scores", "gradients",
    "grouped_heads", "half_precision", "inputs_kept", "lengths", "masks", "padding", "permutations", "repeat_calls",
    "result_kind", "shift_invariance", "strides", "values", "weights_returned",
)  # fmt: skip


class Check:
    """One check of the report on a candidate: call it with the candidate, and it passes, skips, or fails saying why."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.__name__ = self.name = name
        self.options = options

    def __call__(self, candidate: Any) -> None:
        """Judge the candidate."""
        judge(report_on(candidate, self.options), self.name)

    def __repr__(self) -> str:
        return f"<check {self.name}>"


_REPORTS: list[tuple[Any, dict[str, Any], Report]] = []


def report_on(candidate: Any, options: dict[str, Any]) -> Report:
    """The report on a candidate, made once for all its checks."""
    for known, with_options, report in _REPORTS:
        if known is candidate and with_options == options:
            return report
    report = run(candidate, **options)
    _REPORTS.append((candidate, dict(options), report))
    return report


def judge(report: Report, name: str) -> None:
    """Pass, skip or fail the running test by what one check of a report found; a warning is one of pytest's too."""
    if report.verdict == "could not run":
        pytest.fail(f"{report.candidate} could not be run: {report.trouble}", pytrace=False)
    finding = report.finding(name)
    if finding.outcome == "not tested":
        pytest.skip(finding.said)
    if finding.outcome == "warning":
        warnings.warn(f"{report.candidate}: {name}: {finding.said}", stacklevel=2)
    if finding.outcome == "wrong":
        because = "".join(
            f"\nyou computed: {m.said}\nright is: {m.right}" for e in report.diagnosis[:1] for m in e.mistakes
        )
        pytest.fail(f"{report.candidate}: {name}: {finding.said}{because}", pytrace=False)


def parametrize_with_checks(candidates: Iterable[Any], **options: Any) -> pytest.MarkDecorator:
    """Make a test of every check for every candidate: the test gets `candidate` and `check`, and calls `check(candidate)`.

    >>> decorated = parametrize_with_checks([lambda q, k, v: v], causal=True)
    >>> decorated.args[0]
    ('candidate', 'check')

    Arguments: candidates, as for `clearhead.check`; options, those of `clearhead.check`, for all of them.
    Each candidate is run once; its checks share the report.
    """
    cases = [
        pytest.param(candidate, Check(name, options), id=f"{_named(candidate)}-{name}")
        for candidate in candidates
        for name in NAMES
    ]
    return pytest.mark.parametrize(("candidate", "check"), cases)


def _named(candidate: Any) -> str:
    return candidate if isinstance(candidate, str) else getattr(candidate, "__name__", type(candidate).__name__)


# The command line --------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--check-attention FILE.py:NAME`, as often as wanted."""
    parser.getgroup("clearhead").addoption(
        "--check-attention",
        action="append",
        default=[],
        metavar="FILE.py:NAME",
        help="make a test of every check of this code",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the checks of what was named in front of the other tests."""
    made: list[pytest.Item] = []
    for text in config.getoption("--check-attention"):
        made += list(_Candidate.from_parent(session, name=text, path=Path(text.partition(":")[0]).absolute()).collect())
    items[:0] = made


class _Candidate(pytest.File):
    """Code that was named on the command line."""

    def collect(self) -> Iterator[pytest.Item]:
        for name in NAMES:
            yield _Item.from_parent(self, name=name)


class _Item(pytest.Item):
    """One check of it."""

    def runtest(self) -> None:
        parent = self.parent
        judge(report_on(parent.name if parent is not None else "", {}), self.name)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where it is, and what it is called."""
        return self.path, None, f"{self.parent.name if self.parent is not None else ''} {self.name}"
