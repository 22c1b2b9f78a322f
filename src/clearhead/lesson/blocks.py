"""What a page of the lesson is made of. Terminal, notebook and browser each show the same blocks in their own way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Shade = Literal["weight", "signed", "plain"]


@dataclass(frozen=True)
class Say:
    """A paragraph. `code` stands in backticks, a **term** in double stars where it first appears."""

    text: str


@dataclass(frozen=True)
class Source:
    """Code of the package, fetched from it: `name` as it is imported from `module`."""

    name: str
    module: str
    code: str


@dataclass(frozen=True)
class Ran:
    """The line that made the numbers which follow. It runs, in the notebook and in the tests."""

    code: str


@dataclass(frozen=True)
class Grid:
    """A small matrix with its numbers: `name` is the expression that gives it, or, where that is long, `code` is.

    NaN is a cell that is not there. note: what the eye should look for.
    """

    name: str
    shape: str
    values: tuple[tuple[float, ...], ...]
    shade: Shade = "signed"
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    decimals: int = 4
    note: str = ""
    code: str = ""


@dataclass(frozen=True)
class Grids:
    """Matrices to be seen beside each other."""

    items: tuple[Grid, ...]


@dataclass(frozen=True)
class Equal:
    """Two results that must be the same, and how far apart they are, measured on the spot."""

    what: str
    code: str  # the expression that measures it
    difference: float
    least: float = 2e-5  # float32, numbers of size 1, sums of up to 64 terms in another order

    @property
    def holds(self) -> bool:
        """Whether the difference is rounding."""
        return self.difference <= self.least


@dataclass(frozen=True)
class Table:
    """Rows of words and numbers, already written out."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""
    wide: bool = False  # the last column holds prose


@dataclass(frozen=True)
class Point:
    """What one length costs."""

    tokens: int
    operations: int
    largest: int  # numbers in the largest tensor made on the way
    seconds: float
    beside: float | None = None  # seconds of what it is compared with


@dataclass(frozen=True)
class Cost:
    """What a rung costs as T grows, measured on the machine that shows it."""

    number: int  # of the rung
    operations: str  # what is counted
    points: tuple[Point, ...]
    beside: str = ""  # what it is compared with
    note: str = ""

    @property
    def head(self) -> list[str]:
        """What the columns are."""
        return ["T", self.operations, "largest tensor", "time", *([self.beside] if self.beside else [])]

    @property
    def rows(self) -> list[list[str]]:
        """A row a length, written out."""
        return [
            [count(p.tokens), count(p.operations), count(p.largest), duration(p.seconds)]
            + ([] if p.beside is None else [duration(p.beside)])
            for p in self.points
        ]


@dataclass(frozen=True)
class Try:
    """Something to play with in the browser; `kind` says which, `data` holds what it shows."""

    kind: str
    title: str
    text: str
    data: dict[str, Any] = field(hash=False)


Block = Say | Source | Ran | Grids | Equal | Table | Cost | Try


@dataclass(frozen=True)
class Page:
    """One screen: a key such as 4 (a rung) or 4a (an aside), the question it answers, and its blocks."""

    key: str
    title: str
    question: str
    blocks: tuple[Block, ...]


def grid(
    name: str,
    shape: str,
    tensor: Tensor,
    *,
    shade: Shade = "signed",
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    decimals: int = 4,
    note: str = "",
    code: str = "",
) -> Grid:
    """A `Grid` of a two-dimensional tensor.

    >>> import torch
    >>> grid("x", "T × C", torch.ones(1, 2)).values
    ((1.0, 1.0),)
    """
    values = tuple(tuple(float(x) for x in row) for row in tensor.detach().tolist())
    return Grid(name, shape, values, shade, tuple(rows), tuple(columns), decimals, note, code)


def written(x: float, decimals: int = 4) -> str:
    """A number as the lesson writes it: "-inf" for minus infinity, nothing for NaN, and no minus before a rounded 0.

    >>> written(-0.44071), written(-float("inf")), written(-0.00001), written(float("nan"))
    ('-0.4407', '-inf', '0.0000', '')
    """
    if math.isnan(x):
        return ""
    text = f"{x:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


def count(n: int) -> str:
    """A whole number with its thousands apart.

    >>> count(65792)
    '65,792'
    """
    return f"{n:,}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(0.00234), duration(0.0000123), duration(1.5)
    ('2.34 ms', '12 µs', '1.50 s')
    """
    if seconds < 1e-4:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
