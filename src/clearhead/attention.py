"""`attention()`, `observe()` and `explain()`: choose an implementation for a checked call, and run it."""

from __future__ import annotations

import dataclasses
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from clearhead import reference
from clearhead.arguments import CheckedCall, checked_call
from clearhead.biases import ALiBi
from clearhead.errors import dtype_name
from clearhead.kernels import observed, ops, select
from clearhead.kernels.problem import Problem, exact
from clearhead.masks import Mask
from clearhead.measuring import group_means, ready
from clearhead.observables import DIFFERENTIABLE, Observables, Observation

USUAL = Observables()  # what is measured unless told otherwise: made and checked once


class Observer(Protocol):
    """Whoever watches: given a checked call, measures what it wants and returns the call's output."""

    def __call__(self, call: Prepared) -> Tensor: ...  # noqa: D102


observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
"""Set by `clearhead.watch`: `attention()` then hands its call over instead of computing it unseen."""


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """Exact softmax attention: Σ_j p_ij v_j with p = softmax(softcap(q kᵀ · scale) + bias, where the mask allows).

    >>> q, k, v = torch.randn(1, 8, 5, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 9, 4)
    >>> attention(q, k, v, mask=Causal()).shape
    torch.Size([1, 8, 5, 4])

    Arguments:
        query: (…, Hq, Tq, D). Leading dimensions broadcast; without a head dimension, (T, D), there is one head.
        key: (…, Hk, Tk, D), Hq a multiple of Hk; query head h reads key head h // (Hq / Hk).
        value: (…, Hk, Tk, Dv).
        mask: a mask object, or a bool tensor (Tq, Tk) or (…, Hq, Tq, Tk) in which True means may attend. None: everything.
        bias: numbers added to the scores after scale and softcap, shape as a mask tensor; or `ALiBi`. −inf hides a pair.
        scale: what q kᵀ is multiplied by; default D^−½.
        softcap: c replaces a score s by c · tanh(s / c); default none.
        sinks: (Hq,), one more logit a head in the softmax's denominator, attending to nothing.
        impl: "auto", "cpu" (compiled kernels; float32 and 16 bits on CPUs), "tiled" (PyTorch operators; any device and dtype)
            or "reference" (the definition). An explicit name never falls back to another; `explain` says what "auto" takes.

    Returns:
        (…, Hq, Tq, Dv) in the inputs' dtype. A query that may see nothing gets exactly 0 and zero gradients. What a query may
        not see cannot reach it, not even NaN; NaN it may see gives NaN.

    Raises:
        ArgumentError: shapes, dtypes or values that do not fit, with the numbers.

    Time O(B·Hq·pairs that may be seen·(D + Dv)); memory beyond inputs and output O(T) (`reference`: O(Tq·Tk)). Accumulates
    in float32, float64 for float64. Differentiable in query, key, value, bias and sinks, twice. `torch.vmap` and autocast work;
    `torch.func.grad` does not, since PyTorch gives custom operators no way to support it: use `torch.autograd`.
    """
    call = checked_call(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    # A compiled graph is traced once and replayed: nobody can watch it, and the tracer cannot read a ContextVar.
    watcher = None if torch.compiler.is_compiling() else observer.get()
    prepared = Prepared(call, impl)
    return prepared.attend() if watcher is None else watcher(prepared)


def observe(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    observables: Observables | None = None,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: str = "auto",
) -> Observation:
    """What `attention` computes and, in the same pass, what every head looks at.

    >>> q, k, v = torch.randn(3, 1, 4, 100, 32)
    >>> seen = observe(q, k, v, mask=Causal())
    >>> seen.output.shape, seen.entropy.shape, seen.top_keys.shape
    (torch.Size([1, 4, 100, 32]), torch.Size([1, 4, 100]), torch.Size([1, 4, 100, 8]))

    Arguments as for `attention`, and `observables`: what to measure (default `Observables()`).

    Returns:
        An `Observation`. `.output` has the shape `attention` returns. Other tensors are (B, Hq, …) with all leading dimensions
        flattened into B.

    The output carries gradients as `attention`'s does. So do measured numbers that follow the weights smoothly (entropy,
    received weight, groups, …: `Observation` lists them), to query, key, bias and sinks, once and in O(T) memory; for second
    derivatives of those there is `impl="reference"`.

    Time, with the default observables: on CPUs a tenth to a third more than `attention` at 1,000 tokens and above, up to twice
    as much for very short texts; with "tiled" about three times as much. Memory O(T) beyond what was asked for; the pattern
    is never formed (`impl="reference"` does form it).
    """
    call = checked_call(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    return observe_call(call, USUAL if observables is None else observables, impl, gradients=True)


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: str = "auto",
) -> str:
    """Which implementation `attention` would use for these arguments, and why each other one not; computes nothing.

    >>> print(explain(torch.zeros(1, 8, 4), torch.zeros(1, 8, 4), torch.zeros(1, 8, 4)).splitlines()[1][:15])
    cpu        runs
    """
    call = checked_call(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    p = call.problem
    B, Hq, Tq, D = p.query.shape
    head = (
        f"attention on {p.query.device}, {dtype_name(p.query.dtype)}: "
        f"B={B} Hq={Hq} Hk={p.key.shape[1]} Tq={Tq} Tk={p.key.shape[2]} D={D} Dv={p.value.shape[3]}, mask {call.mask!r}"
    )
    return head + "\n" + select.table(select.choose(impl, p), impl, p)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A call that was checked and not yet computed: what a watcher is given, and what the doors into other models make."""

    call: CheckedCall
    impl: str = "auto"

    @property
    def problem(self) -> Problem:
        """The call's tensors, four-dimensional, and its numbers."""
        return self.call.problem

    @property
    def mask(self) -> Mask:
        """Who may attend to whom."""
        return self.call.mask

    def within(self, mask: Mask) -> Prepared:
        """The same call, in which a pair must be allowed by `mask` too."""
        both, p = self.call.mask & mask, self.problem
        plan = dataclasses.replace(p, plan=p.plan & mask.plan(self.call.sizes))
        return Prepared(dataclasses.replace(self.call, problem=plan, mask=both), self.impl)

    def attend(self) -> Tensor:
        """The output alone, in the caller's shape."""
        return self.call.shaped(attend_call(self.call, select.choose(self.impl, self.problem))[0])

    def observe(self, observables: Observables) -> Observation:
        """Output and measurements; only the output carries gradients, so that keeping the rest keeps nothing else."""
        return observe_call(self.call, observables, self.impl, gradients=False)


def attend_call(call: CheckedCall, name: str) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp from the named implementation."""
    if name == "reference":
        out, pattern = _by_definition(call)
        return out, pattern.lse
    return ops.run(call.problem, name)


def _by_definition(call: CheckedCall) -> tuple[Tensor, reference.Pattern]:
    """Output in the inputs' dtype, and the full pattern it was made from."""
    p = call.problem.in_compute_dtype()
    with exact(p):
        pattern = _pattern(call, p)
        out = reference.weighted_sum(pattern.weights, p.value.repeat_interleave(p.groups, dim=1), pattern.visible)
    return out.to(call.problem.query.dtype), pattern


def _pattern(call: CheckedCall, p: Problem) -> reference.Pattern:
    """The full pattern by definition, from the mask's rule rather than from its plan."""
    B, Tq, Tk, device = call.sizes.B, call.sizes.Tq, call.sizes.Tk, call.sizes.device
    visible = call.mask.dense(Tq, Tk, B=B, device=device)
    bias = p.bias
    if p.slopes is not None:
        bias = ALiBi(p.slopes, align=p.first_position).dense(Tq, Tk, device=device)[None].to(p.dtype)
    return reference.pattern(
        p.query, p.key, visible=visible, bias=bias, scale=p.scale, softcap=p.softcap, sinks=p.sinks
    )


def observe_call(call: CheckedCall, observables: Observables, impl: str, *, gradients: bool) -> Observation:
    """Output and measurements; whether measured numbers carry gradients too."""
    name = select.choose(impl, call.problem)
    p = call.problem
    measuring = ready(observables, p.query, p.key, p.value, call.mask.padded(call.sizes), p.dtype)
    if name == "reference":
        p = p.in_compute_dtype()
        output, pattern = _by_definition(call)
        with torch.set_grad_enabled(gradients and torch.is_grad_enabled()), exact(p):
            found = reference.observe(pattern, measuring, sinks=p.sinks)
        found = {n: x if gradients and n in DIFFERENTIABLE else x.detach() for n, x in found.items()}
    else:
        output, found = observed.run(call.problem, measuring, name, gradients=gradients)
    if measuring.value_norm is not None:
        found["value_norm"] = measuring.value_norm
    if measuring.key_groups is not None:
        found["group_mean"], found["group_queries"] = group_means(found["group_weight"], measuring)
    first = measuring.first_key
    if first:
        for n in (n for n in found if n.endswith("_keys")):
            found[n] = torch.where(found[n] >= 0, found[n] + first, found[n])
    return Observation({"output": call.shaped(output), **found}, measuring.offset + first, measuring.padded, first)
