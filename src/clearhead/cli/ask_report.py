"""What `clearhead look --question` prints: for people, and as JSON."""

from __future__ import annotations

from typing import NamedTuple

import torch
from rich.table import Table
from rich.text import Text

from clearhead.cli import terminal
from clearhead.cli.report import what_ran
from clearhead.viewer import Asked
from clearhead.viewer.colour import on_ground, ramp

SCHEMA = 1


WIDE = 13  # of a table's first column, about
LOOKS = 28  # and of the last, which says who looked a token up


def report(asked: Asked) -> None:
    """Print the answer, what it takes from each document, token by token, and the heads that take most."""
    console = terminal.console()
    for line in what_ran(asked.view):
        console.print(line, soft_wrap=True)
    columns = Columns.of(asked, console.width)
    for part in (
        Text(asked.answer, "bold"),
        _total(asked, columns),
        _by_token(asked, columns),
        _readers(asked, columns),
    ):
        console.print()
        console.print(part)
    console.print()
    told = TOLD if len(columns.shown) == len(asked.names) else f"{TOLD} {LEFT_OUT}"
    console.print(f"[dim]{told}[/]", soft_wrap=True)


TOLD = (
    "Weight: mean over all heads, of the query that wrote each token; uniform: what even attention would give. Heads rest on "
    "the first token when they have nothing to say. Looked up: how often a head, while a token was written, looked most at "
    "that very token in the document; by chance: if it looked anywhere alike. Weight shows where information can flow, not why "
    "the model answers as it does."
)
LEFT_OUT = "The documents that were looked up most have columns; the others are in “elsewhere”, and all are in --json."


class Columns(NamedTuple):
    """Which documents have a column of their own, and what each is called: its name where there is room, or its number."""

    names: list[str]
    shown: list[int]

    @classmethod
    def of(cls, asked: Asked, width: int) -> Columns:
        """As many columns as fit."""
        every = list(range(len(asked.names)))
        room = width - WIDE - len("elsewhere") - 2
        if sum(max(len(name), 7) + 2 for name in asked.names) <= room - LOOKS:
            return cls(list(asked.names), every)
        looks = [int(asked.lookups(n).sum()) for n in every]
        most = sorted(every, key=lambda n: (-looks[n], -asked.shares[n], n))[: max(1, (room - LOOKS // 2) // 9)]
        return cls([f"#{n + 1}" for n in every], sorted(most))

    @property
    def numbered(self) -> bool:
        """Whether numbers stand for the names."""
        return bool(self.names) and self.names[0] == "#1"


def _total(asked: Asked, columns: Columns) -> Table:
    left = [""] if columns.numbered else []
    total = _table(*left, "the answer looks at", "tokens", "weight", "uniform", "looked up", "by chance", "")
    documents = len(asked.names)
    for n, (name, size, share, even) in enumerate(
        zip(asked.groups, asked.sizes, asked.shares, asked.uniform, strict=True)
    ):
        looks = (str(int(asked.lookups(n).sum())), f"{asked.by_chance[n]:.0f}") if n < documents else ("", "")
        bar = Text("█" * round(20 * share), "" if n < documents else "dim")
        number = [f"#{n + 1}" if n < documents else ""] if left else []
        total.add_row(*number, name, str(size), f"{share:.1%}", Text(f"{even:.1%}", "dim"), looks[0],
                      Text(looks[1], "dim"), bar)  # fmt: skip
    return total


def _by_token(asked: Asked, columns: Columns) -> Table:
    table = _table("token written", *(columns.names[n] for n in columns.shown), "elsewhere", "looked up in")
    found = torch.stack([asked.lookups(n).sum(0) for n in range(len(asked.names))], 1).tolist()  # (written, documents)
    for at, row, looks in zip(asked.written, asked.by_token.tolist(), found, strict=True):
        most = sorted((n for n in range(len(looks)) if looks[n]), key=lambda n: -looks[n])
        said = ", ".join(f"{columns.names[n]} ×{looks[n]}" for n in most)
        table.add_row(asked.view.pieces[at], *_shares(row, columns), said)
    return table


def _readers(asked: Asked, columns: Columns) -> Table:
    table = _table("most look-ups", *(columns.names[n] for n in columns.shown), "elsewhere", "looked up")
    for head, means, count in asked.readers():
        table.add_row(str(head), *_shares(means, columns), f"{count} of {len(asked.written)}")
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    left = ("the answer looks at", "token written", "most look-ups", "looked up in", "")
    for name in names:
        looks = name == "looked up in"  # goes on in the next line where it must: no number is cut
        table.add_column(
            name,
            justify="left" if name in left else "right",
            overflow="fold" if looks else "ellipsis",
            max_width=None if looks else 24,
            no_wrap=not looks,
        )
    return table


def _shares(row: list[float], columns: Columns) -> list[Text]:
    """The weight on each document that has a column, and the rest."""
    cells = [_cell(row[n], shaded=True) for n in columns.shown]
    return [*cells, _cell(sum(row) - sum(row[n] for n in columns.shown), shaded=False)]


def _cell(x: float, *, shaded: bool) -> Text:
    if not shaded:
        return Text(f"{x:.1%}", "dim")
    return Text(f" {x:.1%} ", on_ground(ramp(x**0.5)))


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
        "sizes": asked.sizes,
        "weight": [round(x, 6) for x in asked.shares],
        "uniform": [round(x, 6) for x in asked.uniform],
        "looked_up": [int(asked.lookups(n).sum()) for n in range(len(asked.names))],
        "by_chance": [round(x, 6) for x in asked.by_chance],
        "lookups": _lookups(asked),
        "by_token": [[round(x, 6) for x in row] for row in asked.by_token.tolist()],
        "by_head": {
            str(head): [round(x, 6) for x in row]
            for head, row in zip(view.trace.heads(), asked.weights.mean(1).tolist(), strict=True)
        },
    }


def _lookups(asked: Asked) -> list[dict[str, object]]:
    """Every look of a head at the very token it was about to write, in a document."""
    heads = asked.view.trace.heads()
    return [
        {"token": at, "head": str(heads[h]), "key": key, "document": name}
        for n, at in enumerate(asked.written)
        for h, key in enumerate(asked.looked_up[:, n].tolist())
        for name, place in zip(asked.names, asked.places, strict=True)
        if key in place
    ]
