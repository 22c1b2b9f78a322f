"""What `clearhead look --question` prints: for people, and as JSON."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from clearhead.cli import terminal
from clearhead.cli.report import what_ran
from clearhead.viewer.ask import Asked
from clearhead.viewer.colour import on_ground, ramp

SCHEMA = 1


def report(asked: Asked) -> None:
    """Print the answer, what it takes from each document, token by token, and the heads that take most."""
    console = terminal.console()
    for line in what_ran(asked.view):
        console.print(line, soft_wrap=True)
    console.print()
    pieces = asked.view.pieces
    answer = "".join(pieces[i] for i in asked.written).replace("·", " ").replace("↵", "\n").strip()
    console.print(Text(answer, "bold"))
    console.print()
    console.print(_total(asked))
    console.print()
    console.print(_by_token(asked))
    console.print()
    console.print(_readers(asked))
    console.print()
    console.print(f"[dim]{TOLD}[/]", soft_wrap=True)


TOLD = (
    "Weight: mean over all heads, of the query that wrote each token; uniform: what even attention would give. Heads rest on "
    "the first token when they have nothing to say. Looked up: how often a head, while a token was written, looked most at "
    "that very token in the document; by chance: if it looked anywhere alike. Weight shows where information can flow, not why "
    "the model answers as it does."
)


def _total(asked: Asked) -> Table:
    total = _table("the answer looks at", "tokens", "weight", "uniform", "looked up", "by chance", "")
    documents = len(asked.names)
    sizes = [*map(len, asked.places), 1, None, None]
    for n, (name, size, share, even) in enumerate(zip(asked.groups, sizes, asked.shares, asked.uniform, strict=True)):
        looks = (str(int(asked.lookups(n).sum())), f"{asked.by_chance[n]:.0f}") if n < documents else ("", "")
        bar = Text("█" * round(20 * share), "" if n < documents else "dim")
        total.add_row(name, "" if size is None else str(size), f"{share:.1%}", Text(f"{even:.1%}", "dim"), looks[0],
                      Text(looks[1], "dim"), bar)  # fmt: skip
    return total


def _by_token(asked: Asked) -> Table:
    documents = len(asked.names)
    table = _table("token written", *asked.names, "elsewhere", "looked up in")
    found = [asked.lookups(n).sum(0).tolist() for n in range(documents)]
    for n, (at, row) in enumerate(zip(asked.written, asked.by_token.tolist(), strict=True)):
        looks = ", ".join(f"{name} {found[d][n]}" for d, name in enumerate(asked.names) if found[d][n])
        table.add_row(asked.view.pieces[at], *_shares(row, documents), looks)
    return table


def _readers(asked: Asked) -> Table:
    documents = len(asked.names)
    table = _table("heads that look up most", *asked.names, "elsewhere", "looked up")
    for head, means, count in asked.readers():
        table.add_row(str(head), *_shares(means, documents), f"{count} of {len(asked.written)}")
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    left = ("the answer looks at", "token written", "heads that look up most", "looked up in", "")
    for name in names:
        table.add_column(
            name, justify="left" if name in left else "right", overflow="ellipsis", max_width=24, no_wrap=True
        )
    return table


def _shares(row: list[float], documents: int) -> list[Text]:
    """The weight on each document, and the rest."""
    cells = [_cell(x, shaded=True) for x in row[:documents]]
    return [*cells, _cell(sum(row[documents:]), shaded=False)]


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
