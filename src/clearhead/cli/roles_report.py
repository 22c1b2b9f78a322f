"""What `clearhead roles` prints: for people, and as JSON."""

from __future__ import annotations

import math

from rich.table import Table

from clearhead.addresses import Head
from clearhead.cli import terminal
from clearhead.roles import ROLES, Calibrated, RoleScore
from clearhead.roles.scores import BROAD, THRESHOLD, says_most
from clearhead.viewer.view import View

SCHEMA = 1
NAMED = 6  # heads named in the summary of a role


def report(view: View, calibrated: dict[Head, dict[str, Calibrated]], period: int, seeds: int, *, every: bool) -> None:
    """Print how many heads earn each label, and a table of those heads."""
    console = terminal.console()
    best = {head: label(scores) for head, scores in calibrated.items()}
    console.print(f"[bold]{view.model}[/]: {len(best)} heads in {len(view.trace.calls)} layers")
    summary = Table(box=None, pad_edge=False)
    for name, right in (("role", False), ("heads", True), ("strongest, calibrated", False)):
        summary.add_column(name, justify="right" if right else "left", header_style="dim")
    for role in ROLES:
        having = [(head, found[1]) for head, found in best.items() if found is not None and found[0] == role]
        having.sort(key=lambda pair: -pair[1].mean)
        told = ", ".join(f"{head} {score.mean:.2f}" for head, score in having[:NAMED])
        summary.add_row(role, str(len(having)), told + (" …" if len(having) > NAMED else ""))
    summary.add_row("no label", str(sum(found is None for found in best.values())), "")
    console.print(summary)
    console.print()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("head", "role", "score", "± error", "uniform", "  on this text", "score", "uniform"):
        table.add_column(name, justify="left" if name in ("head", "role", "  on this text") else "right")
    shown = [head for head in best if every or best[head] is not None or view.label(head) is not None]
    for head in shown:
        found, here = best[head], view.label(head)
        first = ["", "", "", ""] if found is None else [found[0], *(f"{x:.2f}" for x in found[1][:3])]
        second = ["", "", ""] if here is None else [f"  {here.role}", f"{here.score:.2f}", f"{here.null:.2f}"]
        table.add_row(str(head), *first, *second)
    console.print(table)
    console.print()
    console.print(
        f"[dim]Calibrated: mean over {seeds} texts of {period} random tokens, twice each, ± its standard error. On this text: "
        f"{view.tokens} tokens. A label needs at least half of what uniform attention misses, and {THRESHOLD}; broad needs "
        f"{BROAD} of the greatest entropy. A label says where a head looks, not what the model does with it.[/]",
        soft_wrap=True,
    )


def label(scores: dict[str, Calibrated]) -> tuple[str, Calibrated] | None:
    """The labelled role that names a head, as `clearhead.roles.label` chooses it. None when none is labelled."""
    earned = ((role, score) for role, score in scores.items() if score.labelled)
    return max(earned, key=lambda pair: says_most(pair[0], pair[1].mean - pair[1].null), default=None)


def as_document(
    view: View, calibrated: dict[Head, dict[str, Calibrated]], period: int, seeds: int
) -> dict[str, object]:
    """Every score of every head; schema in docs/reference/json.md."""
    return {
        "schema": SCHEMA,
        "model": view.model,
        "period": period,
        "seeds": seeds,
        "tokens": view.tokens,
        "heads": [_head(head, scores, view.roles.get(head, [])) for head, scores in calibrated.items()],
    }


def _head(head: Head, scores: dict[str, Calibrated], here: list[RoleScore]) -> dict[str, object]:
    found = label(scores)
    return {
        "head": str(head),
        "layer": head.layer,
        "index": head.head,
        "role": None if found is None else found[0],
        "calibrated": {
            role: {
                "score": _number(score.mean),
                "error": _number(score.error),
                "uniform": _number(score.null),
                "threshold": _number(score.threshold),
                "labelled": score.labelled,
            }
            for role, score in scores.items()
        },
        "on_this_text": {
            score.role: {
                "score": _number(score.score),
                "uniform": _number(score.null),
                "threshold": _number(score.threshold),
                "labelled": score.labelled,
            }
            for score in here
        },
    }


def _number(x: float) -> float | None:
    return None if math.isnan(x) else round(x, 6)
