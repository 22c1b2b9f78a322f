"""Gradients by finite differences, twice; what the backward keeps; what compile and the operator registry see."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead import ALiBi, Causal, Documents, Padding, Prefix, Window, attention, observe
from clearhead.kernels import ops, select
from clearhead.kernels.cpu import threads
from clearhead.masks import All, Mask, Sizes

# Seven queries on nine keys, four heads on two, as small as finite differences like it.
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": Causal()},
    "causal, softcap": {"mask": Causal(), "softcap": 1.5},
    "rows that see nothing": {"mask": Causal(align="start") & Padding(torch.tensor([0, 5]))},
    "window to both sides": {"mask": Window(2, right=1), "scale": -0.8},
    "prefix": {"mask": Prefix(torch.tensor([1, 3]), align=torch.tensor([0, 1]))},
    "documents": {"mask": Documents(torch.tensor([0, 1, 0, 1, 2, 2, 0, 0, 1]))},
    "dense": {"mask": torch.rand(2, 4, 7, 9, generator=torch.Generator().manual_seed(1)) < 0.6},
    "alibi": {"bias": ALiBi(4), "mask": Causal()},
    "alibi from a position": {"bias": ALiBi(4, align=5), "mask": Causal()},
    "scale 0": {"scale": 0.0},
}


def inputs(*, bias: tuple[int, ...] | None = None, sinks: bool = False) -> list[Tensor]:
    shapes: list[tuple[int, ...]] = [(2, 4, 7, 3), (2, 2, 9, 3), (2, 2, 9, 2)]
    if bias is not None:
        shapes.append(bias)
    if sinks:
        shapes.append((4,))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, **OPTIONS[name]), inputs(), fast_mode=True)


@pytest.mark.parametrize("name", OPTIONS)
def test_second_gradients_are_those_of_finite_differences(name: str) -> None:
    assert torch.autograd.gradgradcheck(lambda q, k, v: attention(q, k, v, **OPTIONS[name]), inputs(), fast_mode=True)


def with_bias_and_sinks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
    return attention(q, k, v, mask=Causal(), bias=bias, sinks=sinks, softcap=2.0)


@pytest.mark.tiny
@pytest.mark.parametrize("shape", [(7, 9), (2, 4, 7, 9), (1, 4, 1, 9), (2, 1, 7, 1)])
def test_bias_and_sinks_have_gradients_twice(shape: tuple[int, ...]) -> None:
    leaves = inputs(bias=shape, sinks=True)
    assert torch.autograd.gradcheck(with_bias_and_sinks, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(with_bias_and_sinks, leaves, fast_mode=True)


def test_the_slow_and_complete_check_passes_too() -> None:
    """`fast_mode` looks along one random direction; this one looks along all."""
    leaves = [x.detach()[:1, :2, :3].requires_grad_() for x in inputs()]
    leaves[1], leaves[2] = (x.detach()[:, :1].requires_grad_() for x in leaves[1:])
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, mask=Causal(), softcap=2.0), leaves)


def test_a_bias_that_hides_has_no_gradient_where_it_hides() -> None:
    q, k, v, bias = inputs(bias=(7, 9))
    hidden = torch.rand(7, 9) < 0.4
    bias = bias.detach().masked_fill(hidden, -torch.inf).requires_grad_()
    found = torch.autograd.grad(attention(q, k, v, bias=bias).sin().sum(), (q, k, v, bias))
    assert all(bool(torch.isfinite(g).all()) for g in found)
    assert bool((found[3][hidden] == 0).all())
    assert bool((found[3][~hidden] != 0).any())


def test_the_output_of_observe_is_twice_differentiable() -> None:
    def output(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return observe(q, k, v, mask=Causal()).output

    assert torch.autograd.gradcheck(output, inputs(), fast_mode=True)
    assert torch.autograd.gradgradcheck(output, inputs(), fast_mode=True)
    leaves = inputs(bias=(1, 4, 7, 9), sinks=True)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v, b, s: observe(q, k, v, bias=b, sinks=s, softcap=2.0).output, leaves, fast_mode=True
    )


def test_only_what_asks_for_a_gradient_gets_one() -> None:
    q, k, v = (x.detach() for x in inputs())
    v.requires_grad_()
    attention(q, k, v, mask=Causal()).sum().backward()
    assert v.grad is not None
    assert q.grad is None


# ------------------------------------------------------------------------------------------------------ memory


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns, and how many operations there were."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.operations = 0

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function watched from inside: a mode sees an operator as one call, and not what its kernel does."""

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return watched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for x in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(x, Tensor) and x.untyped_storage().nbytes() == x.numel() * x.element_size():
                self.largest = max(self.largest, x.numel())
        return result


MASKS: dict[str, Mask] = {
    "all": All(),
    "causal": Causal(),
    "window": Window(100),
    "documents": Documents(torch.arange(4096) % 3),
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("impl", ["cpu", "tiled"])
def test_nothing_of_size_t_by_t_is_made_forward_or_backward_or_observing(
    mask: str, impl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    T, D = 4096, 4
    leaves = [torch.randn(1, 1, T, D, requires_grad=True) for _ in range(3)]
    seen = {name: LargestTensor() for name in select.Kernels._fields}
    watched = select.Kernels(*(seen[name].within(f) for name, f in select.kernels(impl)._asdict().items()))
    monkeypatch.setattr(select, "kernels", lambda _: watched)
    monkeypatch.setattr(threads, "_kept", threading.local())  # scratch memory of earlier calls would not be seen
    attention(*leaves, mask=MASKS[mask], impl=impl).sum().backward()
    observe(*leaves, mask=MASKS[mask], impl=impl)
    for name, one in seen.items():
        inside = one.operations > 100 if impl == "tiled" else one.largest >= T  # compiled code makes its results only
        assert inside, f"{name} was not watched from inside"
        # Observing holds whole rows, a block of them at a time; the compiled backward sums keys in up to 64 parts.
        limit = T * 512 if name == "observe" or impl == "cpu" else T * 64
        assert one.largest <= limit, f"{name} makes a tensor of {one.largest} elements where T*T is {T * T}"


def test_what_is_kept_for_the_backward_is_a_few_numbers_a_token() -> None:
    T, D = 512, 8
    kept = []
    leaves = [torch.randn(1, 2, T, D, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        out = attention(*leaves, mask=Causal())
    assert out.requires_grad
    assert sum(kept) <= 8 * 2 * T * D


# ------------------------------------------------------------------------------------ the operator and compile


def op_arguments(mask: Mask, impl: str, **more: Any) -> tuple[Any, ...]:
    q, k, v = (x.detach().to(DTYPE[impl]).requires_grad_() for x in inputs())
    plan = mask.plan(Sizes(2, 7, 9, q.device))
    given = {"bias": None, "slopes": None, "sinks": None, "scale": 0.5, "softcap": None, "offset": None} | more
    labels = plan.query_labels, plan.key_labels
    return (q, k, v, plan.lo, plan.hi, *labels, plan.dense, *given.values(), impl)


DTYPE = {"cpu": torch.float32, "tiled": torch.float64}


@pytest.mark.parametrize("impl", DTYPE)
@pytest.mark.parametrize("name", ["plain", "causal", "documents", "dense"])
def test_the_registered_operator_keeps_the_rules_of_operators(name: str, impl: str) -> None:
    from clearhead.masks import Dense

    mask = OPTIONS[name].get("mask", All())
    arguments = op_arguments(Dense(mask) if isinstance(mask, Tensor) else mask, impl)
    torch.library.opcheck(ops.attention_op, arguments)


@pytest.mark.parametrize("impl", DTYPE)
def test_the_backward_operator_gives_what_the_compiler_is_told(impl: str) -> None:
    bias, sinks = (x.detach().to(DTYPE[impl]) for x in inputs(bias=(1, 4, 7, 9), sinks=True)[3:])
    arguments = op_arguments(Causal(), impl, bias=bias, sinks=sinks)
    with torch.no_grad():
        out, lse = ops.attention_op(*arguments)
    incoming = torch.randn_like(out), torch.randn_like(lse)
    for with_bias in (False, True):
        whole = (*arguments, out, lse, *incoming, with_bias)
        torch.library.opcheck(ops.attention_backward_op, whole, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("impl", DTYPE)
def test_the_registered_operator_keeps_the_rules_with_every_option(impl: str) -> None:
    bias, sinks = (x.detach().to(DTYPE[impl]).requires_grad_() for x in inputs(bias=(1, 4, 7, 9), sinks=True)[3:])
    torch.library.opcheck(ops.attention_op, op_arguments(Causal(), impl, bias=bias, sinks=sinks, softcap=2.0))
    torch.library.opcheck(ops.attention_op, op_arguments(Causal(), impl, slopes=ALiBi(4).slopes, offset=3))


COMPILED = """
    import torch, clearhead
    from clearhead import Causal, Documents, attention
    graphs = []

    def backend(module, example_inputs):
        graphs.append(module)
        return module.forward

    ids = torch.tensor([0, 0, 1, 1, 1, 2])

    def model(q, k, v):
        return attention(q * 2, k, v, mask=Causal() & Documents(ids), softcap=3.0).relu()

    q, k, v = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    out = torch.compile(model, fullgraph=True, backend=backend)(q, k, v)
    torch.testing.assert_close(out, model(q, k, v))
    (graph,) = graphs
    names = [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
    print(sum("clearhead.attention" in n for n in names), sum("matmul" in n or "bmm" in n or "softmax" in n for n in names))
    out.sum().backward()
    again = torch.autograd.grad(model(q, k, v).sum(), q)[0]
    torch.testing.assert_close(q.grad, again)
    # the whole way, through AOTAutograd, as every real backend goes
    aot = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(aot(q, k, v).sum(), q)[0], again)
"""


def test_compile_keeps_it_as_one_operator_in_one_graph() -> None:
    # In a process of its own: the type-checking hook of the test session is Python that a tracer need not follow.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(COMPILED)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["1", "0"]
