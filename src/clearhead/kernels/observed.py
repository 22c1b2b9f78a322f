"""`observe` for autograd: one pass forward, and one backward for the output and everything measured that is differentiable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from clearhead.errors import ImplementationError, message
from clearhead.kernels import ops, select, terms, tiled
from clearhead.kernels.problem import Problem, exact
from clearhead.measuring import Measuring
from clearhead.observables import DIFFERENTIABLE

VALUE, BIAS = 2, 3  # where they stand among the differentiable inputs


def run(problem: Problem, measuring: Measuring, impl: str, *, gradients: bool) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and everything measured, by the names of `Observation`; only the output carries gradients without `gradients`."""
    found: dict[str, Tensor]
    inputs = ops.differentiable(problem)
    if ops.nobody_looks_on(*inputs) and not ops.needs_gradients(problem):
        with exact(problem):
            output, found = select.kernels(impl).observe(problem, measuring)
        return output, {"lse": found.pop("lse")} | found
    found = {}
    output, *smooth = _Observed.apply(*inputs, problem, measuring, impl, gradients, found)
    found |= dict(zip((name for name in found if name in DIFFERENTIABLE), smooth, strict=True))
    lse = found.pop("lse")
    if lse.requires_grad and problem.sinks is not None:  # made of two things that carry gradients
        with exact(problem):
            found["sink"] = tiled.share(problem.sinks.to(lse.dtype)[None, :, None], lse)
    return output, {"lse": lse} | found


class _Observed(torch.autograd.Function):
    """Output and what is differentiable; `found` is filled with everything measured."""

    @staticmethod
    def forward(ctx, query, key, value, bias, sinks, problem, measuring, impl, gradients, found):  # type: ignore[no-untyped-def]
        with exact(problem):
            output, measured = select.kernels(impl).observe(problem, measuring)
        found |= measured
        smooth = {name: x for name, x in found.items() if name in DIFFERENTIABLE}
        q, k, _, *others = ctx.needs_input_grad[:5]
        ctx.set_materialize_grads(False)
        ctx.problem, ctx.measuring, ctx.impl, ctx.names = problem, measuring, impl, tuple(smooth)
        if gradients and (q or k or any(others)):
            # Top keys carry none, but tell which key has the largest logit.
            kept = smooth | {name: x for name, x in found.items() if name == "top_keys"}
        else:
            ctx.mark_non_differentiable(*smooth.values())
            kept = {"lse": found["lse"]}
        ctx.kept = tuple(kept)
        ctx.save_for_backward(query, key, value, bias, sinks, output, *kept.values())
        return output, *smooth.values()

    @staticmethod
    def backward(ctx, grad_output, *grads):  # type: ignore[no-untyped-def]
        *inputs, output = ctx.saved_tensors[:6]
        found = dict(zip(ctx.kept, ctx.saved_tensors[6:], strict=True))
        given = {name: g for name, g in zip(ctx.names, grads, strict=True) if g is not None}
        with_bias = ctx.needs_input_grad[BIAS]
        nothing = (None,) * 5
        if grad_output is None and not given:
            return (*nothing, *nothing)
        if set(given) <= {"lse"} and (grad_output is not None or torch.is_grad_enabled()):
            # As of `attention`, any number of times.
            grad_output = torch.zeros_like(output) if grad_output is None else grad_output
            grad_lse = given.get("lse", torch.zeros_like(found["lse"]))
            saved = (*inputs, output, found["lse"])
            found_grads = ops.output_gradients(ctx.problem, ctx.impl, saved, grad_output, grad_lse, with_bias)
            return (*found_grads, *nothing)

        def compute(*tensors: Tensor | None) -> tuple[Tensor | None, ...]:
            query, key, value, bias, sinks, grad_output, *grads = tensors
            whole = dataclasses.replace(ctx.problem, query=query, key=key, value=value, bias=bias, sinks=sinks)
            of_names = dict(zip(given, grads, strict=True))
            with exact(whole):
                made = terms.gradients(whole, ctx.measuring, ctx.impl, output, found, grad_output, of_names, with_bias)
            there = [x is not None for x in tensors[:5]]
            there[VALUE] = grad_output is not None  # what is measured depends on no value
            return tuple(
                x.to(like.dtype) if x is not None and like is not None and wanted else None
                for x, like, wanted in zip(made, tensors[:5], there, strict=True)
            )

        return (*_once(compute, [*inputs, grad_output, *given.values()]), *nothing)


def _once(
    compute: Callable[..., tuple[Tensor | None, ...]], tensors: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """What `compute` gives for some tensors; who wants gradients of that is told who gives them."""
    if any(x is not None and _is_batched(x) for x in tensors):
        raise ImplementationError(
            message(
                "gradients of observables",
                expected="one incoming gradient at a time",
                got="a batch of them (vmap)",
                remedy='Loop over them, or use impl="reference".',
            )
        )
    found: tuple[Tensor | None, ...] = _Once.apply(compute, *tensors)
    return found


def _is_batched(x: Tensor) -> bool:
    """Whether a tensor stands for many, as under `torch.func.vmap` and, of old, under `is_grads_batched`."""
    functorch = torch._C._functorch
    return functorch.is_batchedtensor(x) or functorch.is_legacy_batchedtensor(x)


class _Once(torch.autograd.Function):
    """A computation that says clearly that it cannot be differentiated."""

    @staticmethod
    def forward(ctx, compute, *tensors):  # type: ignore[no-untyped-def]  # noqa: ARG004
        return compute(*tensors)

    @staticmethod
    def backward(ctx, *grads):  # type: ignore[no-untyped-def]  # noqa: ARG004
        raise ImplementationError(
            message(
                "gradients of observables",
                expected="to be differentiated once",
                got="a second derivative",
                remedy='Use impl="reference", which PyTorch differentiates any number of times.',
            )
        )
