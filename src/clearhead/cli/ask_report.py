"""What `clearhead look --question` prints: for people, and as JSON."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table
from rich.text import Text

from clearhead.cli.report import what_ran
from clearhead.viewer.ask import Asked
from clearhead.viewer.colour import ink_on, ramp

SCHEMA = 1


def report(asked: Asked) -> None:
    """Print the answer, what it takes from each document, token by token, and the heads that take most."""
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=120, no_color=True)
    for line in what_ran(asked.view):
        console.print(line, soft_wrap=True)
    console.print()
    pieces = asked.view.pieces
    answer = "".join(pieces[i] for i in asked.written).replace("·", " ").replace("↵", "\n").strip()
    console.print(Text(answer, "bold"))
    console.print()
    total = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("the answer looks at", "tokens", "weight", ""):
        total.add_column(name, justify="right" if name in ("tokens", "weight") else "left")
    sizes = [*map(len, asked.places), 1, None, None]
    for name, size, share in zip(asked.groups, sizes, asked.shares, strict=True):
        bar = Text("█" * round(40 * share), "dim" if size is None or size == 1 else "")
        total.add_row(name, "" if size is None else str(size), f"{share:.1%}", bar)
    console.print(total)
    console.print()
    by_token = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("token written", *asked.groups):
        by_token.add_column(
            name, justify="left" if name == "token written" else "right", overflow="ellipsis", max_width=24
        )
    for at, row in zip(asked.written, asked.by_token.tolist(), strict=True):
        by_token.add_row(pieces[at], *(_cell(x, shaded=n < len(asked.names)) for n, x in enumerate(row)))
    console.print(by_token)
    console.print()
    readers = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("heads that take most from the documents", *asked.groups):
        readers.add_column(
            name, justify="left" if name.startswith("heads") else "right", overflow="ellipsis", max_width=40
        )
    for head, means in asked.readers():
        readers.add_row(str(head), *(_cell(x, shaded=n < len(asked.names)) for n, x in enumerate(means)))
    console.print(readers)
    console.print()
    console.print(
        "[dim]Mean weight over all heads, for the query that wrote each token. Heads rest on the first token when they have "
        "nothing to say. Weight shows where information can flow, not why the model answers as it does.[/]",
        soft_wrap=True,
    )


def _cell(x: float, *, shaded: bool) -> Text:
    if not shaded:
        return Text(f"{x:.1%}", "dim")
    colour = ramp(x**0.5)
    ink = ink_on(colour)
    return Text(f" {x:.1%} ", f"rgb({ink[0]},{ink[1]},{ink[2]}) on rgb({colour[0]},{colour[1]},{colour[2]})")


def as_document(asked: Asked) -> dict[str, object]:
    """The answer and its weights; schema in docs/reference/json.md."""
    view = asked.view
    ids = view.trace.token_ids or []
    return {
        "schema": SCHEMA,
        "model": view.model,
        "seconds": round(view.seconds, 6),
        "tokens": [{"id": i, "piece": piece} for i, piece in zip(ids, view.pieces, strict=True)],
        "documents": [
            {"name": name, "first": place.start, "end": place.stop}
            for name, place in zip(asked.names, asked.places, strict=True)
        ],
        "answer": {"first": asked.written.start, "end": asked.written.stop},
        "groups": asked.groups,
        "weight": [round(x, 6) for x in asked.shares],
        "by_token": [[round(x, 6) for x in row] for row in asked.by_token.tolist()],
        "by_head": {
            str(head): [round(x, 6) for x in row]
            for head, row in zip(view.trace.heads(), asked.weights.mean(1).tolist(), strict=True)
        },
    }
