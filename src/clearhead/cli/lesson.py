"""`clearhead lesson`: attention from a loop to the kernel, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.files import check_writable, write_whole


def lesson(
    rung: Annotated[
        str | None, typer.Option(metavar="N", help="The page to start at, 0 to 10, or an aside such as 4a.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Print all pages, one after the other.")] = False,
    text: Annotated[str | None, typer.Option(help="A text of your own, whose words are the tokens.")] = None,
    time: Annotated[int | None, typer.Option(metavar="T", help="How many tokens, 1 to 64 [default: 8].")] = None,
    width: Annotated[
        int | None, typer.Option(metavar="C", help="Numbers a token, 1 to 64 [default: 2, and 32 from rung 4 on].")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 1337,
    notebook: Annotated[Path | None, typer.Option(help="Write the lesson as a Jupyter notebook.")] = None,
) -> None:
    """Learn how attention works: eight rungs from a loop to this library's kernel, each equal to the one before.

    In a terminal the pages turn with the arrow keys; into a pipe or a file they are printed.

    Examples:

      clearhead lesson

      clearhead lesson --rung 4 --text "The king is dead. Long live the king."

      clearhead lesson --all | less
    """
    if notebook is not None:
        check_writable("--notebook", notebook)

    import sys

    from rich.console import Console

    from clearhead.lesson.book import Book
    from clearhead.lesson.pages.contents import KEYS
    from clearhead.lesson.settings import Settings
    from clearhead.lesson.terminal import render

    book = Book(Settings(time=time, width=width, seed=seed, text=text))
    if rung is not None and rung not in KEYS:
        book.page(rung)  # raises, and says which there are
    if notebook is not None:
        from clearhead.lesson.notebook import notebook as as_notebook

        pages = [book.page(key) for key in KEYS]
        write_whole("--notebook", notebook, as_notebook(pages).encode("utf-8"))
        print(f"wrote {notebook}")
        return
    console = Console(file=sys.stdout, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, highlight=False, width=100, no_color=True)
    elif sys.stdin.isatty() and not everything and not console.is_dumb_terminal:
        from clearhead.lesson.screen import Screen

        Screen(book, console, rung or KEYS[0]).run()
        return
    keys = KEYS if rung is None or everything else (rung,)
    for key in keys:
        if console.is_terminal:
            console.print(render(book.page(key)))
            continue
        with console.capture() as caught:
            console.print(render(book.page(key)))
        print("\n".join(line.rstrip() for line in caught.get().splitlines()))
