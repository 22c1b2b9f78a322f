"""The `clearhead` command. Nothing here imports torch until a command that needs it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clearhead import __version__
from clearhead.cli.doctor import doctor
from clearhead.cli.look import look
from clearhead.errors import ClearheadError

app = typer.Typer(
    name="clearhead",
    help="See what every attention head is looking at: exact, at any length.",
    epilog="Start with: clearhead look",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(look)
app.command()(doctor)


def _version(wanted: bool) -> bool:
    if wanted:
        print(f"clearhead {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command: what cannot be used is one line on stderr and exit code 2; Ctrl-C is exit code 130."""
    try:
        app()
    except ClearheadError as error:
        print(f"clearhead: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        raise SystemExit(0) from None
