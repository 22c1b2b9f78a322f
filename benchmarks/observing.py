"""What observing costs beside `attention` and beside SDPA, which looks at nothing: `python benchmarks/observing.py [IMPL]`.

Float32, causal, calls in turn in one process, ratios of medians to `attention`. First everything there is
(`Observables.full`), then the default with parts of it left out. IMPL is `cpu` (the default) or `tiled`.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch
import torch.nn.functional as F  # noqa: N812

from clearhead import Causal, Observables, attention, observe

FULL = ((2048, 9, 15), (4096, 9, 7), (8192, 3, 7))  # tokens, query heads on three key heads, rounds
PARTS = (  # width, tokens, rounds
    (64, 128, 201), (64, 256, 101), (64, 512, 61), (64, 1024, 31), (64, 2048, 15), (128, 512, 41), (128, 1024, 21)
)  # fmt: skip
KINDS = {
    "everything": Observables(),
    "without top 8": Observables(top_k=0),
    "without the map": Observables(map=0),
    "without both": Observables(top_k=0, map=0),
    "light": Observables.light(),
}


def ratios(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], kinds: dict[str, Observables], rounds: int, impl: str
) -> str:
    """How many times as long as `attention` each kind takes, and SDPA."""
    q, (k, v) = torch.randn(shapes[0]), torch.randn(2, *shapes[1])
    took: dict[str, list[float]] = {name: [] for name in ("attention", "SDPA", *kinds)}
    for turn in range(rounds + 1):
        for name, times in took.items():
            began = time.perf_counter()
            if name == "attention":
                attention(q, k, v, mask=Causal(), impl=impl)
            elif name == "SDPA":
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            else:
                observe(q, k, v, mask=Causal(), observables=kinds[name], impl=impl)
            if turn:  # the first compiles and warms
                times.append(time.perf_counter() - began)
    base = statistics.median(took["attention"])
    return ", ".join(f"{name} {statistics.median(took[name]) / base:.2f}" for name in ("SDPA", *kinds))


def main() -> None:
    impl = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    print(f"times as long as attention ({impl}), {torch.get_num_threads()} threads")
    for T, heads, rounds in FULL:
        ids, groups = torch.randint(0, 2000, (T,)), torch.arange(T) // (T // 8 + 1)
        kinds = {"default": Observables(), "full": Observables.full(token_ids=ids, key_groups=groups)}
        print(f"D=64 T={T} H={heads}: {ratios(((1, heads, T, 64), (1, 3, T, 64)), kinds, rounds, impl)}")
    for D, T, rounds in PARTS:
        print(f"D={D} T={T} H=12: {ratios(((1, 12, T, D), (1, 12, T, D)), KINDS, rounds, impl)}")


if __name__ == "__main__":
    main()
