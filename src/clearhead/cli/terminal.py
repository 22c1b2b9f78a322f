"""Where the command prints: a terminal with colours, or plain lines into a pipe or a file."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PIPED = 120  # letters in a line of what no terminal shows


def console(*, piped: int = PIPED) -> Console:
    """What to print tables and coloured text with; plain and `piped` letters wide where no terminal shows it."""
    from rich.console import Console

    made = Console(file=sys.stdout, highlight=False)
    return made if made.is_terminal else Console(file=sys.stdout, highlight=False, width=piped, no_color=True)


def columns(most: int = 100) -> int:
    """Letters a line may have: as many as the terminal (or COLUMNS) has, 60 to `most`; `most` into a pipe or a file."""
    return min(most, max(60, shutil.get_terminal_size((most, 24)).columns))
