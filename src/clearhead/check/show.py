"""A report as one screen of text."""

from __future__ import annotations

import textwrap
from pathlib import Path

from clearhead.check.report import Explanation, Line, Picture, Report

WIDTH = 100
SHADES = " ░▒▓█"
STYLES = {"right": "32;1", "wrong": "31;1", "could not run": "33;1"}


def as_text(report: Report, *, colour: bool = False, width: int = WIDTH) -> str:
    """Verdict, diagnosis, a picture, what was checked and what was not; lines of code keep their own length."""
    verdict, warned = _styled(report.verdict.upper(), STYLES[report.verdict], colour), len(report.warnings)
    more = f", with {'a warning' if warned == 1 else f'{warned} warnings'}" if warned else ""
    lines = [f"{verdict}  {report.candidate}   ({report.seconds:.1f} s){more}"]
    if report.trouble:
        return "\n".join([*lines, "", *_wrapped(report.trouble, "", width)])
    if report.reading:
        lines += _wrapped("; ".join(report.reading), "read as  ", width)
    if report.diagnosis:
        lines += ["", *_explained(report.diagnosis[0], width)]
        others = report.diagnosis[1:4]
        if others:
            lines += _wrapped(
                "  or: ".join(" and ".join(m.said for m in e.mistakes) for e in others),
                "the same numbers come of  ",
                width,
            )
    elif report.verdict == "wrong":
        lines += ["", *_wrapped(
            "no formula of the search gives these numbers; what is known to be right stands below", "not explained  ", width
        )]  # fmt: skip
    for finding in report.warnings:
        lines += ["", *_wrapped(finding.said, f"{'warning':14}", width), *_where(finding.line, finding.change)]
        if colour:
            lines = [
                line.replace("warning", _styled("warning", "33;1", True), 1) if line.startswith("warning") else line
                for line in lines
            ]
    if report.first_wrong:
        lines += ["", *_wrapped(report.first_wrong, "", width)]
    if report.smallest:
        lines += [f"smallest input that fails: {report.smallest}"]
    if report.picture is not None:
        lines += ["", *picture_lines(report.picture)]
    lines += ["", *_checked(report, colour, width)]
    return "\n".join(lines)


def _styled(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _wrapped(text: str, head: str, width: int) -> list[str]:
    return textwrap.wrap(
        _printable(text), width, initial_indent=head, subsequent_indent=" " * len(head), break_long_words=False
    ) or [head]


def _printable(text: str) -> str:
    """Text of the candidate's without what would move a cursor."""
    return "".join(c if c.isprintable() or c == " " else "·" for c in text)


def _where(line: Line | None, change: str) -> list[str]:
    """A line of the candidate's, and how it could read."""
    if line is None:
        return []
    found = [f"{'line':14}{_printable(line.text)}   ({Path(line.file).name}:{line.number})"]
    return [*found, f"{'could read':14}{_printable(change)}"] if change else found


def _explained(found: Explanation, width: int) -> list[str]:
    lines: list[str] = []
    for n, mistake in enumerate(found.mistakes):
        first = "you computed  " if n == 0 else "and           "
        lines += _wrapped(mistake.said, first, width)
        lines += _wrapped(mistake.right, "right is       "[:14], width)
        lines += _where(mistake.line, "" if found.together else mistake.change)
    for n, change in enumerate(found.together):
        at = f"({Path(change.line.file).name}:{change.line.number})"
        text = _printable(change.text) if change.text else f"nothing, instead of {_printable(change.line.text)}"
        lines += [f"{'could read' if n == 0 else '       and':14}{text}   {at}"]
    if found.where:
        lines += _wrapped(found.where, f"{'where':14}", width)
    if found.error_truth:
        lines += _wrapped(f"your numbers are {found.distances}", f"{'how sure':14}", width)
    return lines


def picture_lines(picture: Picture) -> list[str]:
    """Right, yours and the difference side by side, two letters a cell."""
    values = [abs(x) for m in (picture.right, picture.yours) for row in m for x in row if x is not None]
    top = max(values, default=0.0) or 1.0
    columns = len(picture.right[0]) if picture.right else 0
    gap = "    "
    heads = ("right", "yours", "yours − right")
    width = max(2 * columns, len(heads[2]))
    lines = [_printable(picture.what), gap.join(head.ljust(width) for head in heads).rstrip()]
    for a, b, d in zip(picture.right, picture.yours, picture.difference, strict=True):
        cells = (
            "".join(_shade(x, top) for x in a), "".join(_shade(x, top) for x in b), "".join(_sign(x, top) for x in d),
        )  # fmt: skip
        lines.append(gap.join(cell.ljust(width) for cell in cells).rstrip())
    lines.append(f"█ {top:.2g}   · 0   + more than right   − less   ? not a number")
    return lines


def _shade(x: float | None, top: float) -> str:
    if x is None:
        return "??"
    level = min(len(SHADES) - 1, int(abs(x) / top * (len(SHADES) - 1) + 0.5))
    if level == 0:
        return "· " if abs(x) < 0.005 * top else "░ "
    return SHADES[level] * 2 if x >= 0 else SHADES[level] + "-"


def _sign(x: float | None, top: float) -> str:
    if x is None:
        return "? "
    if abs(x) < 1e-4 * top:
        return "· "
    mark = "+" if x > 0 else "−"
    return mark * 2 if abs(x) > 0.2 * top else mark + " "


def _by_reason(not_tested: tuple[str, ...]) -> str:
    """What was not tested, put together where the reason is the same."""
    reasons: dict[str, list[str]] = {}
    for text in not_tested:
        what, _, why = text.partition(": ")
        reasons.setdefault(why.removesuffix(", so every query sees something"), []).append(what)
    return "; ".join(f"{', '.join(what)} ({why})" if why else what[0] for why, what in reasons.items())


def _checked(report: Report, colour: bool, width: int) -> list[str]:
    by = {outcome: [f for f in report.findings if f.outcome == outcome] for outcome in ("wrong", "right", "note")}
    lines: list[str] = []
    for finding in by["wrong"]:
        lines += _wrapped(f"{finding.check.replace('_', ' ')}: {finding.said}", "wrong       ", width)
    right = ", ".join(f.check.replace("_", " ") for f in by["right"])
    if right:
        lines += _wrapped(right, "right       ", width)
    for finding in by["note"]:
        lines += _wrapped(finding.said, "note        ", width)
        lines += [f"{'':12}{line}" for line in _where(finding.line, finding.change)]
    if report.not_tested:
        lines += _wrapped(_by_reason(report.not_tested), "not tested  ", width)
    if colour:
        lines = [
            line.replace("wrong  ", "\x1b[31mwrong\x1b[0m  ", 1) if line.startswith("wrong  ") else line
            for line in lines
        ]
    return lines
