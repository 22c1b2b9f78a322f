"""Small matrices in a terminal: numbers on a ground that says how large they are, side by side where they fit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clearhead.lesson.blocks import Grid, written
from clearhead.viewer.colour import RGB, on_ground, ramp

DARK: RGB = (24, 28, 36)
BELOW: RGB = (92, 182, 236)  # signed numbers: below 0
ABOVE: RGB = (238, 170, 58)  # and above
LABEL = 10  # columns of a row's label at most


class Matrix:
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


class Beside:
    """Matrices side by side where they fit, else below each other."""

    GAP = 3

    def __init__(self, items: Sequence[Matrix]) -> None:
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

    def _rows(self, width: int) -> Iterator[list[Matrix]]:
        row: list[Matrix] = []
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
