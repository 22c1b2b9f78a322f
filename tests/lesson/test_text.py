"""The code shown is the ladder's own; a narrow screen changes how it is broken and nothing else; terms are introduced once."""

from __future__ import annotations

import ast
import importlib
import io
import json
import re
from pathlib import Path

import pytest
from lessons import LESSONS, blocks, lesson
from rich.console import Console

from clearhead import ladder
from clearhead.lesson.blocks import Equal, Grids, Ran, Say, Source, Try
from clearhead.lesson.costs import cost
from clearhead.lesson.source import fitted, source
from clearhead.lesson.terminal import render

SOURCES = [block for _, block in blocks("default", Source)]


@pytest.mark.parametrize("shown", SOURCES, ids=lambda s: s.name)
def test_code_on_the_page_is_the_code_that_runs(shown: Source) -> None:
    file = importlib.import_module(shown.module).__file__
    text = Path(str(file)).read_text(encoding="utf-8")
    for line in shown.code.splitlines():
        assert line + "\n" in text
    (here,) = ast.parse(shown.code).body
    there = next(n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == shown.name)
    there.decorator_list = []  # torch.no_grad says nothing to a reader
    assert ast.get_docstring(there), f"{shown.name} has no docstring to leave out"
    there.body = there.body[1:]
    assert ast.dump(here) == ast.dump(there)


def test_every_rung_shows_its_own_function() -> None:
    shown = {page.key: [b.name for b in page.blocks if isinstance(b, Source)] for page in lesson("default")}
    for step in ladder.RUNGS:
        assert step.name in shown[str(step.number)]
    asides = [key for key in shown if not key.isdigit()]
    assert all(shown[key] for key in asides), "an aside has code that runs"


@pytest.mark.parametrize("width", [60, 76, 100, 118])
@pytest.mark.parametrize("shown", SOURCES, ids=lambda s: s.name)
def test_code_fitted_to_a_width_is_the_same_code(shown: Source, width: int) -> None:
    lines = fitted(shown.code, width)
    assert ast.dump(ast.parse(lines)) == ast.dump(ast.parse(shown.code))
    assert max(map(len, lines.splitlines())) <= width

    def comments(code: str) -> list[str]:
        return sorted(re.findall(r"[^\s#]+", " ".join(re.findall(r"# (.*)", code))))

    assert comments(lines) == comments(shown.code)


def test_a_function_without_a_docstring_is_shown_whole() -> None:
    from clearhead.lesson import costs

    assert source(costs._five).code.startswith("def _five(*layers: Any) -> Any:\n    return ladder.multi_head")


def rendered(name: str, width: int, *, colour: bool = False) -> str:
    out = io.StringIO()
    console = Console(
        width=width, file=out, highlight=False, force_terminal=colour, color_system="truecolor" if colour else None
    )
    for page in lesson(name):
        console.print(render(page))
    console.print(render(rung_with_costs()))
    return out.getvalue()


def rung_with_costs():
    from dataclasses import replace

    page = next(p for p in lesson("default") if p.key == "2")
    return replace(page, blocks=(*page.blocks, cost(2, (4, 8))))


@pytest.mark.parametrize("name", LESSONS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    from rich.cells import cell_len

    text = rendered(name, width)
    assert "\x1b" not in text
    wide = [line for line in text.splitlines() if cell_len(line) > width]
    assert not wide


def test_numbers_stand_on_the_terminal_as_the_seed_wrote_them() -> None:
    text = rendered("default", 80)
    assert "7  -0.4511  -0.1031  -0.2077   0.1475  -0.1997  -0.1464   0.1608   0.1576" in text
    assert "7  0.0845  0.1197  0.1078  0.1537  0.1086  0.1146  0.1558  0.1553" in text
    assert re.search(r"= rung 6 and rung 5: equal, max difference \d\.\de-\d\d", text)
    assert "What it costs as T grows" in text


def test_weights_have_a_ground_that_is_lighter_the_larger_they_are() -> None:
    text = rendered("default", 80, colour=True)
    grounds = {}
    for shown in ("1.0000", "0.5000", "0.1250"):
        r, g, b = re.search(rf"\x1b\[38;2;[\d;]+48;2;(\d+);(\d+);(\d+)m +{shown}", text).groups()
        grounds[shown] = 0.2126 * int(r) + 0.7152 * int(g) + 0.0722 * int(b)
    assert grounds["1.0000"] > grounds["0.5000"] > grounds["0.1250"]


def test_a_broken_equality_would_be_told() -> None:
    from clearhead.lesson.blocks import Page

    out = io.StringIO()
    page = Page("1", "t", "q?", (Equal("this and that", "0", 0.5), Equal("these", "0", 0.0)))
    Console(file=out, width=80).print(render(page))
    assert "≠ this and that: NOT equal, max difference 5.0e-01" in out.getvalue()
    assert "= these: equal, max difference 0" in out.getvalue()


def test_large_matrices_lose_decimals_then_columns() -> None:
    text = rendered("long", 60)
    assert "in hundredths" in text
    text = rendered("long", 80)
    assert "in hundredths" in text
    assert "18 of 23 columns" not in text  # 23 weights fit, in hundredths


def test_terms_are_introduced_once_and_not_used_before() -> None:
    introduced: dict[str, str] = {}
    earlier = ""
    for page in lesson("default"):
        for block in page.blocks:
            if not isinstance(block, Say):
                continue
            for term in re.findall(r"\*\*(.+?)\*\*", block.text):
                if term.endswith(".") or (" " in term.strip() and len(term) > 24):
                    continue  # a statement in bold
                word = term.lower()
                assert word not in introduced, f"{term}: on page {page.key} and on {introduced[word]}"
                assert not re.search(rf"\b{re.escape(word)}\b", earlier.lower()), (
                    f"{term} is used before page {page.key}"
                )
                introduced[word] = page.key
            earlier += block.text + "\n"
    assert {"softmax", "query", "key", "value", "cache", "tile", "variance", "weights", "score", "mask"} <= set(
        introduced
    )


def test_prose_is_short() -> None:
    for page, say in blocks("default", Say):
        assert len(re.sub(r"[`*]", "", say.text).split()) <= 80, (page.key, say.text)


def test_every_page_has_a_question_and_every_rung_something_to_see() -> None:
    for page in lesson("default"):
        assert page.question.endswith("?")
    for step in ladder.RUNGS:
        page = next(p for p in lesson("default") if p.key == str(step.number))
        assert page.question == step.question
        assert any(isinstance(block, Grids | Try) for block in page.blocks) or step.number == 8
        assert any(isinstance(block, Ran) for block in page.blocks)


def test_what_the_browser_plays_with_is_json() -> None:
    kinds = set()
    for name in LESSONS:
        for _, block in blocks(name, Try):
            json.dumps(block.data, allow_nan=False)
            kinds.add(block.kind)
    assert kinds == {"pair", "edge", "scale", "tiles", "cache"}
