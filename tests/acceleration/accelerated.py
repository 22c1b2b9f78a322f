"""What the tests of acceleration share: inputs, the two operators, and comparing with PyTorch's own kernels."""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch._dynamo
import torch.utils.checkpoint
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

home = importlib.import_module("clearhead.accelerate")  # the module; the public name is the function in it

FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def registered() -> str:
    """What the dispatcher says about both operators."""
    return "".join(torch._C._dispatch_dump(f"aten::{name}") for name in (home.FORWARD, home.BACKWARD))


def inputs(B: int = 2, Hq: int = 4, Hk: int = 4, Tq: int = 33, Tk: int = 33, D: int = 16) -> tuple[Tensor, ...]:
    return torch.randn(B, Hq, Tq, D), torch.randn(B, Hk, Tk, D), torch.randn(B, Hk, Tk, D)


def with_gradients(args: tuple[Tensor, ...], **options: Any) -> list[Tensor]:
    """Output and gradients of query, key and value, whose strides stay as they are."""
    leaves = [x.detach().requires_grad_() for x in args]
    out = sdpa(*leaves, enable_gqa=args[0].shape[1:2] != args[1].shape[1:2], **options)
    return [out.detach(), *torch.autograd.grad((out * ramp(out)).sum(), leaves)]


def ramp(out: Tensor) -> Tensor:
    """The gradient that comes in from above."""
    return torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype)
