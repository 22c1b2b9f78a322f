"""What the ladder's tests share: examples drawn by hypothesis, and how near two results must be."""

from __future__ import annotations

from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-12}  # for values of size about 1, T up to about 20
DTYPES = tuple(TOLERANCE)


class Case(NamedTuple):
    """One input for all rungs."""

    x: Tensor  # (B, T, C)
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    heads: int
    kv_heads: int

    @property
    def layers(self) -> tuple[nn.Linear, nn.Linear, nn.Linear]:
        return self.query, self.key, self.value


def make_case(
    B: int, T: int, C: int, D: int, Dv: int, kv_heads: int, group: int, dtype: torch.dtype, seed: int
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def layer(width: int) -> nn.Linear:
        made = nn.Linear(C, width, bias=False, dtype=dtype)
        made.weight = nn.Parameter(torch.randn(width, C, generator=generator, dtype=dtype) * C**-0.5)
        return made.requires_grad_(False)

    heads = kv_heads * group
    x = torch.randn(B, T, C, generator=generator, dtype=dtype)
    return Case(x, layer(heads * D), layer(kv_heads * D), layer(kv_heads * Dv), heads, kv_heads)


def cases(max_group: int = 3) -> st.SearchStrategy[Case]:
    return st.builds(
        make_case,
        B=st.integers(1, 3),
        T=st.integers(1, 13),
        C=st.integers(1, 6),
        D=st.integers(1, 5),
        Dv=st.integers(1, 5),
        kv_heads=st.integers(1, 3),
        group=st.integers(1, max_group),
        dtype=st.sampled_from(DTYPES),
        seed=st.integers(0, 2**31),
    )


def sequences() -> st.SearchStrategy[Tensor]:
    return cases().map(lambda case: case.x)


def assert_equal(here: Tensor, below: Tensor) -> None:
    """Equal up to the order in which a sum was taken."""
    torch.testing.assert_close(here, below, rtol=0, atol=TOLERANCE[here.dtype])
