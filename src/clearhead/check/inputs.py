"""What a candidate is run on: sizes, the numbers drawn for them, and these as arrays of its framework."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clearhead.check.steps import Array


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call."""

    B: int = 2
    Hq: int = 6
    Hk: int = 6
    Tq: int = 7
    Tk: int = 7
    D: int = 5
    Dv: int = 5

    def __str__(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.__dataclass_fields__)


def inputs(sizes: Sizes, seed: int, loud: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, float64 with values that float32 holds exactly; scaled scores have variance loud²."""
    made = torch.Generator().manual_seed(1000 + seed)
    shapes = (
        (sizes.B, sizes.Hq, sizes.Tq, sizes.D),
        (sizes.B, sizes.Hk, sizes.Tk, sizes.D),
        (sizes.B, sizes.Hk, sizes.Tk, sizes.Dv),
    )
    q, k, v = (torch.randn(shape, generator=made, dtype=torch.float32).double() for shape in shapes)
    root = float(np.float32(loud**0.5))
    return (q * root).float().double(), (k * root).float().double(), v


def some_sinks(heads: int) -> Tensor:
    """One logit a head, all different."""
    return torch.linspace(-1.0, 1.5, heads, dtype=torch.float64)


def arrays_of(framework: str) -> str:
    """What its arrays are called."""
    return {"torch": "tensors", "numpy": "NumPy arrays", "jax": "JAX arrays", "lists": "lists"}[framework]


def as_given(t: Tensor, framework: str) -> Any:
    """A tensor as an array of that framework, or as lists."""
    if framework == "torch":
        return t
    if framework == "lists":
        return t.tolist()
    made = t.detach().cpu().numpy()
    return made if framework == "numpy" else sys.modules["jax"].numpy.asarray(made)


def array(t: Tensor) -> Array:
    """A tensor as float64 (or bool) NumPy."""
    t = t.detach().to("cpu")
    return (t if t.dtype == torch.bool else t.double()).numpy()
