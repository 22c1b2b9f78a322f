"""What watching a real model costs: `python benchmarks/watching.py [MODEL] [TOKENS …]`.

Rounds of each kind in turn, and the medians of their times; memory is the peak beyond the plain forward. MODEL is
any name that `clearhead look --model` takes, "smollm2" by default; "eager" is measured up to 1,024 tokens.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from pathlib import Path

import torch

from clearhead import watch
from clearhead.models import load

ROUNDS = 3


def main() -> None:
    name, *lengths = sys.argv[1:] or ["smollm2"]
    model = load(name, progress=print)
    text = "\n".join(
        path.read_text("utf-8") for path in sorted(Path(__file__).parent.parent.joinpath("docs").rglob("*.md"))
    )
    ids = model.encode_part(text * 4)
    print(f"{name}: {torch.get_num_threads()} threads, medians of {ROUNDS} rounds")
    for tokens in map(int, lengths or ["512", "1024", "2048"]):
        part = ids[:tokens]

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
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        watched()
        more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1000
        for _ in range(ROUNDS):
            for kind, run in kinds.items():
                began = time.perf_counter()
                run()
                found[kind].append(time.perf_counter() - began)
        seconds = {kind: statistics.median(times) for kind, times in found.items()}
        told = ", ".join(f"{kind} {s:.2f} s ({s / seconds['plain']:.2f}×)" for kind, s in seconds.items())
        print(f"{tokens:>6} tokens: {told}; watching took {more:.0f} MB more")


if __name__ == "__main__":
    main()
