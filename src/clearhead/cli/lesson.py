"""`clearhead lesson`: attention from a loop to the kernel, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clearhead.cli import terminal
from clearhead.cli.files import check_writable, write_whole
from clearhead.errors import InputError

if TYPE_CHECKING:
    from rich.status import Status

    from clearhead.lesson import Book


def lesson(
    rung: Annotated[
        str | None, typer.Option(metavar="N", help="The page to start at, 0 to 10, or an aside such as 4a.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print all pages, one after the other.")] = False,
    text: Annotated[str | None, typer.Option(help="A text of your own, whose words are the tokens.")] = None,
    time: Annotated[int | None, typer.Option(metavar="T", help="How many tokens, 1 to 64; default 8.")] = None,
    width: Annotated[
        int | None, typer.Option(metavar="C", help="Numbers a token, 1 to 64; default 2, and 32 from rung 4 on.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 1337,
    opened: Annotated[
        bool, typer.Option("--open", help="Show it in the browser, computed there as you change it.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write it as one page that needs no server.")] = None,
    notebook: Annotated[Path | None, typer.Option(help="Write it as a Jupyter notebook.")] = None,
    exercise: Annotated[
        int | None, typer.Option(metavar="N", help="Write exerciseN.py, for you to fill in, 1 to 8.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget which exercises were solved.")] = False,
) -> None:
    """Learn how attention works: eight rungs from a loop to this library's kernel, each equal to the one before.

    In a terminal the pages turn with the arrow keys; into a pipe or a file they are printed.

    Examples:

      clearhead lesson

      clearhead lesson --rung 4 --text "The king is dead. Long live the king."

      clearhead lesson --open

      clearhead lesson --exercise 4
    """
    asked = {"--open": opened, "--html": html, "--notebook": notebook, "--exercise": exercise, "--reset": reset}
    given = [option for option, value in asked.items() if value not in (None, False)]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)}: give one of them")
    for option, path in (("--html", html), ("--notebook", notebook)):
        if path is not None:
            check_writable(option, path)
    if exercise is not None or reset:
        _exercises(exercise)
        return

    from clearhead.lesson import Book, Settings

    book = Book(Settings(time=time, width=width, seed=seed, text=text))
    if rung is not None:
        book.check(rung)
    if html is not None or notebook is not None:
        import sys

        if sys.stderr.isatty():
            print("computing and measuring all pages, some ten seconds …", file=sys.stderr, flush=True)
    if opened:
        from clearhead.lesson.serve import serve

        serve(book.settings, rung)
    elif html is not None:
        from clearhead.lesson.page import page

        with _waiting("computing every number of the page, and what each rung costs here"):
            whole = page(book.settings)
        write_whole("--html", html, whole.encode("utf-8"))
        print(f"wrote {html}")
    elif notebook is not None:
        from clearhead.lesson.notebook import notebook as as_notebook

        with _waiting("computing every number of the notebook"):
            whole = as_notebook(book.pages())
        write_whole("--notebook", notebook, whole.encode("utf-8"))
        print(f"wrote {notebook}")
    else:
        _show(book, rung, everything)


def _waiting(what: str) -> Status:
    """Says what takes so long, where somebody sees it, and is gone afterwards."""
    from rich.console import Console

    return Console(stderr=True).status(what)


def _show(book: Book, rung: str | None, everything: bool) -> None:
    """Turn pages in a terminal; print them where there is none, or all are wanted."""
    import sys

    from clearhead.lesson.pages.contents import KEYS
    from clearhead.lesson.terminal import render

    console = terminal.console(piped=terminal.columns())
    if console.is_terminal and sys.stdin.isatty() and not everything and not console.is_dumb_terminal:
        from clearhead.lesson.screen import Screen

        Screen(book, console, rung or KEYS[0]).run()
        return
    plain = not console.is_terminal
    for key in KEYS if rung is None or everything else (rung,):
        if not plain:
            console.print(render(book.page(key)))
            continue
        with console.capture() as caught:
            console.print(render(book.page(key)))
        print("\n".join(line.rstrip() for line in caught.get().splitlines()))


def _exercises(number: int | None) -> None:
    """Write an exercise, or, without a number, forget which were solved."""
    from clearhead.lesson import exercises, progress

    if number is None:
        done = progress.reset()
        print(f"forgot {done} solved exercise{'' if done == 1 else 's'}")
        return
    path = Path(f"exercise{number}.py")
    exercises.write(number, path)
    print(f"wrote {path}: write its function, then run  clearhead check {path}")
