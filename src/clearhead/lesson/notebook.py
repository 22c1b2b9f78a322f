"""The lesson as a Jupyter notebook: the same pages, their code in cells that run."""

from __future__ import annotations

import hashlib
import html
import json
import math
from collections.abc import Iterable
from typing import Any

from torch import Tensor

from clearhead.lesson.blocks import (
    Block,
    Cost,
    Equal,
    Grid,
    Grids,
    Page,
    Ran,
    Say,
    Shade,
    Source,
    Table,
    Try,
    grid,
    written,
)
from clearhead.lesson.source import used_names
from clearhead.viewer.colour import ink_on, ramp

SETUP = """\
import torch

from clearhead import Causal, explain
from clearhead.ladder import *
from clearhead.ladder.example import projected, sequence, three_rows
from clearhead.lesson import Settings
from clearhead.lesson.costs import cost
from clearhead.lesson.experiments import cache_bytes, carried, cross_head, encoder_head, filled, moved, spread
from clearhead.lesson.notebook import ragged, show
from clearhead.lesson.pages.own import from_scores, real_head, watched
from clearhead.models import load
from clearhead.nn import rotate
"""
"""What the code of all pages needs."""


def notebook(pages: Iterable[Page]) -> str:
    """The notebook as JSON (nbformat 4.5). Its cells make every number again; nothing that was computed is stored in it."""
    cells = [
        _markdown(
            "# Attention, from a loop to the kernel\n\nRun the cells from top to bottom; change what you like, and run again."
        ),
        _code(SETUP + "\ntorch.set_grad_enabled(False)  # nothing is trained here"),
    ]
    written_here: set[str] = set()  # functions that cells before define; whoever changed one wants it used
    for page in pages:
        cells.append(_markdown(f"## {page.key}. {page.title}\n\n**{page.question}**"))
        for block in page.blocks:
            cells += _cells(block, written_here)
    for n, cell in enumerate(cells):  # names that are the same each time
        cell["id"] = hashlib.sha256(f"{n} {cell['source']}".encode()).hexdigest()[:12]
    return json.dumps(
        {
            "cells": cells,
            "metadata": {
                "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                "language_info": {"name": "python"},
            },
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        ensure_ascii=False,
        indent=1,
    )


def _cells(block: Block, written_here: set[str]) -> list[dict[str, Any]]:
    match block:
        case Say():
            return [_markdown(block.text)]
        case Source():
            uses = used_names(block)
            names = ", ".join(name for name in uses if name not in written_here)
            written_here.add(block.name)
            above = f"from {block.module} import {names}\n\n\n" if names else ""
            return [_code(above + block.code)]
        case Ran():
            return [_code(block.code)]
        case Grids():
            return [_code(f"show({item.code or item.name}, {_quoted(item)})") for item in block.items]
        case Equal():
            return [_markdown(f"{block.what.capitalize()}, the largest difference:"), _code(f"float({block.code})")]
        case Table():
            return [_markdown(_table(block))]
        case Cost():
            return [
                _markdown(f"What it costs as T grows, measured here. {block.note}"),
                _code(f"show(cost({block.number}))"),
            ]
        case Try():
            return []


def _quoted(item: Grid) -> str:
    return ", ".join([json.dumps(item.name), *([f"shade={item.shade!r}"] if item.shade != "signed" else [])])


def _table(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    lines = [line(table.head), line("---" for _ in table.head), *(line(row) for row in table.rows)]
    return "\n".join(lines) + (f"\n\n*{table.caption}*" if table.caption else "")


def _markdown(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def _code(text: str) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": text.rstrip()}


def ragged(rows: Iterable[Tensor]) -> Tensor:
    """The rows of rung 7, of head 0 of the first sequence, as one (T, T) with NaN where nothing is.

    >>> import torch
    >>> ragged([torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 2)])
    tensor([[1., nan],
            [1., 1.]])
    """
    flat = [row[0, 0, 0] for row in rows]
    made = flat[-1].new_full((len(flat), len(flat)), math.nan)
    for t, row in enumerate(flat):
        made[t, : t + 1] = row
    return made


def show(thing: Tensor | Cost, name: str = "", *, shade: Shade = "signed") -> Shown:
    """A matrix with shaded numbers, or what a rung costs, for a notebook.

    >>> import torch
    >>> show(torch.eye(2), "eye", shade="weight")
    eye  (2, 2)
    1.0000  0.0000
    0.0000  1.0000
    """
    return Shown(thing if isinstance(thing, Cost) else grid(name, str(tuple(thing.shape)), thing, shade=shade))


class Shown:
    """What `show` gives: text with a repr, a table in a notebook."""

    def __init__(self, shown: Grid | Cost) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        if isinstance(self.shown, Cost):
            return "\n".join("  ".join(cells) for cells in [self.shown.head, *self.shown.rows])
        head = f"{self.shown.name}  {self.shown.shape}".strip()
        return "\n".join([head, *("  ".join(written(v) or "·" for v in row) for row in self.shown.values)])

    def _repr_html_(self) -> str:
        if isinstance(self.shown, Cost):
            rows = "".join(
                f"<tr>{''.join(f'<td>{c}</td>' for c in cells)}</tr>" for cells in [self.shown.head, *self.shown.rows]
            )
            return f"<table>{rows}</table>"
        item = self.shown
        rows = "".join(f"<tr>{''.join(_cell(item, v) for v in row)}</tr>" for row in item.values)
        return f"<table><caption>{html.escape(item.name)} {html.escape(item.shape)}</caption>{rows}</table>"


def _cell(item: Grid, value: float) -> str:
    text = written(value)
    if item.shade != "weight" or not 0 < value <= 1:
        return f"<td>{text}</td>"
    ground = ramp(math.sqrt(value))
    r, g, b = ink_on(ground)
    return f'<td style="background:rgb{ground};color:rgb({r},{g},{b})">{text}</td>'
