"""`clearhead roles`: what every head of a model does, calibrated on repeated random tokens and on a text."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.files import read_text
from clearhead.cli.look import MODELS, PASSAGE, loaded
from clearhead.errors import InputError


def roles(
    model: Annotated[str, typer.Argument(help=MODELS)] = "builtin",
    text: Annotated[
        str | None, typer.Option(help="The text for the second half of the table; default a passage.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read that text from a UTF-8 file.")] = None,
    period: Annotated[int, typer.Option(min=2, help="Random tokens before they repeat.")] = 50,
    seeds: Annotated[int, typer.Option(min=2, help="Random texts; the standard error is over these.")] = 4,
    every: Annotated[bool, typer.Option("--all", help="List the heads that earn no label too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every score of every head as JSON.")] = False,
) -> None:
    """Say what each head of a model does, and how sure that is.

    Calibrated: on random tokens that repeat, where nothing but position and repetition can be attended to. On a text: what the
    head does there. Every score stands beside what uniform attention would score on the same tokens.

    Examples:

      clearhead roles

      clearhead roles smollm2 --seeds 8

      clearhead roles builtin --file notes.txt --json
    """
    if text is not None and file is not None:
        raise InputError("--text and --file: give one of them, not both")
    whole = read_text(file) if file is not None else PASSAGE if text is None else text

    from clearhead.cli.roles_report import as_document, report
    from clearhead.roles import calibrate
    from clearhead.viewer import look

    read = loaded(model)
    least = 2 * period + len(read.before) + len(read.after)
    if least > read.context:
        raise InputError(f"--period {period}: twice that is more than the {read.context} tokens that {read.name} reads")
    if not as_json:
        print(f"{read.name}: {seeds} texts of {period} random tokens, twice each", file=sys.stderr, flush=True)
    calibrated = calibrate(read, period=period, seeds=seeds)
    view = look(read, whole)
    if as_json:
        import json

        print(json.dumps(as_document(view, calibrated, period, seeds), allow_nan=False))
        return
    report(view, calibrated, period, seeds, every=every)
