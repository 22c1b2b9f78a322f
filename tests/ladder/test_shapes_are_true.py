"""The shape at the end of a line is the shape the line makes: every rung is run line by line and compared."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from ladder_cases import make_case
from torch import Tensor

from clearhead import ladder
from clearhead.ladder import example

SIZES = {"B": 2, "T": 7, "C": 4, "Hq": 6, "Hk": 2, "D": 3, "Dv": 5}
SHAPE = re.compile(r"\(([^()]*)\)")
CASE = make_case(2, 7, 4, 3, 5, kv_heads=2, group=3, dtype=torch.float32, seed=1)
FIVE = ladder.multi_head(CASE.x, *CASE.layers, heads=6, kv_heads=2)
ONE = make_case(2, 7, 4, 3, 5, kv_heads=1, group=1, dtype=torch.float32, seed=1)

RUNS: dict[str, Callable[[], Any]] = {
    "mean_by_loop": lambda: ladder.mean_by_loop(CASE.x),
    "three_by_three": lambda: ladder.three_by_three(CASE.x[0]),
    "mean_by_matmul": lambda: ladder.mean_by_matmul(CASE.x),
    "mean_by_softmax": lambda: ladder.mean_by_softmax(CASE.x),
    "prefix_mean": lambda: ladder.prefix_mean(CASE.x),
    "single_head": lambda: ladder.single_head(ONE.x, *ONE.layers),
    "multi_head": lambda: ladder.multi_head(CASE.x, *CASE.layers, heads=6, kv_heads=2),
    "online_softmax": lambda: ladder.online_softmax(FIVE.q, FIVE.k, FIVE.v, tile=3),
    "with_cache": lambda: ladder.with_cache(FIVE.q, FIVE.k, FIVE.v),
    "library_kernel": lambda: ladder.library_kernel(FIVE.q, FIVE.k, FIVE.v),
}


def said(function: Callable[..., Any]) -> tuple[Path, dict[int, tuple[list[str], list[str]]]]:
    """For each assignment to plain names in a function: line → (names, shapes said at the end of the line)."""
    path = Path(inspect.getsourcefile(inspect.unwrap(function)) or "")
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.FunctionDef) and node.name == function.__name__):
            continue
        for statement in ast.walk(node):
            if isinstance(statement, ast.Assign) and statement.lineno == statement.end_lineno:
                target = statement.targets[0]
                names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
                comment = lines[statement.lineno - 1][statement.end_col_offset :]
                found[statement.lineno] = (names, SHAPE.findall(comment)[-len(names) :] if names else [])
    return path, found


def mistakes(function: Callable[..., Any], run: Callable[[], Any]) -> tuple[int, list[str]]:
    """Run it; how many tensors were compared with what is said about them, and what was not true."""
    path, lines = said(function)
    wrong: list[str] = []
    checked = 0

    def finish(line: int, local: dict[str, Any]) -> None:
        nonlocal checked
        names, shapes = lines[line]
        if not any(isinstance(local[name], Tensor) for name in names):
            return
        if len(shapes) != len(names):
            wrong.append(f"line {line}: no shape for {names}")
            return
        sizes = {**SIZES, **{name: size for name, size in local.items() if isinstance(size, int)}}
        if "i" in local and "j" in local:  # rung 6 calls the sizes of a tile rows and columns
            sizes |= {"rows": local["i"].shape[0], "columns": local["j"].shape[1]}
        elif "i" in local:
            sizes |= {"rows": local["i"].shape[0]}
        for name, shape in zip(names, shapes, strict=True):
            checked += 1
            expected = eval(f"({shape.replace('·', '*')})", {}, sizes)  # noqa: S307 the project's own comments
            if tuple(local[name].shape) != expected:
                wrong.append(f"line {line}: {name} is {tuple(local[name].shape)}, said ({shape})")

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_name != function.__name__ or Path(frame.f_code.co_filename) != path:
            return None
        pending: list[int] = []

        def line(frame: FrameType, event: str, arg: Any) -> Any:
            if pending and event in ("line", "return"):
                finish(pending.pop(), frame.f_locals)
            if event == "line" and frame.f_lineno in lines:
                pending.append(frame.f_lineno)
            return line

        return line

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return checked, wrong


@pytest.mark.parametrize("name", RUNS)
def test_shapes_said_are_shapes_made(name: str) -> None:
    checked, wrong = mistakes(getattr(ladder, name), RUNS[name])
    assert not wrong
    assert checked >= 1


def test_shapes_of_the_examples_are_those_said() -> None:
    assert example.three_rows().shape == (3, 2)
    assert example.sequence(B=2, T=3, C=5).shape == (2, 3, 5)
    made = example.projected(B=2, T=3, C=5, head_size=7, heads=4, kv_heads=2)
    assert made.x.shape == (2, 3, 5)
    assert [made.query.out_features, made.key.out_features, made.value.out_features] == [28, 14, 14]
