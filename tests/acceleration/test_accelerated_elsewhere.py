"""What PyTorch does around attention goes on around the accelerated one: autocast, vmap, checkpoints, the compiler, watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from accelerated import inputs
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from clearhead import accelerate, attention, watch
from clearhead.testing.tolerance import assert_within_tolerance


def test_autocast_no_grad_and_inference_mode(ran: Counter[str]) -> None:
    args, grad = [x.requires_grad_() for x in inputs()], torch.randn(2, 4, 33, 16)

    def under_autocast() -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = sdpa(*args, attn_mask=torch.zeros(33, 33), is_causal=True)
            return [out, *torch.autograd.grad(out, args, grad.bfloat16())]  # autocast is on in backward too

    def without_gradients() -> list[Tensor]:
        found = []
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found.append(sdpa(*args, is_causal=True))
        return found

    wanted = under_autocast(), without_gradients()
    with accelerate():
        got = under_autocast(), without_gradients()
    assert ran == {"forward": 3, "backward": 1}
    assert [x.dtype for x in got[0]] == [x.dtype for x in wanted[0]]
    assert [x.requires_grad for x in got[1]] == [False, False]
    torch.testing.assert_close(got[1], wanted[1])
    truth = with_truth(args, grad.bfloat16())
    for n, (mine, exact, theirs) in enumerate(zip(got[0], truth, wanted[0], strict=True)):
        assert_within_tolerance(mine, exact, theirs, gradient=n > 0)


def test_a_backward_under_autocast_keeps_its_dtype() -> None:
    args, grad = [x.requires_grad_() for x in inputs()], torch.randn(2, 4, 33, 16)

    def gradients() -> tuple[Tensor, ...]:
        out = sdpa(*args)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.autograd.grad(out, args, grad)

    wanted = gradients()
    with accelerate():
        torch.testing.assert_close(gradients(), wanted)


def with_truth(args: list[Tensor], grad: Tensor) -> list[Tensor]:
    """In float64, of what autocast to bfloat16 computes from."""
    leaves = [x.detach().bfloat16().double().requires_grad_() for x in args]
    out = sdpa(*leaves, is_causal=True)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.double())]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's, with or without us
def test_vmap_functional_gradients_checkpointing_and_tracing(ran: Counter[str]) -> None:
    q, k, v = inputs()

    def loss(q: Tensor) -> Tensor:
        return sdpa(q, k, v, is_causal=True).square().sum()

    def each_way() -> list[Tensor]:
        leaf = q.clone().requires_grad_()
        torch.utils.checkpoint.checkpoint(loss, leaf, use_reentrant=False).backward()
        assert leaf.grad is not None
        return [
            torch.vmap(lambda q: sdpa(q, k, v))(torch.stack([q, q + 1])),
            torch.func.grad(loss)(q),
            torch.vmap(torch.func.grad(loss))(torch.stack([q, q + 1])),
            leaf.grad,
        ]

    wanted = each_way()
    with accelerate():
        got = each_way()
    assert ran == {"forward": 7, "backward": 4}
    torch.testing.assert_close(got, wanted)


def test_compiled_graphs_follow_the_switch(ran: Counter[str]) -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return sdpa(q.sin(), k, v, is_causal=True).square()

    def compiled() -> Callable[..., Tensor]:
        torch._dynamo.reset()
        return torch.compile(layer, backend="aot_eager", fullgraph=True)

    args = inputs()
    before = compiled()
    wanted = before(*args)
    with accelerate():
        torch.testing.assert_close(before(*args), wanted)
        assert ran["forward"] == 1
        inside = compiled()
        q = args[0].clone().requires_grad_()
        inside(q, *args[1:]).sum().backward()
        assert ran == {"forward": 2, "backward": 1}
    assert torch.equal(inside(*args), wanted)
    assert torch.equal(before(*args), wanted)
    assert ran["forward"] == 2


class Opaque:
    """A context that the compiler cannot look through: what runs inside runs as it is, the compiler still at work."""

    def __enter__(self) -> None:
        torch._dynamo.graph_break()

    def __exit__(self, *_: object) -> None:
        torch._dynamo.graph_break()


def test_the_compiler_leaves_our_kernels_alone(ran: Counter[str]) -> None:
    def layer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with Opaque():
            torch._dynamo.graph_break()
            return sdpa(q, k, v, is_causal=True)

    def frames() -> int:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.compile(layer, backend="eager")(*inputs())
        return int(torch._dynamo.utils.counters["frames"]["total"])

    wanted = frames()
    with accelerate():
        assert frames() == wanted
    assert ran["forward"] == 1


def test_an_acceleration_watched_sees_what_watch_sees(ran: Counter[str]) -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attention(x, x, x) + sdpa(x, x, x)

    model, x = Both(), torch.randn(2, 4, 9, 16)
    plain = model(x)
    with accelerate(), watch(model) as trace:
        torch.testing.assert_close(model(x), plain)
    with watch(model) as other, accelerate():
        model(x)
    assert [len(t.calls) for t in (trace, other)] == [2, 2]  # each call once, whoever makes it
    assert ran["forward"] == 0  # what is watched is computed while it is observed
