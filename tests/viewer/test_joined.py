"""The modules of the page, joined: the rules that make it possible are checked where they are broken."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from clearhead.lesson import page as lesson
from clearhead.viewer import joined
from clearhead.viewer.packed import Answer, unpack

PAGE = joined.PAGE


@pytest.fixture
def modules(tmp_path, monkeypatch):
    monkeypatch.setattr(joined, "PAGE", tmp_path / "page")
    joined.script.cache_clear()
    (tmp_path / "page").mkdir()
    yield tmp_path / "page"
    joined.script.cache_clear()


def write(folder: Path, **modules: str) -> None:
    for name, text in modules.items():
        (folder / f"{name}.js").write_text(text, encoding="utf-8")


def test_what_is_needed_comes_first_and_once(modules):
    write(
        modules,
        last='import { b } from "./second.js";\nimport { a } from "./first.js";\nconsole.log(a, b);\n',
        second='import { a } from "./first.js";\nexport const b = a + 1;\n',
        first="export const a = 1;\n",
    )
    assert joined.script("last") == "const a = 1;\n\nconst b = a + 1;\n\nconsole.log(a, b);\n"


def test_another_page_takes_from_the_one_above_it(modules, tmp_path):
    write(modules, first='import { a } from "./second.js";\nexport const b = a;\n', second="export const a = 1;\n")
    other = tmp_path / "other"
    other.mkdir()
    write(other, first="export const c = 2;\n")
    write(other, last='import { b } from "../first.js";\nimport { c } from "./first.js";\nb(c);\n')
    assert joined.script("last", other) == "const a = 1;\n\nconst b = a;\n\nconst c = 2;\n\nb(c);\n"
    write(other, first="export const b = 2;\n")
    joined.script.cache_clear()
    with pytest.raises(RuntimeError, match=r"^other/first\.js: b is at the top of page/first\.js too$"):
        joined.script("last", other)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('import * as all from "./first.js";\n', "cannot be joined"),
        ('import { a as b } from "./first.js";\n', "cannot be joined"),
        ('import { a } from "https://elsewhere/first.js";\n', "cannot be joined"),
        ("const a = 1;\nexport { a };\n", "cannot be joined"),
        ('import { a } from "./first.js";\nfunction a() {}\n', "a is at the top of page/first.js too"),
        ('const x = "</script>";\n', "would end the element"),
    ],
)
def test_what_cannot_be_joined_is_refused(modules, text, why):
    write(modules, last=text, first="export const a = 1;\n")
    with pytest.raises(RuntimeError, match=why):
        joined.script("last")


@pytest.mark.parametrize(
    ("entry", "folder"),
    [("file", None), ("serve", None), ("widget", None), ("file", lesson.ASSETS), ("serve", lesson.ASSETS)],
)
def test_the_page_can_be_joined_and_needs_nothing(entry, folder):
    text = joined.script(entry, folder)
    assert "\nimport " not in text
    assert text.count("export ") == (1 if entry == "widget" else 0)
    assert joined.script(entry, folder) is text


@pytest.mark.skipif(shutil.which("tsc") is None, reason="there is no TypeScript here: npm install -g typescript")
def test_the_types_in_the_comments_hold():
    done = subprocess.run(
        ["tsc", "-p", str(Path(__file__).parent / "tsconfig.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_what_is_packed_comes_out_again():
    import numpy as np

    arrays = {
        "a": np.arange(5, dtype=np.uint16),
        "b": np.random.default_rng(0).standard_normal((3, 4)),
        "c": np.zeros((0, 2), np.float32),
        "d": np.array([[-1, 2]], np.int32),
    }
    packed = Answer({"é": "</script>", "n": None}, arrays).packed()
    head = json.loads(packed[4 : 4 + int.from_bytes(packed[:4], "little")])
    assert all(each["offset"] % 8 == 0 for each in head["arrays"])  # a page's Float64Array begins nowhere else
    found = unpack(packed)
    assert found.facts == {"é": "</script>", "n": None}
    for name, array in arrays.items():
        assert found.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(found.arrays[name], array)
