"""Ratio to SDPA and share of the machine's limit over the length, as a picture."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence

from clearhead.bench.cases import Case
from clearhead.bench.machine import Machine
from clearhead.bench.run import Result, limit_percent
from clearhead.errors import InputError, dtype_name

COLOURS = {
    "SDPA": "#777777",
    "clearhead": "#0072b2",
    "observe": "#56b4e9",
    "observe light": "#f0e442",
    "math": "#e69f00",
    "flex": "#009e73",
    "onnxruntime": "#cc79a7",
    "openvino": "#d55e00",
}
KINDS = ("forward", "backward", "observe")  # those that are measured over many lengths
NAMES = {"backward": "forward+backward"}
Family = tuple[str, str, int]


def check_plot(cases: Sequence[Case]) -> None:
    """Raise `InputError` where there could be no picture: nothing to draw it with, or nothing to draw."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--plot needs matplotlib, which is not installed; install clearhead[plot] or matplotlib")
    if not any(case.kind in KINDS for case in cases):
        raise InputError(
            f"--plot draws over T, and no case of {', '.join(KINDS)} is selected; choose others with --case"
        )


def families(results: Sequence[Result]) -> dict[Family, list[Result]]:
    """The results that differ in nothing but length (and in how many heads it is measured with), shortest first."""
    found: dict[Family, list[Result]] = {}
    for result in sorted(results, key=lambda r: r.case.T):
        case = result.case
        if case.kind in KINDS:
            found.setdefault((case.kind, dtype_name(case.dtype), case.D), []).append(result)
    return dict(sorted(found.items(), key=lambda item: KINDS.index(item[0][0])))


def picture(results: Sequence[Result], machine: Machine, title: str) -> bytes:
    """A PNG: a column a family, above how many times as fast as SDPA (10 % to 90 % shaded), below % of the limit."""
    from matplotlib.figure import Figure

    drawn = families(results)
    figure = Figure(figsize=(3.6 * len(drawn) + 1.6, 6.4), layout="constrained")
    axes = figure.subplots(2, len(drawn), squeeze=False, sharex="col", sharey="row")
    lines = {}
    for column, ((kind, dtype, D), members) in enumerate(drawn.items()):
        above, below = axes[:, column]
        for n, name in enumerate(dict.fromkeys(row.candidate for r in members for row in r.rows)):
            style = {"color": COLOURS.get(name, f"C{n}"), "marker": ".", "label": name}
            points = [(r.case.T, row) for r in members for row in r.rows if row.candidate == name]
            rated = [(T, row.ratio) for T, row in points if row.ratio is not None]
            shares = [(T, share) for T, row in points if (share := limit_percent(row, machine)) is not None]
            if rated:
                lengths = [T for T, _ in rated]
                above.plot(lengths, [r.median for _, r in rated], **style)
                shade = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
                above.fill_between(lengths, [r.low for _, r in rated], [r.high for _, r in rated], **shade)
            if shares:
                (lines[name],) = below.plot([T for T, _ in shares], [share for _, share in shares], **style)
        lengths = [r.case.T for r in members]
        above.set_title(f"{NAMES.get(kind, kind)} {dtype} D={D}", fontsize=10)
        above.set_yscale("log", base=2)
        above.yaxis.set_major_formatter(lambda y, _: f"{y:g}×")
        below.set_xscale("log", base=2)
        below.set_xticks(lengths, [f"{T}" for T in lengths], rotation=60, fontsize=8)
        below.set_ylim(bottom=0)
        below.set_xlabel("T")
        for axis in (above, below):
            axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("speed / SDPA's")
    axes[1, 0].set_ylabel("% of the machine's limit")
    figure.suptitle(title, fontsize=10)
    figure.legend(lines.values(), lines.keys(), loc="outside right upper", fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=130)
    return out.getvalue()
