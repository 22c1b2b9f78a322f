"""A report as one self-contained page: no script, nothing fetched, everything of the candidate's as text."""

from __future__ import annotations

from html import escape
from pathlib import Path

from clearhead.check.report import Explanation, Line, Picture, Report
from clearhead.inline import policy_hash

STYLE = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")


def page(report: Report) -> str:
    """The page as HTML text."""
    kind = {"right": "right", "wrong": "wrong", "could not run": "trouble"}[report.verdict]
    parts = [f'<h1>{_t(report.candidate)}: <span class="{kind}">{report.verdict}</span></h1>']
    parts.append(f'<p class="soft">clearhead check, {report.seconds:.1f} s: {_t("; ".join(report.reading))}</p>')
    if report.trouble:
        parts.append(f"<section><h2>Could not run</h2><p>{_t(report.trouble)}</p></section>")
    if report.diagnosis:
        parts.append(_diagnosis(report.diagnosis))
    elif report.verdict == "wrong":
        parts.append("<section><h2>Not explained</h2><p>No formula of the search gives these numbers.</p></section>")
    if report.warnings:
        parts.append(_warnings(report))
    if report.picture is not None:
        parts.append(_maps(report.picture, report.first_wrong, report.smallest))
    if report.findings:
        parts.append(_checks(report))
    policy = f"default-src 'none'; style-src '{policy_hash(STYLE)}'; img-src data:; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{_t(report.candidate)}: {report.verdict}</title><style>{STYLE}</style></head>\n"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _t(text: str) -> str:
    return escape(text, quote=True)


def _diagnosis(found: tuple[Explanation, ...]) -> str:
    made = ["<section><h2>What was computed</h2>"]
    first = found[0]
    for mistake in first.mistakes:
        made.append(
            f"<dl><dt>you computed</dt><dd>{_t(mistake.said)} {_t(first.where)}</dd>"
            f"<dt>right is</dt><dd>{_t(mistake.right)}</dd>"
        )
        made.append(f"{_where(mistake.line, '' if first.together else mistake.change)}</dl>")
    if first.together:
        rows = (
            f"<dt>{_t(Path(c.line.file).name)}:{c.line.number}</dt><dd><pre>{_t(c.text) or '(left out)'}</pre></dd>"
            for c in first.together
        )
        made.append(f"<h2>Could read, changed together</h2><dl>{''.join(rows)}</dl>")
    if first.error_truth:
        made.append(f'<p class="soft">Your numbers are {_t(first.distances)}.</p>')
    for other in found[1:4]:
        made.append(f'<p class="soft">The same numbers come of: {_t(" and ".join(m.said for m in other.mistakes))}</p>')
    return "".join(made) + "</section>"


def _where(line: Line | None, change: str) -> str:
    """A line of the candidate's, and how it could read."""
    if line is None:
        return ""
    made = f"<dt>{_t(Path(line.file).name)}:{line.number}</dt><dd><pre>{_t(line.text)}</pre></dd>"
    return f"{made}<dt>could read</dt><dd><pre>{_t(change)}</pre></dd>" if change else made


def _warnings(report: Report) -> str:
    made = "".join(
        f'<dl><dt class="trouble">warning</dt><dd>{_t(f.said)}</dd>{_where(f.line, f.change)}</dl>'
        for f in report.warnings
    )
    return f"<section><h2>Right, but</h2>{made}</section>"


def _maps(picture: Picture, first: str, smallest: str) -> str:
    top, apart = _top(picture.right, picture.yours), _top(picture.difference)
    maps = "".join(
        f"<figure><figcaption>{name}</figcaption>{_map(matrix, name, of, signed)}</figure>"
        for name, matrix, of, signed in (
            ("right", picture.right, top, False),
            ("yours", picture.yours, top, False),
            (f"yours − right, up to ±{apart:.2g}", picture.difference, apart, True),
        )
    )
    said = f"<p>{_t(first)}</p>" if first else ""
    if smallest:
        said += f'<p class="soft">Smallest input that fails: {_t(smallest)}</p>'
    return f'<section><h2>{_t(picture.what)}</h2><div class="maps">{maps}</div>{said}</section>'


def _top(*matrices: list[list[float | None]]) -> float:
    """The largest size of a cell, which is coloured most."""
    return max((abs(x) for m in matrices for row in m for x in row if x is not None), default=0.0) or 1.0


def _map(matrix: list[list[float | None]], name: str, top: float, signed: bool) -> str:
    """Cells as SVG: a page without a script and with a strict policy cannot style each cell of a table."""
    decimals = 2 if top >= 0.095 else 3
    size, rows, columns = 34, len(matrix), len(matrix[0]) if matrix else 0
    cells = []
    for r, row in enumerate(matrix):
        for c, x in enumerate(row):
            share = 0.0 if x is None else min(1.0, abs(x) / top)
            hue = "#888" if x is None else "#0a5c94" if (not signed and x >= 0) or (signed and x < 0) else "#c4501b"
            ink = "#fff" if share > 0.8 else "currentColor"
            text = "?" if x is None else "" if abs(x) < 0.005 * top else f"{x:z.{decimals}f}".replace("0.", ".")
            box = f'x="{c * size}" y="{r * size}" width="{size - 1}" height="{size - 1}"'
            at = f'x="{c * size + 16.5}" y="{r * size + 21}" font-size="11" text-anchor="middle"'
            cells.append(f'<rect {box} fill="{hue}" fill-opacity="{share:.3f}"/><text {at} fill="{ink}">{text}</text>')
    w, h = columns * size, rows * size
    frame = (
        f'<rect x="0" y="0" width="{w - 1}" height="{h - 1}" fill="none" stroke="currentColor" stroke-opacity=".25"/>'
    )
    said = _t(f"{name}: {rows} queries down, {columns} keys across")
    return f'<svg width="{w}" height="{h}" role="img" aria-label="{said}">{"".join(cells)}{frame}</svg>'


def _checks(report: Report) -> str:
    order = {"wrong": 0, "warning": 1, "note": 1, "right": 2, "not tested": 3}
    kinds = {"wrong": "wrong", "right": "right", "warning": "trouble"}
    rows = "".join(
        f'<tr><td class="{kinds.get(f.outcome, "soft")}">{f.outcome}</td>'
        f"<td>{_t(f.check.replace('_', ' '))}</td><td>{_t(f.said)}</td></tr>"
        for f in sorted(report.findings, key=lambda f: order[f.outcome])
    )
    more = [
        text
        for text in report.not_tested
        if not any(text.startswith(f.check.replace("_", " ") + ":") for f in report.findings)
    ]
    for text in more:
        what, apart, why = text.partition(": ")
        what, why = (what, why) if apart else ("", text)
        rows += f'<tr><td class="soft">not tested</td><td>{_t(what)}</td><td>{_t(why)}</td></tr>'
    return f'<section><h2>Checks</h2><table class="checks">{rows}</table></section>'
