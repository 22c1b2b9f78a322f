"""What watching a real model costs: `python benchmarks/watching.py [MODEL] [TOKENS …]`.

Rounds of each kind in turn, and the medians of their times; MODEL is any name that `clearhead look --model` takes, "smollm2" by
default; "eager" is measured up to 1,024 tokens. Memory is the peak of a process that watches one reading, less that of one
that reads plainly.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

import torch

from clearhead import Trace, watch
from clearhead.models import Model, load

ROUNDS = 3


def passage(model: Model, tokens: int) -> list[int]:
    """This many tokens of the documentation."""
    text = "\n".join(
        path.read_text("utf-8") for path in sorted(Path(__file__).parent.parent.joinpath("docs").rglob("*.md"))
    )
    return model.encode_part(text * 4)[:tokens]


def peak(kind: str, name: str, tokens: int) -> None:
    """Print the peak memory of this process, in MB, after one reading."""
    model = load(name)
    ids = passage(model, tokens)
    with watch(model.network) if kind == "watched" else nullcontext():
        model.read(ids)
    status = Path("/proc/self/status").read_text()  # of this program alone; getrusage counts whoever started it too
    print(int(status.partition("VmHWM:")[2].split()[0]) // 1000)


def main() -> None:
    name, *lengths = sys.argv[1:] or ["smollm2"]
    model = load(name, progress=print)
    print(f"{name}: {torch.get_num_threads()} threads, medians of {ROUNDS} rounds")
    for tokens in map(int, lengths or ["512", "1024", "2048"]):
        part = passage(model, tokens)

        def plain(part: list[int] = part) -> None:
            model.read(part)

        def watched(part: list[int] = part) -> None:
            with watch(model.network):
                model.read(part)

        def eager(part: list[int] = part) -> None:
            model.network.set_attn_implementation("eager")  # type: ignore[operator]
            with torch.no_grad():
                model.network(torch.tensor([part]), output_attentions=True, use_cache=False, logits_to_keep=1)
            model.network.set_attn_implementation("sdpa")  # type: ignore[operator]

        kinds = {"plain": plain, "watched": watched}
        if tokens <= 1024 and name != "builtin":
            kinds["eager"] = eager
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        plain()
        watched()
        peaks = {
            kind: int(subprocess.check_output([sys.executable, __file__, "--peak", kind, name, str(tokens)]))
            for kind in ("plain", "watched")
        }
        with watch(model.network) as trace:
            model.read(part)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "saved.trace"
            trace.save(file)
            began = time.perf_counter()
            Trace.load(file)
            loading, size = time.perf_counter() - began, file.stat().st_size
        for _ in range(ROUNDS):
            for kind, run in kinds.items():
                began = time.perf_counter()
                run()
                found[kind].append(time.perf_counter() - began)
        seconds = {kind: statistics.median(times) for kind, times in found.items()}
        told = ", ".join(f"{kind} {s:.2f} s ({s / seconds['plain']:.2f}×)" for kind, s in seconds.items())
        print(
            f"{tokens:>6} tokens: {told}; peak memory "
            f"{peaks['plain']:,} MB, watched {peaks['watched'] - peaks['plain']:+,} MB; "
            f"the trace is a file of {size / 1e6:.1f} MB and loads in {1000 * loading:.0f} ms"
        )


if __name__ == "__main__":
    peak(*sys.argv[2:4], int(sys.argv[4])) if sys.argv[1:2] == ["--peak"] else main()
