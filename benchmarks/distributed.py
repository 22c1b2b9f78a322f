"""A sequence over processes on this machine: time of `distributed.attention` and `observe` on 1, 2 and 4 ranks of one thread.

    python benchmarks/distributed.py --T 16384 --ranks 1,2

Each number of ranks runs in processes of its own; rank 0 prints the median of a few runs, between barriers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

import ranks

CASES = [(scheme, placement) for scheme in ("heads", "gather") for placement in ("contiguous", "zigzag")]


def measure(T: int, heads: int, kv_heads: int, repeats: int) -> None:
    """What one rank does; rank 0 prints `name seconds` lines."""
    import torch
    import torch.distributed as dist

    from clearhead import Causal, distributed

    torch.set_num_threads(1)
    mesh = distributed.start(timeout=300)
    generator = torch.Generator().manual_seed(0)
    whole = [torch.randn(1, h, T, 64, generator=generator) for h in (heads, kv_heads, kv_heads)]
    for name in ("attention", "observe"):
        for scheme, placement in CASES:
            if scheme == "heads" and placement == "zigzag":
                continue  # heads share work evenly however positions lie
            mine = [distributed.split(x, mesh, placement=placement) for x in whole]  # type: ignore[arg-type]
            times = []
            for n in range(repeats + 1):
                dist.barrier()
                begin = time.perf_counter()
                getattr(distributed, name)(*mine, mesh, mask=Causal(), scheme=scheme, placement=placement)
                dist.barrier()
                if n:  # the first run loads kernels
                    times.append(time.perf_counter() - begin)
            if mesh.get_local_rank() == 0:
                print(f"{name}/{scheme}/{placement} {statistics.median(times)}", flush=True)
    small = [x[:, :, :1].contiguous() for x in whole]
    begin = time.perf_counter()
    for _ in range(20):
        distributed.attention(*small, mesh)
    if mesh.get_local_rank() == 0:
        print(f"one token a rank/heads/one call {(time.perf_counter() - begin) / 20}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--T", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measure(options.T, options.heads, options.kv_heads, options.repeats)
        return
    found: dict[str, dict[int, float]] = {}
    counts = [int(n) for n in options.ranks.split(",")]
    for count in counts:
        told = ranks.run(count, [*sys.argv, "--worker"])
        for line in told[0].splitlines():
            name, seconds = line.rsplit(" ", 1)
            found.setdefault(name, {})[count] = float(seconds)
    shape = f"T={options.T}, {options.heads} heads on {options.kv_heads} key heads of 64, float32, causal"
    print(f"{shape}; ranks of one thread each, on {os.cpu_count()} cores\n")
    print("| call | scheme | placement | " + " | ".join(f"{n} ranks" for n in counts) + " | speed-up |")
    print("|---|---|---|" + "---|" * (len(counts) + 1))
    for name, times in found.items():
        row = " | ".join(f"{times[n]:.4f} s" for n in counts)
        ups = ", ".join(f"{times[counts[0]] / times[n]:.2f}" for n in counts[1:])
        print(f"| {' | '.join(name.split('/'))} | {row} | {ups} |")


if __name__ == "__main__":
    main()
