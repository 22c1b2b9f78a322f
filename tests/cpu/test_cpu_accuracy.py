"""Sums over thousands of tokens stay as exact as PyTorch's: no number is added to a long running sum term by term."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Causal, attention


def gradients(output: Tensor, inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    return [x.double() for x in torch.autograd.grad(output, inputs, grad.to(output))]


@pytest.mark.parametrize("seed", range(3))
def test_gradients_over_2048_queries_are_within_twice_the_error_of_pytorch(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    *given, grad = (torch.randn(1, 1, 2048, 64, generator=generator) for _ in range(4))
    exact = [x.double().requires_grad_() for x in given]
    inputs = [x.requires_grad_() for x in given]
    true = gradients(scaled_dot_product_attention(*exact, is_causal=True), exact, grad)
    theirs = gradients(scaled_dot_product_attention(*inputs, is_causal=True), inputs, grad)
    ours = gradients(attention(*inputs, mask=Causal(), impl="cpu"), inputs, grad)
    for name, a, b, c in list(zip(("query", "key", "value"), ours, theirs, true, strict=True))[1:]:  # sums over queries
        mine, least = ((x - c).abs().max().item() for x in (a, b))
        assert mine <= 2 * least, f"{name}: {mine:.1e}, PyTorch's {least:.1e}"
