"""A training step whose loss holds something measured, beside a step of plain `attention`: forward and backward."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor

from clearhead import Causal, Observables, Observation, attention, observe

NOTHING = {
    "max_logit": False,
    "entropy": False,
    "top_k": 0,
    "received": False,
    "positions": False,
    "distance": False,
    "map": 0,
}


def main() -> None:
    """Print one row a loss: the best of some runs, and its ratio to the plain step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--T", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    T = options.T
    leaves = [torch.randn(1, options.heads, T, 64, requires_grad=True) for _ in range(3)]

    def only(**wanted: object) -> Observables:
        return Observables(**(NOTHING | wanted))  # type: ignore[arg-type]

    def entropy(seen: Observation) -> Tensor:
        return seen.entropy.mean()

    losses: dict[str, tuple[Observables, Callable[[Observation], Tensor]]] = {
        "entropy": (only(entropy=True), entropy),
        "entropy, all defaults": (Observables(), entropy),
        "first weight": (Observables.light(), lambda seen: seen.first_weight.mean()),
        "largest logit, top_k=0": (Observables.light(), lambda seen: seen.max_logit.mean()),
        "largest logit, top_k=1": (only(max_logit=True, top_k=1), lambda seen: seen.max_logit.mean()),
        "8 groups": (only(key_groups=torch.arange(T) * 8 // T), lambda seen: seen.group_weight.square().mean()),
        "16 rows": (only(rows=tuple(range(0, T, T // 16))), lambda seen: seen.rows.square().mean()),
        "received": (only(received=True), lambda seen: seen.received.square().mean()),
        "after same token": (only(token_ids=torch.arange(T) % 50), lambda seen: seen.after_same_token.mean()),
    }

    def plain() -> None:
        attention(*leaves, mask=Causal()).square().mean().backward()

    def step(name: str) -> None:
        observables, more = losses[name]
        seen = observe(*leaves, mask=Causal(), observables=observables)
        (seen.output.square().mean() + 0.01 * more(seen)).backward()

    def best(run: Callable[[], None]) -> float:
        run()
        times = []
        for _ in range(options.runs):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return min(times)

    base = best(plain)
    print(f"{'plain attention':<24} {base * 1e3:8.1f} ms")
    for name in losses:
        seconds = best(lambda name=name: step(name))  # type: ignore[misc]
        print(f"{name:<24} {seconds * 1e3:8.1f} ms  {seconds / base:5.2f}")


if __name__ == "__main__":
    main()
