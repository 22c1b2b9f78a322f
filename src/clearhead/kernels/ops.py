"""`clearhead::attention` and its backward as torch operators, so that compile, autograd, vmap and export see one op each.

An operator takes tensors and numbers only, so a mask travels as its `Plan`, field by field.
"""
# No `from __future__ import annotations` here: torch.library reads the operators' schemas from real annotations.

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from clearhead.kernels import select, tiled_backward
from clearhead.kernels.problem import Gradients, Problem, exact
from clearhead.plans import Plan


def _operator(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as `clearhead::name` for every backend; what it names from then on is the operator.

    `torch.library.custom_op` does the same, but imports torch's compiler on the first call, which takes over a second. Here
    the compiler is told to keep out of the function only when somebody has imported it.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        outside: list[Callable[..., Any]] = []  # the function the compiler keeps out of, once there is a compiler

        @functools.wraps(function)
        def run(*args: Any) -> Any:
            compiler = sys.modules.get("torch._dynamo")
            if compiler is None:
                return function(*args)
            if not outside:
                outside.append(compiler.disable(function))
            return outside[0](*args)

        full = f"clearhead::{name}"
        torch.library.define(full, torch.library.infer_schema(function, mutates_args=()))
        torch.library.impl(full, "default", run)
        operator: Callable[..., Any] = getattr(torch.ops.clearhead, name).default
        return operator

    return register


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lo: Tensor,
    hi: Tensor,
    query_labels: Tensor | None,
    key_labels: Tensor | None,
    dense: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float | None,
    offset: int | None,
) -> Problem:
    return Problem(
        query, key, value, Plan(lo, hi, query_labels, key_labels, dense), scale, softcap, bias, slopes, sinks, offset
    )


@_operator("attention")
def attention_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lo: Tensor,
    hi: Tensor,
    query_labels: Tensor | None,
    key_labels: Tensor | None,
    dense: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float | None,
    offset: int | None,
    impl: str,
) -> tuple[Tensor, Tensor]:
    """Output (B, Hq, Tq, Dv) and log-sum-exp (B, Hq, Tq), by the named implementation."""
    problem = _problem(
        query, key, value, lo, hi, query_labels, key_labels, dense, bias, slopes, sinks, scale, softcap, offset
    )
    with exact(problem):
        return select.kernels(impl).attention(problem)


@torch.library.register_fake("clearhead::attention")
def _(query, _key, value, *_):  # type: ignore[no-untyped-def]
    compute = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(*query.shape[:3], value.shape[3]), query.new_empty(query.shape[:3], dtype=compute)


@_operator("attention_backward")
def attention_backward_op(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lo: Tensor,
    hi: Tensor,
    query_labels: Tensor | None,
    key_labels: Tensor | None,
    dense: Tensor | None,
    bias: Tensor | None,
    slopes: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    softcap: float | None,
    offset: int | None,
    impl: str,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor,
    with_bias: bool,
) -> list[Tensor]:
    """Gradients of query, key, value, bias, sinks, each in its input's dtype; an empty tensor where there is no input.

    The bias's is only computed `with_bias`, else it is empty too.
    """
    problem = _problem(
        query, key, value, lo, hi, query_labels, key_labels, dense, bias, slopes, sinks, scale, softcap, offset
    )
    found = _gradients(problem, impl, out, lse, grad_out, grad_lse, with_bias)
    return [g.contiguous() for g in found]  # as the compiler is told below


def _gradients(
    problem: Problem, impl: str, out: Tensor, lse: Tensor, grad_out: Tensor, grad_lse: Tensor, with_bias: bool
) -> list[Tensor]:
    """What `attention_backward_op` returns."""
    with exact(problem):
        found = select.kernels(impl).backward(problem, out, lse, grad_out, grad_lse, with_bias)
    return [
        problem.query.new_empty(0) if x is None or g is None else g.to(x.dtype)
        for x, g in zip(differentiable(problem), found, strict=True)
    ]


@torch.library.register_fake("clearhead::attention_backward")
def _(query, key, value, _lo, _hi, _ql, _kl, _dense, bias, _slopes, sinks, *rest):  # type: ignore[no-untyped-def]
    wanted = (query, key, value, bias if rest[-1] else None, sinks)
    return [
        query.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in wanted
    ]


INPUTS = 15  # arguments of attention_op
BIAS, SINKS = 8, 10  # where bias and sinks stand among them
LABELS, PER_HEAD = (5, 6), (9, SINKS)  # arguments whose batch is their second dimension; arguments (Hq,)


def _keep(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    """Save what the backward needs: every tensor argument and both results; the others are kept as they are."""
    ctx.others = inputs[11:INPUTS]
    ctx.save_for_backward(*inputs[:11], *output)
    ctx.set_materialize_grads(True)


def _backward(ctx, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    *tensors, out, lse = ctx.saved_tensors
    with_bias = ctx.needs_input_grad[BIAS]
    grads = attention_backward_op(*tensors, *ctx.others, out, lse, grad_out, grad_lse, with_bias)
    return _arranged(grads, tensors, INPUTS)


def _arranged(
    grads: Sequence[Tensor | None], tensors: Sequence[Tensor | None], count: int
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, bias, sinks at their places among `count` arguments."""
    places: list[Tensor | None] = [None] * count
    places[:3] = grads[:3]
    for at, grad in ((BIAS, grads[3]), (SINKS, grads[4])):
        x = tensors[at]
        places[at] = None if x is None or grad is None or grad.shape != x.shape else grad
    return tuple(places)


torch.library.register_autograd("clearhead::attention", _backward, setup_context=_keep)


def _keep_backward(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]  # noqa: ARG001
    ctx.others = inputs[11:14]
    ctx.save_for_backward(*inputs[:11], *inputs[INPUTS:-1])


def _double_backward(ctx, incoming: list[Tensor]) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    *tensors, out, lse, grad_out, grad_lse = ctx.saved_tensors
    problem = _problem(*tensors, *ctx.others)
    arriving = [
        None if x is None or g is None or g.shape != x.shape else g.to(problem.dtype)
        for x, g in zip((*tensors[:3], tensors[BIAS], tensors[SINKS]), incoming, strict=True)
    ]
    with exact(problem):
        totals, d_out, d_lse, d_grad_out, d_grad_lse = tiled_backward.double_backward(
            problem,
            out,
            lse,
            grad_out,
            grad_lse,
            Gradients(*arriving),  # type: ignore[arg-type]
        )
    grads = [
        None if x is None or g is None else g.to(x.dtype)
        for x, g in zip((*tensors[:3], tensors[BIAS], tensors[SINKS]), totals, strict=True)
    ]
    tail = (d_out.to(out.dtype), d_lse, d_grad_out.to(grad_out.dtype), d_grad_lse)
    return (*_arranged(grads, tensors, INPUTS), *tail, None)


torch.library.register_autograd("clearhead::attention_backward", _double_backward, setup_context=_keep_backward)


def _looped(op, info, in_dims, args):  # type: ignore[no-untyped-def]
    """vmap by running an operator once for every entry of the mapped dimension."""
    results = [
        op(*(x if d is None else x.select(d, n) for x, d in zip(args, in_dims, strict=True)))
        for n in range(info.batch_size)
    ]
    return [torch.stack(part) for part in zip(*results, strict=True)]


@torch.library.register_vmap("clearhead::attention")
def _(info, in_dims, *args):  # type: ignore[no-untyped-def]
    """N maps of B samples are N·B samples of one call."""
    if any(in_dims[at] is not None for at in PER_HEAD):  # numbers a head cannot differ between samples of one call
        return tuple(_looped(attention_op, info, in_dims, args)), (0, 0)
    N = info.batch_size
    query, d = args[0], in_dims[0]
    B = query.shape[0] if d is None else query.movedim(d, 0).shape[1]

    def fold(at: int):  # type: ignore[no-untyped-def]
        x, d = args[at], in_dims[at]
        if not isinstance(x, Tensor) or at in PER_HEAD:
            return x
        axis = 1 if at in LABELS else 0  # where the batch stands
        if d is None and x.shape[axis] == 1 and at > 2:
            return x  # the same for every sample, as before
        x = x.unsqueeze(axis) if d is None else x.movedim(d, axis)
        wide = list(x.shape)
        wide[axis : axis + 2] = [N, B]
        return x.expand(wide).flatten(axis, axis + 1)

    results = attention_op(*(fold(at) for at in range(INPUTS)))
    return tuple(x.unflatten(0, (N, B)) for x in results), (0, 0)


@torch.library.register_vmap("clearhead::attention_backward")
def _(info, in_dims, *args):  # type: ignore[no-untyped-def]
    """What Jacobians ask for: the same call with many incoming gradients."""
    return _looped(attention_backward_op, info, in_dims, args), [0] * 5


def run(problem: Problem, impl: str) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of a problem by the named implementation.

    Through the operator where something looks on that must see one (a compiler, vmap, a tracer), else straight to the
    kernel: an operator written in Python costs about 0.1 ms a call.
    """
    if nobody_looks_on(*differentiable(problem)):
        kernel = select.kernels(impl).attention  # not above: a compiler would trace the loading of it
        if not needs_gradients(problem):
            with exact(problem):
                return kernel(problem)
        output, lse = _Eager.apply(*differentiable(problem), problem, impl, kernel)
        return output, lse
    plan = problem.plan
    output, lse = attention_op(
        problem.query,
        problem.key,
        problem.value,
        plan.lo,
        plan.hi,
        plan.query_labels,
        plan.key_labels,
        plan.dense,
        problem.bias,
        problem.slopes,
        problem.sinks,
        problem.scale,
        problem.softcap,
        problem.offset,
        impl,
    )
    return output, lse


def differentiable(problem: Problem) -> tuple[Tensor | None, ...]:
    """Query, key, value, bias and sinks."""
    return problem.query, problem.key, problem.value, problem.bias, problem.sinks


def needs_gradients(problem: Problem) -> bool:
    """Whether autograd will ask for gradients of what is computed now."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in differentiable(problem))


def nobody_looks_on(*tensors: Tensor | None) -> bool:
    """Whether these are plain tensors in plain eager mode, so that nobody can tell an operator from a function."""
    return (
        not torch.compiler.is_compiling()
        and all(x is None or type(x) is Tensor or type(x) is torch.nn.Parameter for x in tensors)
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )


class _Eager(torch.autograd.Function):
    """A kernel with the gradients of `attention_op`, of any order."""

    @staticmethod
    def forward(ctx, query, key, value, bias, sinks, problem, impl, kernel):  # type: ignore[no-untyped-def]
        with exact(problem):
            output, lse = kernel(problem)
        ctx.problem, ctx.impl = problem, impl
        ctx.save_for_backward(query, key, value, bias, sinks, output, lse)
        return output, lse

    @staticmethod
    def backward(ctx, grad_out, grad_lse):  # type: ignore[no-untyped-def]
        grads = output_gradients(ctx.problem, ctx.impl, ctx.saved_tensors, grad_out, grad_lse, ctx.needs_input_grad[3])
        return (*grads, None, None, None)


def output_gradients(
    p: Problem, impl: str, saved: Sequence[Any], grad_out: Tensor, grad_lse: Tensor, with_bias: bool
) -> tuple[Tensor | None, ...]:
    """Gradients of query, key, value, bias and sinks; `saved` are those, the output and L, as autograd keeps them."""
    query, key, value, bias, sinks, output, lse = saved
    last = (output, lse, grad_out, grad_lse, with_bias)
    if not torch.is_grad_enabled() and nobody_looks_on(grad_out, grad_lse):
        grads = _gradients(
            dataclasses.replace(p, query=query, key=key, value=value, bias=bias, sinks=sinks), impl, *last
        )
    else:
        grads = attention_backward_op(
            query, key, value, p.plan.lo, p.plan.hi, p.plan.query_labels, p.plan.key_labels, p.plan.dense, bias,
            p.slopes, sinks, p.scale, p.softcap, p.offset, impl, *last,
        )  # fmt: skip
    return (*grads[:3], grads[3] if with_bias else None, None if sinks is None else grads[4])
