"""What was measured over ranks carries no gradients, and says so where somebody asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, message
from clearhead.observables import DIFFERENTIABLE


def refusing(values: Mapping[str, Tensor], *inputs: Tensor | None) -> dict[str, Tensor]:
    """The values, of which those that one process would give gradients raise `ArgumentError` when a loss flows back into them.

    Without that a loss of the output and, say, the entropy would lose the entropy's part and nobody would know.
    """
    from_ = next((x for x in inputs if x is not None and x.requires_grad), None)
    if from_ is None or not torch.is_grad_enabled():
        return dict(values)
    return {
        name: _Refusing.apply(name, x.detach(), from_) if name in DIFFERENTIABLE else x for name, x in values.items()
    }


class _Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, value: Tensor, _: Tensor) -> Tensor:
        ctx.name = name
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise ArgumentError(
            message(
                "backward",
                expected="a loss of the output",
                got=f"{ctx.name}, which was measured over the ranks of a mesh and carries no gradients",
                remedy="Use detach(), or observe the whole sequence in one process.",
            )
        )
