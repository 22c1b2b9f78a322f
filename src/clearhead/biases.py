"""Biases that are never materialised: numbers added to the scores, computed tile by tile from positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.errors import ArgumentError, message


@dataclass(frozen=True, eq=False)
class ALiBi:
    """Attention with linear biases: −slope_h · |a_i − j| is added to the scores (Press, Smith and Lewis 2021).

    >>> ALiBi(2).slopes.tolist()
    [0.0625, 0.00390625]
    >>> ALiBi(2).dense(1, 3)[0, 0].tolist()          # the last query sits on the last key
    [-0.125, -0.0625, -0.0]

    `heads`: how many query heads, for the published slopes (for heads that are not a power of two, those of the power
    below, then every second one of the power above); or a 1-D tensor of Hq slopes. Slopes are constants: no gradient.
    `align`: where queries stand, as for masks: "end" (a_i = i + Tk − Tq), "start" (a_i = i), or the position of query 0.
    """

    heads: int | Tensor
    align: Literal["end", "start"] | int = "end"

    def __post_init__(self) -> None:
        ok = self.heads.ndim == 1 if isinstance(self.heads, Tensor) else self.heads >= 1
        if not ok:
            raise ArgumentError(
                message(
                    "ALiBi heads",
                    expected="a number of heads >= 1, or a 1-D tensor of Hq slopes",
                    got=f"shape {tuple(self.heads.shape)}" if isinstance(self.heads, Tensor) else repr(self.heads),
                    remedy="Pass the number of query heads: ALiBi(8).",
                )
            )
        if self.align not in ("end", "start") and (not isinstance(self.align, int) or isinstance(self.align, bool)):
            raise ArgumentError(
                message(
                    "ALiBi align",
                    expected='"end", "start" or the position of query 0, an integer',
                    got=repr(self.align),
                    remedy='Use "end" for decoding with a cache.',
                )
            )

    def offset(self, Tq: int, Tk: int) -> int:
        """The position of query 0."""
        return self.align if isinstance(self.align, int) else Tk - Tq if self.align == "end" else 0

    @property
    def slopes(self) -> Float[Tensor, " hq"]:
        """One slope a query head."""
        if isinstance(self.heads, Tensor):
            return self.heads.detach()
        whole = 2 ** int(math.log2(self.heads))
        slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
        slopes += [2 ** (-4 * (2 * h + 1) / whole) for h in range(self.heads - whole)]
        return torch.tensor(slopes)

    def dense(self, Tq: int, Tk: int, *, device: torch.device | str = "cpu") -> Float[Tensor, "hq tq tk"]:
        """The whole bias. O(Hq·Tq·Tk): for reading and testing."""
        a = torch.arange(Tq, device=device)[:, None] + self.offset(Tq, Tk)
        j = torch.arange(Tk, device=device)[None]
        return -self.slopes.to(device)[:, None, None] * (a - j).abs()
