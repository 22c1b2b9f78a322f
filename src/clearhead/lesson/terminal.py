"""The lesson's pages as text for a terminal, coloured or plain."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
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
    Grid,
    Grids,
    Page,
    Ran,
    Say,
    Source,
    Table,
    Try,
    written,
)
from clearhead.lesson.source import fitted
from clearhead.viewer.colour import RGB, on_ground, ramp

PROSE = 88  # columns of prose: longer lines are hard to read
DARK: RGB = (24, 28, 36)
BELOW: RGB = (92, 182, 236)  # signed numbers: below 0
ABOVE: RGB = (238, 170, 58)  # and above
LABEL = 10  # columns of a row's label at most
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
            return _Beside([_Matrix(item) for item in block.items])
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


class _Matrix:
    """A grid of numbers, each on a ground that says how large it is."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    @property
    def _label(self) -> int:
        return min(LABEL, max((cell_len(row) + 1 for row in self.grid.rows), default=0))

    def lines(self, width: int, *, headed: bool = True) -> list[Text]:
        """All lines, none longer than width: with fewer decimals, then fewer columns, where one would be.

        headed: whether a line for the columns' names stands there also when they have none.
        """
        grid = self.grid
        columns = len(grid.values[0])
        label = self._label
        form = next((f for f in self._forms() if label + columns * f.width <= width), self._forms()[-1])
        shown = min(columns, (width - label) // form.width)
        head = Text.assemble((grid.name, "bold"), ("  " + grid.shape, "dim"), no_wrap=True)
        lines = [head]
        if grid.note or form.note or shown < columns:
            notes = [grid.note, form.note, f"{shown} of {columns} columns" if shown < columns else ""]
            lines.append(Text("; ".join(filter(None, notes)), "dim italic", no_wrap=True))
        if grid.columns:
            names = Text(" " * label)
            for name in grid.columns[:shown]:
                names.append(_right(name, form.width - 1) + " " if form.width > 3 else _right(name, form.width), "dim")
            lines.append(names)
        elif headed:
            lines.append(Text())
        top = self._top()
        for n, row in enumerate(grid.values):
            line = Text(no_wrap=True)
            line.append(_left(grid.rows[n], label) if grid.rows else "", "dim")
            for value in row[:shown]:
                line.append(form.write(value), _style(grid, value, top))
            lines.append(line)
        return [line if line.cell_len <= width else _cut(line, width) for line in lines]

    def _forms(self) -> list[_Form]:
        grid = self.grid
        widest = max((len(written(v, grid.decimals)) for row in grid.values for v in row), default=1)
        two = max((len(written(v, 2)) for row in grid.values for v in row), default=1)
        forms = [_Form(widest + 2, grid.decimals), _Form(two + 2, 2)]
        if grid.shade == "weight":
            forms.append(_Form(3, 0, "in hundredths", 100.0))
        return forms

    def _top(self) -> float:
        finite = [abs(v) for row in self.grid.values for v in row if math.isfinite(v)]
        return max(finite, default=1.0) or 1.0

    @property
    def narrowest(self) -> int:
        """Columns that it takes at full precision."""
        grid = self.grid
        head = cell_len(grid.name) + 2 + cell_len(grid.shape)
        return max(self._label + len(grid.values[0]) * self._forms()[0].width, head, cell_len(grid.note))


class _Form:
    """One way to write the numbers of a grid: columns a cell, decimals, a factor, and what to say about it."""

    def __init__(self, width: int, decimals: int, note: str = "", times: float = 1.0) -> None:
        self.width, self.decimals, self.note, self.times = width, decimals, note, times

    def write(self, value: float) -> str:
        text = written(value * self.times, self.decimals)
        if self.width == 3:
            return _right("" if text == "0" else text, 3)
        return _right(text, self.width - 1) + " "


def _style(grid: Grid, value: float, top: float) -> str:
    """Ground and ink of a number; next to nothing keeps the terminal's own, whether dark or light."""
    if not math.isfinite(value) or (grid.shade == "weight" and value == 0):
        return "dim"
    if grid.shade == "weight":
        ground = ramp(math.sqrt(value))
    elif grid.shade == "signed":
        share = min(1.0, abs(value) / top)
        if share < 0.04:
            return ""
        end = ABOVE if value > 0 else BELOW
        ground = (_mix(end[0], DARK[0], share), _mix(end[1], DARK[1], share), _mix(end[2], DARK[2], share))
    else:
        return ""
    return on_ground(ground)


def _mix(end: int, start: int, share: float) -> int:
    return round(start + (end - start) * share)


class _Beside:
    """Matrices side by side where they fit, else below each other."""

    GAP = 3

    def __init__(self, items: Sequence[_Matrix]) -> None:
        self.items = items

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType | Segment]:
        for n, row in enumerate(self._rows(options.max_width)):
            if n:
                yield Text()
            if len(row) == 1:
                yield from row[0].lines(options.max_width, headed=False)
                continue
            headed = any(item.grid.columns for item in row)
            blocks = [item.lines(item.narrowest, headed=headed) for item in row]
            high = max(map(len, blocks))
            for at in range(high):
                line = Text(no_wrap=True)
                for item, block in zip(row, blocks, strict=True):
                    part = block[at] if at < len(block) else Text()
                    line.append_text(part)
                    if item is not row[-1]:
                        line.append(" " * (item.narrowest - part.cell_len + self.GAP))
                line.rstrip()
                yield line

    def _rows(self, width: int) -> Iterator[list[_Matrix]]:
        row: list[_Matrix] = []
        used = 0
        for item in self.items:
            need = item.narrowest + (self.GAP if row else 0)
            if row and used + need > width:
                yield row
                row, used, need = [], 0, item.narrowest
            row.append(item)
            used += need
        if row:
            yield row


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


def _right(text: str, width: int) -> str:
    if cell_len(text) > width:
        text = _shorter(text, width)
    return " " * (width - cell_len(text)) + text


def _left(text: str, width: int) -> str:
    text = _shorter(text, width - 1) if cell_len(text) > width - 1 else text
    return text + " " * (width - cell_len(text))


def _shorter(text: str, width: int) -> str:
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 1 else set_cell_size(text, width)


def _cut(line: Text, width: int) -> Text:
    line = line.copy()
    line.truncate(width, overflow="ellipsis")
    return line
