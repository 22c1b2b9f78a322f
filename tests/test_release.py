"""What is in a release: the repository's files and nothing else; one version; a licence for whatever others made."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from release import contents, smoke

import clearhead

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return contents.build(tmp_path_factory.mktemp("dist"))


def test_wheel_and_source_archive_hold_the_repository_and_nothing_else(built):
    assert contents.faults(*built) == []


def test_what_is_missing_or_too_much_is_told(built, tmp_path):
    wheel = tmp_path / built[0].name
    with zipfile.ZipFile(built[0]) as old, zipfile.ZipFile(wheel, "w") as new:
        for name in old.namelist():
            if not name.endswith(("model.safetensors", "NOTICE.md")):
                new.writestr(name, old.read(name))
        new.writestr("clearhead/left_over.pyc", b"")
    assert contents.faults(wheel, built[1]) == [
        "wheel: clearhead/left_over.pyc is in it and not in the repository",
        "wheel: clearhead/models/builtin/model.safetensors is missing",
        "wheel: clearhead/models/builtin/model.safetensors is needed",
        "wheel: licences are ['LICENSE'], expected ['LICENSE', 'NOTICE.md']",
    ]


def test_the_version_is_one(built):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    changes = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+)", changes, re.MULTILINE)
    assert newest is not None
    assert project["version"] == clearhead.__version__ == newest[1]
    assert built[0].name.startswith(f"clearhead-{clearhead.__version__}-")


def test_everything_with_a_licence_of_its_own_is_in_the_notice():
    notice = (ROOT / "NOTICE.md").read_text("utf-8")
    for name in contents.tracked():
        if re.search(r"(licen[cs]e|copying)", Path(name).name, re.IGNORECASE) and name != "LICENSE":
            assert name in notice, f"NOTICE.md does not name {name}"


def test_every_extra_is_tried():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(extras) - {"dev"} == set(smoke.USES) - set(smoke.BESIDES)
