"""The `clearhead` command. Nothing here imports torch until a command that needs it runs."""

from __future__ import annotations

import inspect
import io
import os
import sys
from typing import Annotated, NoReturn, cast

import typer

from clearhead import __version__
from clearhead.cli.bench import bench
from clearhead.cli.check import check
from clearhead.cli.doctor import doctor
from clearhead.cli.lesson import lesson
from clearhead.cli.look import look
from clearhead.cli.roles import roles
from clearhead.cli.survey import survey
from clearhead.cli.view import export, view
from clearhead.errors import ClearheadError

# Any option or argument that cannot be read. Of these errors typer exports only BadParameter, which is one kind of them.
USAGE = cast("type[typer.BadParameter]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="clearhead",
    help="See what every attention head is looking at: exact, at any length.",
    epilog="Start with: clearhead look",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (look, view, export, roles, check, lesson, survey, bench, doctor):
    paragraphs = inspect.cleandoc(command.__doc__ or "").split("\n\n")
    app.command(help="\n\n".join(" ".join(paragraph.split("\n")) for paragraph in paragraphs))(command)


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a letter shows "?" for it, and no traceback
    try:
        code = app(sys.argv[1:] or ["--help"], prog_name="clearhead", standalone_mode=False)
        sys.stdout.flush()
        raise SystemExit(code)
    except ClearheadError as error:
        _refuse(str(error))
    except USAGE as error:
        where = f" {error.ctx.info_name}" if error.ctx is not None and error.ctx.parent is not None else ""
        told = error.format_message().rstrip(".")
        if where == " look" and told.startswith("Got unexpected extra argument"):
            told += '; a text of several words stands in quotes: clearhead look "the whole text"'
        _refuse(f"{told}; see clearhead{where} --help")
    except (KeyboardInterrupt, typer.Abort):
        raise SystemExit(130) from None
    except BrokenPipeError:
        _seen_enough()
    except SystemExit as end:  # typer and rich make a 1 of it
        if isinstance(end.__context__, BrokenPipeError):
            _seen_enough()
        raise


def _seen_enough() -> NoReturn:
    """The reader of a pipe has gone, which is no failure; what Python still holds for it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0) from None


def _refuse(why: str) -> NoReturn:
    print("clearhead: " + " ".join(why.split("\n")), file=sys.stderr)
    raise SystemExit(2) from None
