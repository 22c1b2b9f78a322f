"""The house in numbers: how soon things start, how large they are, what depends on what. `make house`, a minute."""

from __future__ import annotations

import gzip
import importlib
import pkgutil
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from release.contents import build, in_wheel  # noqa: E402

import clearhead  # noqa: E402

ROUNDS = 7
STARTS = {
    "python -c pass": ["-c", "pass"],  # what the machine itself takes now
    "import torch": ["-c", "import torch"],
    "import clearhead": ["-c", "import clearhead"],  # torch waits until a name is used
    "clearhead.attention": ["-c", "import clearhead; clearhead.attention"],
    "clearhead --help": ["-m", "clearhead", "--help"],
    "clearhead look": ["-m", "clearhead", "look"],
}


class Start(NamedTuple):
    """One process from a cold shell, in seconds."""

    cpu: float  # computing, which other programs on the machine hardly change
    clock: float


def starts() -> dict[str, list[Start]]:
    """Of each candidate, the candidates taking turns."""
    times: dict[str, list[Start]] = {name: [] for name in STARTS}
    for turn in range(-1, ROUNDS):  # the first fills the disk's cache
        for name, words in STARTS.items():
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run([sys.executable, *words], capture_output=True, check=True)
            clock, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
            if turn >= 0:
                times[name].append(Start(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock))
    return times


def row(name: str, number: str, aim: str = "", held: bool = True) -> None:
    """One line: what, how much, and what it should be."""
    print(f"  {name:<34} {number:<46}   {aim + ('' if held else '   MISSED') if aim else ''}".rstrip())


def show_starts() -> None:
    """Start-up times."""
    print(
        f"Start-up, each in a process of its own: CPU time, and time on the clock; medians of {ROUNDS}. Aims are of CPU time."
    )
    times = starts()
    for name, each in times.items():
        cpu, clock = (statistics.median(one[n] for one in each) for n in (0, 1))
        told = f"{cpu:.2f} s, {clock:.2f} s on the clock"
        if name == "clearhead.attention":
            ratio = statistics.median(a.cpu / b.cpu for a, b in zip(each, times["import torch"], strict=True))
            row(name, f"{told}, {ratio:.2f} × torch", "at most 1.15 × torch", ratio <= 1.15)
        elif name == "clearhead --help":
            row(name, told, "less than 0.5 s", cpu < 0.5)
        else:
            row(name, told)


def show_sizes() -> None:
    """What is shipped."""
    print("Sizes")
    with tempfile.TemporaryDirectory() as folder:
        wheel, archive = build(Path(folder))
        size = wheel.stat().st_size
        row("wheel", f"{size / 1e6:.2f} MB, {len(in_wheel(wheel))} files", "less than 12 MB", size < 12e6)
        row("source archive", f"{archive.stat().st_size / 1e6:.2f} MB")
    package = ROOT / "src" / "clearhead"
    row("built-in model", f"{total((package / 'models' / 'builtin').iterdir()) / 1e6:.2f} MB")
    for name, folder in (
        ("page of the viewer", package / "viewer" / "page"),
        ("page of the lesson", package / "lesson" / "assets"),
    ):
        files = [path for path in folder.iterdir() if path.suffix in (".js", ".css", ".html")]
        packed = sum(len(gzip.compress(path.read_bytes())) for path in files)
        row(name, f"{total(files) / 1e3:.0f} kB, {packed / 1e3:.0f} kB gzipped")


def total(files: Iterable[Path]) -> int:
    """Bytes of some files together."""
    return sum(path.stat().st_size for path in files)


def show_lines() -> None:
    """Lines of code, by part."""
    print("Lines (files): Python, or the page's JavaScript and styles")
    package = ROOT / "src" / "clearhead"
    parts = sorted({path.relative_to(package).parts[0] for path in package.rglob("*.py") if path.parent != package})
    counted = {f"clearhead/{part}": list((package / part).rglob("*")) for part in parts}
    counted["clearhead, its own modules"] = list(package.glob("*.py"))
    counted |= {name: list((ROOT / name).rglob("*.py")) for name in ("tests", "benchmarks", "training", "release")}
    found = {name: [p for p in paths if p.suffix in (".py", ".js", ".css")] for name, paths in counted.items()}
    lines = {
        name: [p.read_text("utf-8").count("\n") for p in paths if ".min." not in p.name]
        for name, paths in found.items()
    }
    for name, each in sorted(lines.items(), key=lambda item: -sum(item[1])):
        row(name, f"{sum(each)} ({len(each)})")
    longest = max(
        (p for paths in counted.values() for p in paths if p.suffix == ".py"),
        key=lambda p: p.read_text("utf-8").count("\n"),
    )
    row("longest file", f"{longest.relative_to(ROOT)}: {longest.read_text('utf-8').count(chr(10))}")


def show_names() -> None:
    """Public names and what is depended on."""
    print("Names and dependencies")
    row("names of clearhead itself", str(len(clearhead.__all__)))
    modules = [m.name for m in pkgutil.iter_modules(clearhead.__path__) if m.name != "__main__"]
    listed = {name: getattr(importlib.import_module(f"clearhead.{name}"), "__all__", ()) for name in modules}
    row("names of its public modules", str(sum(len(set(names) - set(clearhead.__all__)) for names in listed.values())))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    row("dependencies", ", ".join(names_of(project["dependencies"])))
    for extra, needed in project["optional-dependencies"].items():
        row(f"[{extra}]", f"{len(needed)} packages" if extra == "dev" else ", ".join(names_of(needed)))


def names_of(requirements: list[str]) -> list[str]:
    """Requirements without their versions."""
    return [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements]


def main() -> None:
    """Print all of it."""
    for show in (show_starts, show_sizes, show_names, show_lines):
        show()
        print()


if __name__ == "__main__":
    main()
