"""Every snippet, command, link and reference page in the docs is run or checked."""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text(encoding="utf-8")) if language in languages]


def pages_with(*languages: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, *languages)]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages_with("python"), ids=named)
def test_snippets_run_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "snippets"}
    for body in blocks(page, "python"):
        if ">>>" in body:
            parsed = doctest.DocTestParser().get_doctest(body, names, named(page), named(page), 0)
            runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
            runner.run(parsed, clear_globs=False)
            assert runner.failures == 0, f"{page.name}: a >>> example prints something else"
            names = parsed.globs
        else:
            exec(compile(body, named(page), "exec"), names)  # noqa: S102


@pytest.mark.parametrize("page", pages_with("console"), ids=named)
def test_commands_run(page, tmp_path):
    lines = [line[2:] for body in blocks(page, "console") for line in body.splitlines() if line.startswith("$ ")]
    commands = [shlex.split(line.partition(" #")[0]) for line in lines if line.startswith("clearhead ")]
    assert commands, "a console block holds no clearhead command: fence it as text"
    (tmp_path / "notes.txt").write_text("The cat sat on the mat. The cat sat on the hat.", encoding="utf-8")
    for words in commands:
        run = subprocess.run(
            [sys.executable, "-m", "clearhead", *words[1:]], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{words}: {run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{named(page)} links to {target}, which is not there"


def test_reference_pages_are_what_the_code_says():
    run = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr + "\nRun: make docs"


def test_every_make_target_in_the_contributing_table_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make (\w+)`", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target} is not in the Makefile"
