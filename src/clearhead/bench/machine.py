"""What the hardware can do: the limits that stand beside every measurement."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from clearhead.kernels import select

Clock = Callable[[], float]
PRODUCT = 1536  # side of the square product: 7 Gflop, long enough to be at full speed, short enough to be repeated
ROUNDS = 2_000_000  # of multiply-adds on registers: some milliseconds
READ = 64 * 2**20  # float32 read for the bandwidth: 256 MB, more than the caches of most machines hold
TRIES, TRIES_AGAIN = 11, 3


@dataclass(frozen=True)
class Machine:
    """A CPU, the threads used, and its measured limits with one and with all of those threads."""

    cpu: str
    cores: int
    threads: int
    vectors: str  # what torch calls the vector instructions: "AVX2", "AVX512", "DEFAULT", …
    fma_gflops_one: float
    fma_gflops: float
    read_gbs_one: float
    read_gbs: float


def measure_machine(clock: Clock = time.perf_counter) -> Machine:
    """Measure the limits of this machine with torch's current number of threads; a second or two."""
    threads = torch.get_num_threads()
    fma, read = fma_peak(clock), read_bandwidth(clock)
    fma_one, read_one = fma, read
    if threads > 1:
        with using_threads(1):
            fma_one, read_one = fma_peak(clock), read_bandwidth(clock)
    return Machine(
        cpu=cpu_name(),
        cores=os.cpu_count() or 1,
        threads=threads,
        vectors=torch.backends.cpu.get_cpu_capability(),
        fma_gflops_one=fma_one,
        fma_gflops=max(fma, fma_one),
        read_gbs_one=read_one,
        read_gbs=max(read, read_one),
    )


def measure_again(machine: Machine, clock: Clock = time.perf_counter) -> Machine:
    """The machine with higher limits, if a short second look finds any: whoever else was busy may have stopped since."""
    return replace(
        machine,
        fma_gflops=max(machine.fma_gflops, fma_peak(clock, TRIES_AGAIN)),
        read_gbs=max(machine.read_gbs, read_bandwidth(clock, TRIES_AGAIN)),
    )


def fma_peak(clock: Clock = time.perf_counter, tries: int = TRIES) -> float:
    """Fused multiply-adds in float32, two operations each, GFLOP/s: the best of a few runs of nothing but them.

    Without numba, of a few large matrix products: a library reaches some 90-97 % of what the units could do, so a kernel may
    then stand a little above 100 % of this.
    """
    if select.why_not_cpu(None) is None:
        from clearhead.kernels.cpu import run  # brings the loader of compiled kernels with it

        done: list[int] = []
        seconds = _best(lambda: done.append(run.multiply_adds(ROUNDS)), clock, tries)
        return done[0] / seconds / 1e9
    a, b = torch.randn(2, PRODUCT, PRODUCT)
    out = torch.empty(PRODUCT, PRODUCT)
    return 2 * PRODUCT**3 / _best(lambda: torch.mm(a, b, out=out), clock, tries) / 1e9


def read_bandwidth(clock: Clock = time.perf_counter, tries: int = TRIES) -> float:
    """Reading memory once, GB/s: the best of a few sums over 256 MB of float32."""
    x = torch.ones(READ)
    return 4 * READ / _best(x.sum, clock, tries) / 1e9


def _best(run: Callable[[], object], clock: Clock, tries: int) -> float:
    """Seconds of the fastest of a few runs: a limit is what nothing got in the way of."""
    run()
    times = []
    for _ in range(tries):
        start = clock()
        run()
        times.append(clock() - start)
    return min(times)


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Torch with `count` threads, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def cpu_name() -> str:
    """The processor's own name, or its architecture where the system tells no more."""
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return asked.stdout.strip() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
    return names[0] if names else platform.machine()
