"""`clearhead survey`: what a model's heads do over a corpus."""

from __future__ import annotations

import math
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clearhead.cli.terminal import console
from clearhead.errors import InputError

if TYPE_CHECKING:
    from clearhead.survey import Progress, Survey

SHOWN = 20  # rows of a comparison
BEST = 3  # heads shown of every role
OTHERS = 8  # kinds of files shown that are left aside


def survey(
    model: Annotated[str | None, typer.Argument(help='"builtin", or any other model that `look` takes.')] = None,
    corpus: Annotated[
        list[str] | None,
        typer.Argument(
            help="Text files and .jsonl, also as .gz, .parquet; folders, glob patterns; a Hugging Face dataset on disk."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write, or to go on with.")] = None,
    field: Annotated[str, typer.Option(help="The field or column that holds the text.")] = "text",
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the longest sequence; longer documents are read in pieces, each by itself. "
            "Default: 1024, or the model's context where that is shorter."
        ),
    ] = None,
    observables: Annotated[str | None, typer.Option(help="What to measure, separated by commas. Default: all.")] = None,
    examples: Annotated[int, typer.Option(min=0, help="Strongest looks to keep of every head.")] = 8,
    largest: Annotated[int, typer.Option(min=1, help="Bytes of the largest document that is read.")] = 10_000_000,
    shard_documents: Annotated[int, typer.Option(min=1, help="Documents whose result is kept together.")] = 64,
    pack: Annotated[
        bool,
        typer.Option(
            "--pack/--no-pack", help="Put short documents together in one sequence, each unseen by the others."
        ),
    ] = True,
    compare: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="BASE OTHER", help="Compare two finished surveys instead.")
    ] = None,
) -> None:
    """Survey what every head of a model does over a corpus.

    Under torchrun the corpus is shared among the processes, with the same result. Stopped at any time, also by kill -9, the
    same command goes on where it was.

    Examples:

      clearhead survey builtin texts/ --out found

      torchrun --nproc-per-node 2 -m clearhead survey builtin texts/ --out found

      clearhead survey builtin talks.jsonl --field body --length 512 --out talks

      clearhead survey --compare found talks
    """
    if compare is not None:
        if model is not None:
            raise InputError("MODEL and --compare: give one of them, not both")
        _compare(*compare)
        return
    if model is None or not corpus or out is None:
        raise InputError("survey: needs a MODEL, a CORPUS and --out FOLDER; see clearhead survey --help")

    import os

    from clearhead.models import load
    from clearhead.survey import Corpus, Options
    from clearhead.survey import survey as run

    first = os.environ.get("RANK", "0") == "0"
    given = {} if observables is None else {"observables": tuple(x.strip() for x in observables.split(","))}
    options = Options(length=length, examples=examples, shard_documents=shard_documents, pack=pack, **given)  # type: ignore[arg-type]
    texts = Corpus(corpus, field=field, largest=largest)
    if first and texts.others:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(texts.others.items())[:OTHERS])
        more = "" if len(texts.others) <= OTHERS else ", …"
        print(f"files of other kinds that are left aside: {kinds}{more}", file=sys.stderr)
    line = _Line() if first and sys.stderr.isatty() else None
    loaded = load(model, progress=print if first else None)
    before = signal.signal(signal.SIGTERM, _ended)
    try:
        found = run(loaded, texts, out, options, report=line)
    except (KeyboardInterrupt, _Ended) as end:
        if first:
            print(f"\nstopped; the same command goes on where {out} was left", file=sys.stderr)
        if isinstance(end, _Ended):
            raise SystemExit(128 + signal.SIGTERM) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if line is not None:
            line.end()
    if found is not None:
        _show(found)


class _Ended(BaseException):
    """SIGTERM: a scheduler, or torchrun when another rank has died."""


def _ended(*_: object) -> None:
    raise _Ended


class _Line:
    """One line that says how far every rank is."""

    def __init__(self) -> None:
        self.width = 0

    def __call__(self, everybody: list[Progress]) -> None:
        text = progress_line(everybody)
        print("\r" + text.ljust(self.width), end="", file=sys.stderr, flush=True)
        self.width = len(text)

    def end(self) -> None:
        """Leave the line."""
        if self.width:
            print(file=sys.stderr)


def progress_line(everybody: list[Progress]) -> str:
    """How far all ranks are, how fast, and how long it will take."""
    tokens, documents = (sum(getattr(x, name) for x in everybody) for name in ("tokens", "documents"))
    speeds = [x.speed for x in everybody if x.tokens]
    done = sum(x.done for x in everybody) / max(1, len(everybody))
    before = min((x.since for x in everybody if x.since is not None), default=0.0)
    begun = f", from {before:.0%}" if before >= 0.005 else ""  # of a run that goes on
    parts = [f"{done:4.0%}{begun}", f"{documents:,} documents", f"{tokens:,} tokens"]
    if speeds:
        each = f" ({' + '.join(f'{x:,.0f}' for x in speeds)})" if len(speeds) > 1 else ""
        parts.append(f"{sum(speeds):,.0f} tokens/s{each}")
    left = [
        (x.now - x.begun) * (1 - x.done) / (x.done - x.since)
        for x in everybody
        if x.since is not None and x.done > x.since
    ]
    if left:
        parts.append(_time(max(left)) + " left")
    return " · ".join(parts)


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _show(found: Survey) -> None:
    """What was read, and the heads that do something with a name."""
    from rich.table import Table

    told = found.summary
    print(
        f"{found.manifest['model']}: {_many(told['documents'], 'document')}, {told['tokens']:,} tokens, {told['heads']} heads"
    )
    if told["bad"]:
        bad = found.table("bad")
        print(f"not read: {_many(len(bad), 'document')}; bad.parquet lists " + ("them" if len(bad) > 1 else "it"))
        for reason, count in told["bad"].items():
            one = next(row for row in bad if row["reason"].startswith(reason))
            example = _shown(f"{one['name']}: {one['reason']}")
            print(f"  {example}" if count == 1 else f"  {count:,} × {reason}, the first {example}")
    roles: dict[str, list[dict[str, Any]]] = {}
    for row in found.table("roles"):
        if not math.isnan(row["score"]):
            roles.setdefault(row["role"], []).append(row)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("role", "head"):
        table.add_column(name, no_wrap=True)
    for name in ("score", "± error", "uniform", ""):
        table.add_column(name, justify="right")
    for role, rows in roles.items():
        ordered = sorted(rows, key=lambda r: -r["score"])
        earned = sum(r["labelled"] for r in rows)
        for n, row in enumerate(ordered[:BEST]):
            numbers = (f"{row['score']:.3f}", _number(row["standard_error"], 3), f"{row['uniform']:.3f}")
            mark = "labelled" if row["labelled"] else ""
            table.add_row(role if n == 0 else "", f"L{row['layer']}H{row['head']}", *numbers, mark)
        if earned > BEST:
            table.add_row("", f"and {earned - BEST} more", "", "", "", "labelled")
    if roles:
        console().print(table)
        print(
            "score: mean over documents, ± its standard error; uniform: what uniform attention scores there; "
            "labelled: well above it"
        )
        if told["documents"] < 2:
            print("± is missing: how much documents differ takes two of them to say")
    print(f"wrote {found.folder}; to see it in the browser: clearhead view {shlex.quote(str(found.folder))}")


def _compare(base: Path, other: Path) -> None:
    from rich.table import Table

    from clearhead.survey import compare, load

    surveys = [load(base), load(other)]
    rows, no_role = compare(*surveys), ["·" if each.table("roles") else "not measured" for each in surveys]
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("head", "observable"):
        table.add_column(name, no_wrap=True)
    for name in ("base", "other", "difference", "± error", "z"):
        table.add_column(name, justify="right")
    table.add_column("role", no_wrap=True)
    for row in rows[:SHOWN]:
        numbers = [_number(row[name], 4) for name in ("base", "other", "difference", "standard_error")]
        before, after = (row[f"{name}_role"] or none for name, none in zip(("base", "other"), no_role, strict=True))
        role = before if before == after else f"{before} → {after}"
        table.add_row(f"L{row['layer']}H{row['head']}", row["observable"], *numbers, _number(row["z"], 1), role)
    for name, found in zip(("base ", "other"), surveys, strict=True):
        told = found.summary
        print(
            f"{name} {found.folder}: {found.manifest['model']}, {told['documents']:,} documents, {told['tokens']:,} tokens"
        )
    print()
    console().print(table)
    if len(rows) > SHOWN:
        print(f"… and {len(rows) - SHOWN} smaller differences; clearhead.survey.compare gives all")
    print(f"to see them in the browser: clearhead view {shlex.join(map(str, (base, other)))}")


def _number(x: float, digits: int) -> str:
    return "·" if math.isnan(x) else f"{x:z.{digits}f}"


def _shown(text: str) -> str:
    """On one line, with nothing in it that a terminal would obey."""
    from clearhead.tokens import visible

    return visible(text).replace("·", " ")


def _many(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
