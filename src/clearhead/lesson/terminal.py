"""The lesson's pages as text for a terminal, coloured or plain."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.rule import Rule
from rich.segment import Segment
from rich.syntax import Syntax
from rich.table import Table as RichTable
from rich.text import Text

from clearhead.lesson.blocks import (
    Block,
    Cost,
    Equal,
    Grids,
    Page,
    Ran,
    Say,
    Source,
    Table,
    Try,
)
from clearhead.lesson.matrix import Beside, Matrix
from clearhead.lesson.source import fitted

PROSE = 88  # columns of prose: longer lines are hard to read
EIGHTHS = " ▏▎▍▌▋▊▉█"
BAR = 24
PROMPT, MORE = ">>>", "..."


def render(page: Page) -> RenderableType:
    """A page as something rich can print, at any width from 60 columns."""
    head = Text.assemble((f" {page.key} ", "reverse bold"), "  ", (page.question, "bold"))
    # The title stands in the rule; the question is what the page is about.
    parts: list[RenderableType] = [Rule(page.title, align="left", style="dim"), Text(), head, Text()]
    for block, after in zip(page.blocks, [*page.blocks[1:], None], strict=True):
        shown = _block(block)
        if shown is not None:
            together = isinstance(block, Equal) and isinstance(after, Equal)
            parts += [shown] if together else [shown, Text()]
    return Group(*parts)


def _block(block: Block) -> RenderableType | None:
    match block:
        case Say():
            return _Prose(said(block.text))
        case Source():
            return _Code(block)
        case Ran():
            return _Ran(block)
        case Grids():
            return Beside([Matrix(item) for item in block.items])
        case Equal():
            return _equal(block)
        case Table():
            return _table(block)
        case Cost():
            return _Costs(block)
        case Try():  # for the browser
            return None


def said(text: str) -> Text:
    """Prose with its code and its terms set apart."""
    found = Text()
    for part in re.split(r"(`[^`]+`|\*\*.+?\*\*)", text):
        if part.startswith("`"):
            found.append(part[1:-1], "cyan")
        elif part.startswith("**"):
            found.append(part[2:-2], "bold")
        else:
            found.append(part)
    return found


class _Prose:
    def __init__(self, text: Text) -> None:
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        for line in self.text.wrap(console, min(PROSE, options.max_width)):
            line.rstrip()
            yield line


class _Code:
    """Source fitted to the width, with where it comes from."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        width = options.max_width - 2
        yield Text(f"{self.source.module.replace('.', '/')}.py", "dim")
        yield _bar(Syntax(fitted(self.source.code, width), "python", theme="ansi_dark", background_color="default"))


class _Ran:
    def __init__(self, ran: Ran) -> None:
        self.ran = ran

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        lines = fitted(self.ran.code, options.max_width - 4).splitlines()
        prompts = [MORE if line.startswith(" ") else PROMPT for line in lines]
        prompted = "\n".join(f"{p} {line.removeprefix('    ')}" for p, line in zip(prompts, lines, strict=True))
        yield Syntax(prompted, "pycon", theme="ansi_dark", background_color="default")


def _bar(inner: RenderableType) -> RenderableType:
    """A line to the left of what is code."""
    return _Barred(inner)


class _Barred:
    def __init__(self, inner: RenderableType) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        for line in console.render_lines(self.inner, options.update(width=options.max_width - 2), pad=False):
            yield Text("│ ", "dim", end="")
            yield from line
            yield Text()


def _equal(equal: Equal) -> RenderableType:
    mark, style = ("=", "bold green") if equal.holds else ("≠", "bold red")
    said = "equal" if equal.holds else "NOT equal"
    line = Text.assemble((f"{mark} ", style), f"{equal.what}: ", (said, style), ", max difference ")
    line.append(f"{equal.difference:.1e}" if equal.difference else "0", "bold")
    return _Prose(line)


def _table(table: Table) -> RenderableType:
    shown = RichTable(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0), show_header=any(table.head))
    for n, name in enumerate(table.head):
        numbers = not table.wide and all(_is_number(row[n]) for row in table.rows)
        last = n == len(table.head) - 1
        shown.add_column(name, justify="right" if numbers else "left", no_wrap=not last, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(cell) for cell in row))
    if not table.caption:
        return shown
    return Group(shown, _Prose(Text(table.caption, "dim italic")))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d,.]+(e-?\d+)?( MiB|%)?|-inf|", text) is not None


class _Costs:
    """What a rung costs, a row a length, with a bar for the time."""

    def __init__(self, cost: Cost) -> None:
        self.cost = cost

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        cost = self.cost
        bar = min(BAR, options.max_width - 68) if cost.beside else min(BAR, options.max_width - 55)
        table = RichTable(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
        for name in cost.head:
            table.add_column(name, justify="right", no_wrap=True)
        if bar > 5:
            table.add_column("", no_wrap=True)
        longest = max(point.seconds for point in cost.points)
        for point, cells in zip(cost.points, cost.rows, strict=True):
            table.add_row(*cells, *([_eighths(point.seconds / longest, bar)] if bar > 5 else []))
        yield Text("What it costs as T grows: one sequence, measured here and now", "bold")
        yield table
        if cost.note:
            yield _Prose(Text(cost.note, "dim italic"))


def _eighths(share: float, columns: int) -> str:
    eighths = max(1, round(share * columns * 8))
    return "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
