"""`clearhead check`: somebody's attention against the truth, and the mistake by its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from clearhead.cli.files import check_writable, write_whole
from clearhead.cli.terminal import columns
from clearhead.errors import InputError

CAUSAL: dict[str, bool | str] = {"yes": True, "no": False, "end": "end", "start": "start"}


def check(
    candidate: Annotated[
        str, typer.Argument(help="FILE.py:NAME, a function, a class or a module.", metavar="FILE.py:NAME")
    ],
    kind: Annotated[
        str | None, typer.Option(help='"function" of query, key and value, or "head", "module", "layer" of x.')
    ] = None,
    causal: Annotated[
        str | None, typer.Option(help='"yes" or "no"; "end" or "start" ask for that alignment too.')
    ] = None,
    layout: Annotated[str | None, typer.Option(help="Of its tensors: bhtd, bthd, btd, td, btc, tbc or tc.")] = None,
    scale: Annotated[float | None, typer.Option(help="The scale that is meant, where it is not 1/√D.")] = None,
    window: Annotated[int | None, typer.Option(help="Keys a query is meant to see, itself included.")] = None,
    softcap: Annotated[float | None, typer.Option(help="The softcap that is meant.")] = None,
    args: Annotated[
        str | None,
        typer.Option(help="Arguments by name, for example head_size=16,dropout=0.0.", metavar="NAME=VALUE,…"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the numbers it is run on.")] = 0,
    device: Annotated[str | None, typer.Option(help="Where to run it, for example cuda.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for everything.")] = 60.0,
    memory: Annotated[float, typer.Option(help="GiB it may use.")] = 4.0,
    strict: Annotated[bool, typer.Option("--strict", help="Weaknesses are wrong too, not only mistakes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page.")] = None,
) -> None:
    """Is this attention right, and if not, what does it compute?

    Runs the code in a process of its own, works out how it is called, compares it with the truth in
    float64, and searches for the formula that gives what it gives. Exit code: 0 right, 1 wrong, 2 could
    not run.

    Examples:

      clearhead check lecture.py:Head

      clearhead check attention.py:attend --causal end --html report.html

      clearhead check model.py:Attention --args dim=64,heads=4 --json

      clearhead check exercise4.py
    """
    if causal is not None and causal not in CAUSAL:
        raise InputError(f"--causal {causal}: is none of yes, no, end, start")
    if html is not None:
        check_writable("--html", html)
    if memory <= 0:
        raise InputError(f"--memory {memory:g}: is not above 0; 4 (GiB) is the default")

    import sys

    from clearhead.check import check as run
    from clearhead.lesson.progress import number_of

    exercise = number_of(Path(candidate)) if candidate.endswith(".py") else None
    meant: dict[str, Any] = {
        "kind": kind,
        "causal": CAUSAL[causal] if causal else None,
        "layout": layout,
        "scale": scale,
    }
    if exercise is not None:
        from clearhead.lesson import exercises

        candidate, of_exercise = exercises.candidate(exercise, Path(candidate))
        meant |= of_exercise

    interactive = sys.stderr.isatty() and not as_json

    def progress(what: str) -> None:
        if interactive:
            print(f"\r\x1b[K{what} …"[:110], end="", file=sys.stderr, flush=True)

    report = run(
        candidate,
        **meant,
        window=window,
        softcap=softcap,
        args=None if args is None else _arguments(args),
        seed=seed,
        device=device,
        strict=strict,
        timeout=timeout,
        memory=int(memory * 2**30),
        progress=progress,
    )
    if interactive:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if exercise is not None:  # what was written, not what calls it
        report = dataclasses.replace(report, candidate=exercises.function_of(exercise))
    if html is not None:
        write_whole("--html", html, report.html().encode("utf-8"))
    if as_json:
        print(report.to_json())
    else:
        from clearhead.check.show import as_text

        print(as_text(report, colour=sys.stdout.isatty(), width=columns()))
        if html is not None:
            print(f"wrote {html}")
    if exercise is not None:
        said = exercises.settle(exercise, report)
        if not as_json:
            print(f"\n{said}")
    raise typer.Exit(report.exit_code)


def _arguments(text: str) -> dict[str, Any]:
    """`name=value,…` with numbers, words, True, False, None and tuples as Python writes them."""
    import ast

    found: dict[str, Any] = {}
    for part in _parts(text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip().isidentifier():
            raise InputError(f"--args {text}: {part!r} is not name=value")
        try:
            found[name.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            found[name.strip()] = value.strip()
    return found


def _parts(text: str) -> list[str]:
    """Cut at commas outside brackets."""
    parts, depth, current = [], 0, ""
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += letter
    return [*parts, current] if current.strip() else parts
