"""What `clearhead look` prints: for people, and as JSON."""

from __future__ import annotations

import math

from rich.table import Table
from rich.text import Text

from clearhead.addresses import Head
from clearhead.cli import terminal
from clearhead.roles import RoleScore
from clearhead.viewer.colour import ROLE_COLOURS, on_ground, ramp
from clearhead.viewer.view import View

SCHEMA = 1
LEAST = 0.002  # weights below are not shaded: the terminal's own ground, dark or light, says "next to nothing" best
WHOLE = 400  # tokens of a text that is printed whole; of longer ones an excerpt is
AROUND = 20  # tokens on each side of what is looked at, in an excerpt
LEGEND = "score: how much of its role, beside what uniform attention has; · no clear role; entropy in nats"
SHOWN = 3  # keys listed for the chosen token in the heads table


def report(view: View, head: Head, query: int, top_k: int) -> None:
    """Print what ran, the heads, what one token looks at through one head, and the text shaded by that."""
    console = terminal.console()
    for line in what_ran(view):
        console.print(line, soft_wrap=True)
    console.print()
    console.print(_heads(view, query))
    console.print(Text(LEGEND, "dim"), soft_wrap=True)
    console.print()
    console.print(_strongest(view, head, query, top_k), soft_wrap=True)
    console.print()
    shown = _excerpt(view.tokens, [0, query, view.prompt - 1, *(key for key, _ in top(view, head, query, top_k))])
    console.print(_shaded(view, head, query, shown), soft_wrap=False)
    if len(shown) > 1 or len(shown[0]) < view.tokens:
        count = sum(map(len, shown))
        console.print(
            f"\n[dim]{count:,} of {view.tokens:,} tokens, around those it looks at most; --open or --html shows all[/]",
            soft_wrap=True,
        )


def what_ran(view: View) -> list[Text]:
    """What was read, by what, and what was kept of it."""
    heads = len(view.trace.heads())
    written = view.tokens - view.prompt
    tokens = f"{view.tokens} tokens" + (f" ({written} written by the model)" if written else "")
    lines = [
        Text.assemble(
            (f"{view.model}", "bold"),
            f": {tokens} through {len(view.trace.calls)} layers, {heads} heads, in {_time(view.seconds)}",
        ),
        Text(
            f"kept {_size(view.observed_bytes)} of measurements, O(T); "
            f"all T×T weights would take {_size(view.pattern_bytes)}, O(T²)",
            "dim",
        ),
    ]
    if view.part is not None:
        lines.append(Text(view.part, "yellow"))
    return lines


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _size(n: int) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n < 1000 or unit == "TB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000  # type: ignore[assignment]
    raise AssertionError


def _role(score: RoleScore | None) -> tuple[Text, str, str]:
    if score is None:
        return Text("·", "dim"), "", ""
    r, g, b = ROLE_COLOURS[score.role]
    return Text(score.role, f"rgb({r},{g},{b})"), f"{score.score:.2f}", f"{score.null:.2f}"


def _heads(view: View, query: int) -> Table:
    piece = view.pieces[query]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("head", no_wrap=True)
    table.add_column("role", no_wrap=True)
    table.add_column("score", justify="right", min_width=5)
    table.add_column("uniform", justify="right", min_width=7, style="dim")
    table.add_column("entropy", justify="right", min_width=7)
    table.add_column(f"token {query} {piece!s} looks at", ratio=1, no_wrap=True, overflow="ellipsis")
    previous = -1
    for head in view.trace.heads():
        if previous not in (-1, head.layer):
            table.add_row()
        previous = head.layer
        entropy = view.trace.observation(head.layer).mean("entropy")[0, head.head].item()
        looks = Text()
        for key, weight in top(view, head, query, SHOWN):
            looks.append(f"{view.pieces[key]} ").append(f"{weight:.0%}".rjust(4), "dim").append("   ")
        role, score, null = _role(view.label(head))
        table.add_row(str(head), role, score, null, f"{entropy:.2f}", looks)
    return table


def top(view: View, head: Head, query: int, k: int) -> list[tuple[int, float]]:
    """The k keys a query attends to most through a head, with their weights; fewer where it sees fewer."""
    seen = view.trace.observation(head.layer)
    keys = seen.top_keys[0, head.head, query, :k].tolist()
    weights = seen.top_weights[0, head.head, query, :k].tolist()
    return [(key, weight) for key, weight in zip(keys, weights, strict=True) if key >= 0]


def _strongest(view: View, head: Head, query: int, top_k: int) -> Text:
    score = view.label(head)
    does = f", {score.role} (score {score.score:.2f}, uniform attention {score.null:.2f})" if score is not None else ""
    line = Text.assemble((str(head), "bold"), does, f": token {query} ", (view.pieces[query], "bold"), " looks at\n")
    for key, weight in top(view, head, query, top_k):
        line.append(f"  {weight:6.1%}  token {key} {view.pieces[key]}\n")
    line.rstrip()
    return line


def _excerpt(tokens: int, places: list[int]) -> list[range]:
    """The parts of a text to print: all of it, or of a long one what stands around some places."""
    if tokens <= WHOLE:
        return [range(tokens)]
    parts: list[range] = []
    for place in sorted({min(max(place, 0), tokens - 1) for place in places}):
        first, end = max(0, place - AROUND), min(tokens, place + AROUND + 1)
        if parts and first <= parts[-1].stop:
            parts[-1] = range(parts[-1].start, end)
        else:
            parts.append(range(first, end))
    return parts


def _shaded(view: View, head: Head, query: int, shown: list[range]) -> Text:
    """The text, each token on a ground that is the lighter the more weight it gets; spaces and line ends as they are."""
    row = view.trace.observation(head.layer).rows[0, head.head, 0].tolist()
    text, end = Text(), 0
    for part in shown:
        if part.start > end:
            text.append(f"\n… {part.start - end:,} tokens …\n", "dim italic")
        for n in part:
            if n == view.prompt:
                text.append("▕ written by the model: ", "bold")
            text.append(view.pieces[n].replace("·", " ").replace("↵", "\n"), _ground(row[n], n, query))
        end = part.stop
    if end < view.tokens:
        text.append(f"\n… {view.tokens - end:,} tokens …", "dim italic")
    return text


def _ground(weight: float, n: int, query: int) -> str:
    if n == query:
        return "bold underline"
    if weight < LEAST:
        return "dim" if n > query else ""
    return on_ground(ramp(math.sqrt(weight)))


def as_document(view: View, head: Head, query: int, top_k: int) -> dict[str, object]:
    """Everything measured that fits a document; schema in docs/reference/json.md."""
    return {
        "schema": SCHEMA,
        "model": view.model,
        "context": view.context,
        "seconds": round(view.seconds, 6),
        "text": {"tokens": view.total, "first": view.first, "prompt": view.prompt},
        "tokens": [{"id": i, "piece": p} for i, p in zip(view.trace.token_ids or [], view.pieces, strict=True)],
        "token": query,
        "head": str(head),
        "weights": [round(w, 6) for w in view.trace.observation(head.layer).rows[0, head.head, 0].tolist()],
        "heads": [_head(view, h, query, top_k) for h in view.trace.heads()],
        "bytes": {"kept": view.observed_bytes, "pattern": view.pattern_bytes},
    }


def _head(view: View, head: Head, query: int, top_k: int) -> dict[str, object]:
    seen = view.trace.observation(head.layer)
    label = view.label(head)
    return {
        "head": str(head),
        "layer": head.layer,
        "index": head.head,
        "role": None if label is None else label.role,
        "roles": {
            s.role: {"score": _number(s.score), "uniform": _number(s.null), "threshold": round(s.threshold, 6)}
            for s in view.roles[head]
        },
        "entropy": round(seen.mean("entropy")[0, head.head].item(), 6),
        "entropy_share": round(seen.mean("entropy_share")[0, head.head].item(), 6),
        "top": [{"key": key, "weight": round(weight, 6)} for key, weight in top(view, head, query, top_k)],
    }


def _number(x: float) -> float | None:
    """JSON has no NaN: a score that no token could show is null."""
    return None if math.isnan(x) else round(x, 6)
