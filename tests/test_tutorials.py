"""What the tutorials show is what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

from clearhead import check

PAGES = Path(__file__).parent.parent / "docs" / "tutorials"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (PAGES / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_students_head_is_reported_as_the_page_shows(tmp_path):
    code = next(block for block in blocks("student.md", "python") if "class Head" in block)
    shown = next(block for block in blocks("student.md", "text") if "check head.py:Head" in block)
    (tmp_path / "head.py").write_text(code)
    printed = str(check(f"{tmp_path / 'head.py'}:Head"))
    assert shown.splitlines()[1].startswith("WRONG  Head   (")
    assert "\n".join(shown.splitlines()[2:]) in printed


def test_the_students_numpy_is_named_as_the_page_shows(tmp_path):
    code = next(block for block in blocks("student.md", "python") if "def attend" in block).partition("\n\nreport")[0]
    path = tmp_path / "attend.py"
    path.write_text(code)
    (said,) = [block.strip() for block in blocks("student.md", "text") if block.startswith("e^score")]
    assert check(f"{path}:attend").diagnosis[0].mistakes[0].said == said
    path.write_text(code.replace("axis=-1)", "axis=-1, keepdims=True)"))
    after = check(f"{path}:attend")
    assert after.mistakes == ("axis:overflow",)
    assert after.diagnosis[0].mistakes[0].right.startswith("subtract each row's largest score first")
