"""What this processor's vector registers hold, and the shapes of work that follow from it.

A *strip* is LANES queries side by side, one in each lane; a *tile* is TILE_ROWS keys (or value columns) of a strip. A tile's
accumulators are TILE_ROWS x VECTORS registers and must fit beside the operands:

| registers | WIDTH floats | VECTORS | TILE_ROWS | accumulators | of |
|---|---|---|---|---|---|
| AVX-512 | 16 | 2 | 8 | 16 | 32 |
| AVX2 with FMA | 8 | 3 | 4 | 12 | 16 |
| NEON and others | 4 | 4 | 4 | 16 | 32 |
"""

from __future__ import annotations

import functools
import os
from typing import NamedTuple

from llvmlite import binding

BLOCK = 128  # keys in a block of a strip: its scores stay in the first-level cache
RUN = 4  # keys that are represented by the largest of their weights and by the sum, where somebody looks
CHAINS = 12  # independent sums that `peak` runs: enough to hide the latency, few enough for sixteen registers
FORCE = "CLEARHEAD_VECTORS"  # "avx512", "avx2" or "neon": use narrower registers than there are, to try their code here


class Shape(NamedTuple):
    """Sizes that every kernel is built from."""

    name: str
    width: int
    vectors: int
    tile_rows: int

    @property
    def lanes(self) -> int:
        """Queries in a strip."""
        return self.width * self.vectors


SHAPES = {
    "avx512": Shape("avx512", 16, 2, 8),
    "avx2": Shape("avx2", 8, 3, 4),
    "neon": Shape("neon", 4, 4, 4),
}


@functools.cache
def features() -> dict[str, bool]:
    """LLVM's names of what the host can do."""
    return dict(binding.get_host_cpu_features())


@functools.cache
def shape() -> Shape:
    """The widest the host has, or what the environment forces."""
    forced = os.environ.get(FORCE)
    if forced:
        return SHAPES[forced]
    has = features()
    if has.get("avx512f") and has.get("avx512vl"):
        return SHAPES["avx512"]
    if has.get("avx2") and has.get("fma"):
        return SHAPES["avx2"]
    return SHAPES["neon"]


def target() -> tuple[str, str]:
    """CPU name and feature string for LLVM; with narrower registers forced, the wider ones are switched off."""
    # AVX itself stays: fused products and float16 come with it, and as calls they would be looked for in vain.
    hidden = {"avx512": (), "avx2": ("avx512",), "neon": ("avx512", "avx2")}[shape().name]
    flags = [
        ("-" if hidden and name.startswith(hidden) else "+" if has else "-") + name for name, has in features().items()
    ]
    return str(binding.get_host_cpu_name()), ",".join(flags)
