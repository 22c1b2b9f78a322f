"""Masks as candidates want them: which shapes and senses there are, and a mask put into one of them."""

from __future__ import annotations

import torch
from torch import Tensor

from clearhead.check.inputs import Sizes

MASK_SHAPES = ("b1tt", "tt", "btt", "bhtt", "bt", "b11t")
MASK_SENSES = (
    "bool, True may attend",
    "0 and 1, 1 may attend",
    "added, 0 and −inf",
    "bool, True is hidden",
    "0 and 1, 1 is hidden",
)


def shaped_mask(mask: Tensor, shape: str | None, sense: str | None, heads: int, dtype: torch.dtype) -> Tensor:
    """A bool mask (B, 1, Tq, Tk), True may attend, in one of the shapes and senses; numbers in `dtype`."""
    cut = {"tt": mask[0, 0], "btt": mask[:, 0], "bt": mask[:, 0, 0], "b11t": mask[:, :, :1]}
    made = mask.expand(-1, heads, -1, -1).contiguous() if shape == "bhtt" else cut.get(shape or "", mask)
    if sense is None:
        return made
    if sense.startswith("added"):
        return torch.zeros(made.shape, dtype=dtype).masked_fill(~made, float("-inf"))
    if "hidden" in sense:
        made = ~made
    return made.to(dtype) if sense.startswith("0 and 1") else made


def some_mask(sizes: Sizes, seed: int, shape: str | None = None) -> Tensor:
    """A random bool mask, (B, 1, Tq, Tk), in which every query sees key 0 and about two thirds of the others."""
    made = torch.Generator().manual_seed(2000 + seed)
    tq = 1 if shape in ("bt", "b11t") else sizes.Tq
    b = 1 if shape == "tt" else sizes.B
    mask = torch.rand((b, 1, tq, sizes.Tk), generator=made) < 0.6
    mask[..., 0] = True
    mask[..., sizes.Tk - 1] = torch.arange(b)[:, None, None] % 2 == 1  # the last key is hidden from some
    return mask.expand(sizes.B, 1, sizes.Tq, sizes.Tk).contiguous()
