"""Code of the package as it stands in its file, and how it is fitted to a narrow screen."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import io
import textwrap
import tokenize
from collections.abc import Callable
from typing import Any

from clearhead.lesson.blocks import Source


@functools.cache
def source(function: Callable[..., Any]) -> Source:
    """The lines of a function without its docstring, which the reference has.

    >>> from clearhead.ladder import merge_heads
    >>> print(source(merge_heads).code)
    def merge_heads(heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)  # (B, H, T, D) -> (B, T, H, D) -> (B, T, H·D)
    """
    lines, _ = inspect.findsource(importlib.import_module(function.__module__))
    tree = ast.parse("".join(lines))
    node = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == function.__name__)
    first = node.body[0]
    said = range(0)
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        said = range(first.lineno, (first.end_lineno or first.lineno) + 1)
    kept = [lines[n - 1] for n in range(node.lineno, (node.end_lineno or node.lineno) + 1) if n not in said]
    return Source(function.__name__, function.__module__, "".join(kept).rstrip())


def used_names(shown: Source) -> list[str]:
    """Names of its module that a function needs, in alphabetical order.

    >>> from clearhead.ladder import mean_by_loop
    >>> used_names(source(mean_by_loop))
    ['MeanByLoop', 'Tensor', 'check_sequence', 'torch']
    """
    names = {node.id for node in ast.walk(ast.parse(shown.code)) if isinstance(node, ast.Name)}
    return sorted(names & vars(importlib.import_module(shown.module)).keys() - {shown.name})


@functools.cache
def fitted(code: str, width: int) -> str:
    """The same code in lines of at most `width`: comments wrap, and one that stood behind too long a line goes above it.

    >>> print(fitted("y = f(x)  # (B, T, C) -> (B, T, D)", 24))
    # (B, T, C) -> (B, T, D)
    y = f(x)
    """
    comments = {
        token.start[0]: token.start[1]
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type == tokenize.COMMENT
    }
    lines: list[str] = []
    block: list[str] = []  # lines of a comment that stands alone, to be wrapped as one
    for number, line in enumerate([*code.splitlines(), ""], start=1):
        at = comments.get(number)
        indent = line[: len(line) - len(line.lstrip())]
        if at is not None and not line[:at].strip():
            block.append(line)
            continue
        if block:
            lines += _comment(block, width)
            block = []
        if len(line) > width and at is not None:
            lines += _comment([indent + line[at:]], width)
            line = line[:at].rstrip()
        lines += _broken(line, width)
    return "\n".join(lines).rstrip()


def _comment(block: list[str], width: int) -> list[str]:
    if max(map(len, block)) <= width:
        return block
    indent = block[0][: len(block[0]) - len(block[0].lstrip())]
    text = " ".join(line.strip().lstrip("#").strip() for line in block)
    return textwrap.wrap(text, width, initial_indent=indent + "# ", subsequent_indent=indent + "# ")


def _broken(line: str, width: int) -> list[str]:
    """A line of code broken after commas, which here always stand inside brackets."""
    lines = []
    indent = " " * (len(line) - len(line.lstrip()) + 8)
    while len(line) > width and (at := _comma(line, len(indent), width)) > 0:
        lines.append(line[: at + 1])
        line = indent + line[at + 2 :]
    return [*lines, line]


def _comma(line: str, start: int, end: int) -> int:
    """The last comma before `end` inside the fewest brackets; 0 when there is none after `start`."""
    depth, found = 0, (99, 0)
    for at, c in enumerate(line[:end]):
        depth += (c in "([{") - (c in ")]}")
        if at >= start and line[at : at + 2] == ", " and depth <= found[0]:
            found = (depth, at)
    return found[1]
