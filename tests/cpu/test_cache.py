"""Compiled once, kept where the user may write, found again without numba; and what happens where numba is missing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import printed

import clearhead
from clearhead.kernels.cpu import build

PACKAGE = Path(str(clearhead.__file__)).parent
NOTICE = re.compile(r"^clearhead: compiling its decode kernel for this CPU, once … \d+ s$", re.MULTILINE)
BUILD = """
    import sys
    from clearhead.kernels.cpu import build
    assert build.kernel("decode")
    print(build.fingerprint(), "numba" in sys.modules)
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that was not there before one kernel was compiled."""
    folder: Path = tmp_path_factory.mktemp("cache") / "not" / "there"
    said = printed(BUILD, CLEARHEAD_CACHE=str(folder))
    assert NOTICE.search(said), said
    assert len(said.splitlines()) == 2
    assert [x.name for x in folder.iterdir()] == [f"decode-{said.split()[0]}.o"]
    return folder


def kept(folder: Path, tmp_path: Path) -> Path:
    """A copy of a filled cache, to spoil."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_what_is_in_the_cache_is_loaded_in_silence_and_without_numba(filled: Path) -> None:
    said = printed(BUILD, CLEARHEAD_CACHE=str(filled))
    assert len(said.splitlines()) == 1
    assert said.split()[1] == "False"


SPOILT: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda whole: whole[:-100],
    "one bit": lambda whole: whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
    "in its head": lambda whole: bytes([whole[0] ^ 1]) + whole[1:],
    "empty": lambda whole: b"",
    "something else": lambda whole: b"x" * 5000,
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_damaged_file_is_not_taken_for_code(how: str, filled: Path, tmp_path: Path) -> None:
    (file,) = filled.iterdir()
    code = build._read(file)
    assert code is not None
    assert len(code) > 5000
    (tmp_path / "spoilt").write_bytes(SPOILT[how](file.read_bytes()))
    assert build._read(tmp_path / "spoilt") is None
    assert build._read(tmp_path) is None
    assert build._read(tmp_path / "missing") is None


def test_a_damaged_file_is_compiled_again_and_replaced(filled: Path, tmp_path: Path) -> None:
    folder = kept(filled, tmp_path)
    (file,) = folder.iterdir()
    file.write_bytes(SPOILT["one bit"](file.read_bytes()))
    assert NOTICE.search(printed(BUILD, CLEARHEAD_CACHE=str(folder)))
    assert [x.name for x in folder.iterdir()] == [file.name]  # no half-written file stays behind
    assert len(printed(BUILD, CLEARHEAD_CACHE=str(folder)).splitlines()) == 1


def test_where_nothing_can_be_written_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("no folder can be in here")
    assert NOTICE.search(printed(BUILD, CLEARHEAD_CACHE=str(tmp_path / "a file" / "cache")))
    assert [x.name for x in tmp_path.iterdir()] == ["a file"]


NAME = "from clearhead.kernels.cpu import build; print(build.fingerprint(), build.cache_folder())"


def test_other_sources_and_other_registers_have_other_names(tmp_path: Path) -> None:
    here = printed(NAME).split()[0]
    assert printed(NAME).split()[0] == here
    shutil.copytree(PACKAGE, tmp_path / "clearhead", ignore=shutil.ignore_patterns("__pycache__"))
    assert printed(NAME, PYTHONPATH=str(tmp_path)).split()[0] == here
    with (tmp_path / "clearhead" / "kernels" / "cpu" / "powers.py").open("a") as file:
        file.write("# one line more\n")
    names = {here, printed(NAME, PYTHONPATH=str(tmp_path)).split()[0]}
    names |= {printed(NAME, CLEARHEAD_VECTORS=shape).split()[0] for shape in ("avx512", "avx2", "neon")}
    assert len(names) == 4  # one of the three is this machine's own


def test_the_cache_is_the_users_own_folder_unless_named(tmp_path: Path) -> None:
    assert printed(NAME, CLEARHEAD_CACHE=str(tmp_path)).split()[1] == str(tmp_path)
    unnamed = printed(NAME, CLEARHEAD_CACHE="", XDG_CACHE_HOME=str(tmp_path)).split()[1]
    assert Path(unnamed).name == "clearhead"


WARM = """
    import sys
    import clearhead
    print("numba" in sys.modules)
    import torch
    q = torch.randn(1, 2, 40, 8, requires_grad=True)
    clearhead.attention(q, q, q, impl="cpu").sum().backward()
    clearhead.attention(q[:, :, -1:], q, q, impl="cpu")
    clearhead.observe(q, q, q, impl="cpu")
    print(clearhead.explain(q, q, q).splitlines()[1].split()[:2], "numba" in sys.modules)
"""


@pytest.mark.tiny
def test_with_a_warm_cache_numba_is_never_imported_and_nothing_is_said() -> None:
    assert printed(WARM).splitlines() == ["False", "['cpu', 'runs'] False"]


WITHOUT = """
    import importlib.util, sys

    class Missing:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] in ("numba", "llvmlite"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Missing)
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *more: None if name in ("numba", "llvmlite") else real(name, *more)

    import torch
    import clearhead.errors
    q = torch.randn(1, 2, 40, 8, requires_grad=True)
    clearhead.attention(q, q, q).sum().backward()
    clearhead.observe(q, q, q)
    with clearhead.accelerate() as handle:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    print(handle.impl)
    print(clearhead.explain(q, q, q))
    try:
        clearhead.attention(q, q, q, impl="cpu")
    except clearhead.errors.ImplementationError as error:
        print(error)
"""


def test_without_numba_auto_takes_tiled_and_says_why() -> None:
    lines = printed(WITHOUT).splitlines()
    assert lines[0] == "tiled"
    assert lines[2].startswith("cpu        cannot: numba, which compiles them, is not installed")
    assert lines[3].startswith("tiled      runs")
    assert lines[-1].startswith('impl: expected a call that the CPU kernels can do, got "cpu", but numba, which')
