"""`clearhead view`: traces and surveys in the browser. `clearhead export`: a trace as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clearhead.cli.files import check_writable, write_whole
from clearhead.errors import InputError

PORT = typer.Option(min=0, max=65535, help="The port of 127.0.0.1 to serve on; 0 takes one that is free.")


def view(
    shown: Annotated[
        list[Path],
        typer.Argument(metavar="TRACES...", help="Files that trace.save or look --save wrote, or folders of surveys."),
    ],
    port: Annotated[int, PORT] = 0,
    browser: Annotated[bool, typer.Option(help="Open a browser; without it the address is only printed.")] = True,
) -> None:
    """Show traces in the browser: every head, zoomed from the whole to one weight, the text, rollout, two runs compared.

    Of the folder that clearhead survey wrote: every head over the whole corpus, its distributions, its strongest looks
    with their text, two surveys compared.

    Served on this machine alone, to whoever has the address that is printed. Nothing is fetched from elsewhere.

    Examples:

      clearhead view run.trace

      clearhead view before.trace after.trace --no-browser --port 8765

      clearhead view found tuned
    """
    from clearhead.cli.serving import gallery, serve

    serve(gallery(shown), port=port, browser=browser)


def export(
    trace: Annotated[Path, typer.Argument(help="A file that trace.save or look --save wrote.")],
    out: Annotated[Path, typer.Argument(help="The page to write.")],
    head: Annotated[
        list[str] | None,
        typer.Option(help="A head whose exact weights come first, for example L2H3; may be given several times."),
    ] = None,
    most: Annotated[
        float, typer.Option("--max-mb", min=0.1, help="Megabytes the page may have; it says what was left out.")
    ] = 20,
) -> None:
    """Write a trace as one page that needs no server and no network.

    Examples:

      clearhead export run.trace run.html

      clearhead export run.trace small.html --head L2H3 --max-mb 2
    """
    check_writable("OUT", out)
    if trace.is_dir():
        raise InputError(f"{trace}: is a folder; export takes a trace, and clearhead view {trace} shows a survey")

    from clearhead.addresses import Head
    from clearhead.cli.serving import read
    from clearhead.viewer import single

    wanted = [Head.parse(name) for name in head or []]
    content = single(read([trace])[0], heads=wanted, most=most).encode("utf-8")
    write_whole("OUT", out, content)
    print(f"wrote {out}, {len(content) / 1e6:.1f} MB")
