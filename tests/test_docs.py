"""Every snippet, command, link and reference page in the docs is run or checked."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import io
import pkgutil
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import typer

import clearhead
from clearhead import tracefile
from clearhead.check import KINDS
from clearhead.check.checks import CHECKS
from clearhead.check.choices import DIMENSIONS
from clearhead.cli import app
from clearhead.roles import ROLES
from clearhead.survey import results, state
from commands import in_process

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


def test_the_page_on_scale_holds_over_ranks_too(tmp_path):
    (tmp_path / "file.py").write_text("\n".join(blocks(ROOT / "docs/scale.md", "python")), encoding="utf-8")
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "file.py"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("page", pages_with("console"), ids=named)
def test_commands_run(page, tmp_path, monkeypatch, capsys):
    lines = [line[2:] for body in blocks(page, "console") for line in body.splitlines() if line.startswith("$ ")]
    commands = [shlex.split(line.partition(" #")[0]) for line in lines if line.startswith("clearhead ")]
    assert commands, "a console block holds no clearhead command: fence it as text"
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("The cat sat on the mat. The cat sat on the hat.", encoding="utf-8")
    for words in commands:
        if page.name == "README.md":  # as a newcomer runs them, in a process of their own
            run = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False)
            code, told = run.returncode, run.stderr
        else:
            code, _, told = in_process(*words[1:], capsys=capsys, monkeypatch=monkeypatch)
        assert code == 0, f"{words}: {told}"


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


def hand_written() -> dict[str, str]:
    """The text of every page that is not made from the code, by name."""
    pages = {named(page): page.read_text(encoding="utf-8") for page in PAGES}
    return {name: text for name, text in pages.items() if "Written by docs/generate.py" not in text}


def headings(pattern: str) -> set[str]:
    """What stands in code in the headings of some pages."""
    found = (page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob(pattern))
    return {name for text in found for name in re.findall(r"^#+ `([^`]+)`$", text, re.MULTILINE)}


def public_names() -> set[str]:
    """Every name that may be imported: those of the package, and those of its modules that list any."""
    names = {f"clearhead.{name}" for name in clearhead.__all__}
    for found in pkgutil.iter_modules(clearhead.__path__):
        module = importlib.import_module(f"clearhead.{found.name}") if found.name != "__main__" else None
        listed = set(getattr(module, "__all__", ())) - set(clearhead.__all__)
        names |= {f"clearhead.{found.name}.{name}" for name in listed}
    return names


def test_every_public_name_has_an_entry():
    missing = public_names() - headings("reference/library/*.md")
    assert not missing, f"no entry in docs/reference/library/ (docs/generate.py lists the modules): {sorted(missing)}"


def test_every_command_and_option_has_an_entry_and_every_command_is_used_on_a_page():
    page = (ROOT / "docs" / "reference" / "command.md").read_text(encoding="utf-8")
    pages = "\n".join(hand_written().values())
    for name, command in typer.main.get_command(app).commands.items():
        _, _, entry = page.partition(f"\n## `clearhead {name}`\n")
        entry = entry.partition("\n## ")[0]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert re.search(rf"{option}\b", entry), (
                    f"clearhead {name} {option} is not in docs/reference/command.md"
                )
        assert f"clearhead {name}" in pages, f"no page shows how clearhead {name} is used"


def test_every_observable_is_in_the_table_of_what_can_be_asked_for():
    rows = re.findall(r"^\| (.*?) \|", (ROOT / "docs" / "how-to" / "observe.md").read_text("utf-8"), re.MULTILINE)
    table = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    missing = {field.name for field in dataclasses.fields(clearhead.Observables)} - table
    assert not missing, f"not in the table of docs/how-to/observe.md: {sorted(missing)}"


def test_every_role_is_defined():
    page = (ROOT / "docs" / "explanation" / "weights.md").read_text(encoding="utf-8")
    for role in ROLES:
        assert f"\n| {role} |" in page, f"the role {role} is not in the table of docs/explanation/weights.md"


def test_every_check_kind_and_choice_of_the_checker_is_listed():
    page = (ROOT / "docs" / "reference" / "checks.md").read_text(encoding="utf-8")
    how = (ROOT / "docs" / "how-to" / "check.md").read_text(encoding="utf-8")
    for check in CHECKS:
        assert f"\n| `{check}` |" in page, f"the check {check} is not in docs/reference/checks.md"
    for dimension in DIMENSIONS:
        _, _, entry = page.partition(f"\n### `{dimension.name}`\n")
        for option in dimension.options:
            assert f"\n| `{option.id}` |" in entry.partition("\n### ")[0], f"{dimension.name}:{option.id} is not listed"
    for kind in KINDS:
        assert f"`{kind}`" in how, f"the kind {kind} is not in docs/how-to/check.md"


def test_every_variable_that_is_read_is_documented():
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "docs" / "how-to" / "doctor.md").read_text(encoding="utf-8")
    for variable in set(re.findall(r"CLEARHEAD_[A-Z]+", source)):
        assert f"| `{variable}` |" in page, f"{variable} is not in the table of docs/how-to/doctor.md"


def test_the_first_page_leads_to_every_page():
    first = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").as_posix()
        if page.name != "index.md" and not place.startswith("reference/library/"):  # those are listed in library.md
            assert f"]({place})" in first, f"docs/index.md has no link to {place}"


def test_the_page_of_files_has_the_versions_and_columns_that_are_written():
    page = (ROOT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    assert "`version`, now `{}.{}`".format(*tracefile.VERSION) in page
    assert f"`format` in both is {state.FORMAT}." in page
    for name in results.TABLES:
        (row,) = re.findall(rf"^\| `{name}\.parquet` \| (.*) \|$", page, re.MULTILINE)
        written = parquet.read_schema(io.BytesIO(results._parquet(name, [])))
        assert re.findall(r"`(\w+)`", row) == written.names, (
            f"the columns of {name}.parquet in docs/reference/formats.md"
        )
    for name in results.KEPT_ARRAYS:
        assert f"`{name}`" in page, f"the array {name} is not in docs/reference/formats.md"


@pytest.mark.parametrize("page", [page for page in PAGES if "#" in page.read_text("utf-8")], ids=named)
def test_anchors_are_headings(page):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            text = (page.parent / target if target else page).read_text(encoding="utf-8")
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.+)$", text, re.M)}
            assert anchor in slugs, f"{named(page)} links to {target}#{anchor}, and there is no such heading"
