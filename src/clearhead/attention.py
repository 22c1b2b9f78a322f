"""`attention()` and `observe()`: check the arguments, choose an implementation, call it."""

from __future__ import annotations

import dataclasses
import math
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from clearhead import measuring as measured
from clearhead import reference
from clearhead.biases import ALiBi
from clearhead.errors import ArgumentError, message, shape_of
from clearhead.kernels import observed, ops, select
from clearhead.kernels.problem import Problem, exact
from clearhead.masks import All, Causal, Dense, Mask, Plan, Prefix, Sizes, Window
from clearhead.observables import DIFFERENTIABLE, Observables, Observation

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


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
    call = _prepare(query, key, value, mask, bias, scale, softcap, sinks)
    # A compiled graph is traced once and replayed: nobody can watch it, and the tracer cannot read a ContextVar.
    watcher = None if torch.compiler.is_compiling() else observer.get()
    if watcher is not None:
        return watcher(Prepared(call, impl))
    return call.shaped(_attend(call, select.choose(impl, call.problem))[0])


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
    call = _prepare(query, key, value, mask, bias, scale, softcap, sinks)
    return _observe(call, Observables() if observables is None else observables, impl, gradients=True)


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
    call = _prepare(query, key, value, mask, bias, scale, softcap, sinks)
    p = call.problem
    B, Hq, Tq, D = p.query.shape
    head = (
        f"attention on {p.query.device}, {str(p.query.dtype).removeprefix('torch.')}: "
        f"B={B} Hq={Hq} Hk={p.key.shape[1]} Tq={Tq} Tk={p.key.shape[2]} D={D} Dv={p.value.shape[3]}, mask {call.mask!r}"
    )
    return head + "\n" + select.table(select.choose(impl, p), impl, p)


@dataclass(frozen=True, eq=False)
class _Call:
    """A checked call: four-dimensional, with the mask object kept for `reference`."""

    problem: Problem
    mask: Mask
    sizes: Sizes
    lead: tuple[int, ...]  # leading dimensions of the caller's shape; () when there was no batch
    headless: bool  # the caller gave (T, D)

    def shaped(self, out: Tensor) -> Tensor:
        """The result in the caller's shape."""
        if self.headless:
            return out[0, 0]
        return out.reshape(*self.lead, *out.shape[1:]) if self.lead != out.shape[:1] else out


@dataclass(frozen=True, eq=False)
class Prepared:
    """A call that was checked and not yet computed: what a watcher is given, and what the doors into other models make."""

    call: _Call
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
        return self.call.shaped(_attend(self.call, select.choose(self.impl, self.problem))[0])

    def observe(self, observables: Observables) -> Observation:
        """Output and measurements; only the output carries gradients, so that keeping the rest keeps nothing else."""
        return _observe(self.call, observables, self.impl, gradients=False)


def prepare(
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
) -> Prepared:
    """Check what `attention` would be called with, and compute nothing yet. Arguments and errors are those of `attention`."""
    return Prepared(_prepare(query, key, value, mask, bias, scale, softcap, sinks), impl)


def _attend(call: _Call, name: str) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp from the named implementation."""
    if name == "reference":
        out, pattern = _by_definition(call)
        return out, pattern.lse
    return ops.run(call.problem, name)


def _by_definition(call: _Call) -> tuple[Tensor, reference.Pattern]:
    """Output in the inputs' dtype, and the full pattern it was made from."""
    p = call.problem.in_compute_dtype()
    with exact(p):
        pattern = _pattern(call, p)
        out = reference.weighted_sum(pattern.weights, p.value.repeat_interleave(p.groups, dim=1), pattern.visible)
    return out.to(call.problem.query.dtype), pattern


def _pattern(call: _Call, p: Problem) -> reference.Pattern:
    """The full pattern by definition, from the mask's rule rather than from its plan."""
    i = torch.arange(call.sizes.Tq, device=call.sizes.device).view(1, 1, -1, 1)
    j = torch.arange(call.sizes.Tk, device=call.sizes.device).view(1, 1, 1, -1)
    visible = call.mask.rule(i, j, call.sizes).expand(-1, -1, call.sizes.Tq, call.sizes.Tk)
    bias = p.bias
    if p.slopes is not None:
        slopes = ALiBi(p.slopes, align=p.first_position)
        bias = slopes.dense(call.sizes.Tq, call.sizes.Tk, device=call.sizes.device)[None].to(p.dtype)
    return reference.pattern(
        p.query, p.key, visible=visible, bias=bias, scale=p.scale, softcap=p.softcap, sinks=p.sinks
    )


def _observe(call: _Call, observables: Observables, impl: str, *, gradients: bool) -> Observation:
    name = select.choose(impl, call.problem)
    p = call.problem
    measuring = measured.ready(observables, p.query, p.key, p.value, call.mask.padded(call.sizes), p.dtype)
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
        found["group_mean"], found["group_queries"] = measured.group_means(found["group_weight"], measuring)
    first = measuring.first_key
    if first:
        for n in (n for n in found if n.endswith("_keys")):
            found[n] = torch.where(found[n] >= 0, found[n] + first, found[n])
    return Observation({"output": call.shaped(output), **found}, measuring.offset + first, measuring.padded, first)


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Mask | Tensor | None,
    bias: Tensor | ALiBi | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> _Call:
    """Check everything, and bring it into four dimensions."""
    _check_tensors(query, key, value)
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype != torch.float64:
        lower = torch.get_autocast_dtype(device)
        query, key, value = query.to(lower), key.to(lower), value.to(lower)
    headless = query.ndim == 2
    if headless:
        query, key, value = query[None], key[None], value[None]
    lead = _check_shapes(query, key, value)
    B = math.prod(lead)
    Hq, Tq, D = query.shape[-3:]
    Tk = key.shape[-2]
    if len(lead) != 1 or not query.shape[0] == key.shape[0] == value.shape[0]:
        query, key, value = (x.expand(*lead, -1, -1, -1).reshape(B, *x.shape[-3:]) for x in (query, key, value))
    sizes = Sizes(B, Tq, Tk, query.device)
    if isinstance(mask, Tensor):
        Dense(mask)  # its dtype error comes before any about its shape
        mask = Dense(_pairs("mask", mask, lead, Hq, Tq, Tk, headless))
    elif mask is None:
        mask = All()
    elif not isinstance(mask, Mask):
        raise ArgumentError(
            message(
                "mask",
                expected="a mask object such as Causal(), or a bool tensor in which True means may attend",
                got=type(mask).__name__ if not isinstance(mask, type) else f"the class {mask.__name__}",
                remedy="Write Causal() with parentheses; combine with &.",
            )
        )
    slopes = offset = None
    if isinstance(bias, ALiBi):
        offset = bias.offset(Tq, Tk)
        slopes, bias = _check_per_head("ALiBi slopes", bias.slopes, Hq).to(query.device), None
    elif bias is not None:
        if not isinstance(bias, Tensor) or not bias.is_floating_point():
            raise ArgumentError(
                message(
                    "bias",
                    expected="a floating-point tensor, added to the scores, or ALiBi(heads)",
                    got=f"a {bias.dtype} tensor" if isinstance(bias, Tensor) else type(bias).__name__,
                    remedy="A bool tensor that says who may attend goes to mask=.",
                )
            )
        bias = _pairs("bias", bias, lead, Hq, Tq, Tk, headless)
    if sinks is not None:
        sinks = _check_per_head("sinks", sinks, Hq)
    if scale is None:
        scale = D**-0.5 if D else 1.0
    if not math.isfinite(scale):
        raise ArgumentError(
            message("scale", expected="a finite number", got=repr(scale), remedy="Leave it out for D ** -0.5.")
        )
    if softcap is not None and not (math.isfinite(softcap) and softcap > 0):
        raise ArgumentError(
            message("softcap", expected="a finite number > 0", got=repr(softcap), remedy="Leave it out for no cap.")
        )
    plan = _plan(mask, sizes)
    problem = Problem(query, key, value, plan, float(scale), softcap, bias, slopes, sinks, offset)
    return _Call(problem, mask, sizes, lead if query.ndim != 0 and not headless else (), headless)


def _plan(mask: Mask, sizes: Sizes) -> Plan:
    """A mask's plan on the inputs' device; of masks that are plain numbers the last few are kept: every layer asks again."""
    if isinstance(mask, All | Causal | Window | Prefix) and not torch.compiler.is_compiling():
        numbers = tuple(vars(mask).values())
        if all(isinstance(x, int | str) for x in numbers) and torch._C._len_torch_dispatch_stack() == 0:
            return _kept_plan(type(mask), numbers, sizes)  # type: ignore[arg-type]
    plan = mask.plan(sizes)
    parts = (plan.lo, plan.hi, plan.query_labels, plan.key_labels, plan.dense)
    return Plan(*(None if x is None else x.to(sizes.device) for x in parts))  # type: ignore[arg-type]


@lru_cache(maxsize=16)
def _kept_plan(kind: type[Mask], numbers: tuple[int | str, ...], sizes: Sizes) -> Plan:
    with torch.inference_mode(False):  # what is made in inference mode cannot be kept for a backward later
        return kind(*numbers).plan(sizes)


def _all_shapes(query: Tensor, key: Tensor, value: Tensor) -> str:
    letters = ("Hq Tq D", "Hk Tk D", "Hk Tk Dv")
    names = ("query", "key", "value")
    shapes = zip(names, (query, key, value), letters, strict=True)
    return ", ".join(f"{n} {shape_of(x, s if x.ndim > 2 else s[3:])}" for n, x, s in shapes)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise ArgumentError(
                message(name, expected="a torch.Tensor", got=type(x).__name__, remedy="Use torch.as_tensor(...).")
            )
        if x.dtype not in DTYPES:
            raise ArgumentError(
                message(
                    name,
                    expected="dtype float32, bfloat16, float16 or float64",
                    got=str(x.dtype).removeprefix("torch."),
                    remedy=f"Convert it: {name}.float().",
                )
            )
        if x.ndim < 2:
            raise ArgumentError(
                message(
                    name,
                    expected="(…, H, T, D), or (T, D) for one head",
                    got=str(tuple(x.shape)),
                    remedy="Attention needs a sequence and a width.",
                )
            )
        if x.dtype != query.dtype or x.device != query.device:
            raise ArgumentError(
                message(
                    name,
                    expected=f"dtype and device of query ({query.dtype}, {query.device})",
                    got=f"{x.dtype}, {x.device}",
                    remedy=f"Convert it: {name}.to(query).",
                )
            )
        if (x.ndim == 2) != (query.ndim == 2):
            raise ArgumentError(
                message(
                    name,
                    expected=f"a head dimension as query has it (query {tuple(query.shape)})",
                    got=str(tuple(x.shape)),
                    remedy="Give all three a head dimension, or none: x[None].",
                )
            )


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    """The broadcast leading dimensions; raises where the shapes do not fit together."""
    Hq, D = query.shape[-3], query.shape[-1]
    Hk, Tk = key.shape[-3], key.shape[-2]

    def shapes() -> str:
        return _all_shapes(query, key, value)

    if key.shape[-1] != D:
        raise ArgumentError(f"key has width {key.shape[-1]} but query has {D}: they must have the same D ({shapes()})")
    if value.shape[-2] != Tk:
        raise ArgumentError(f"value has {value.shape[-2]} positions but key has {Tk}: one value a key, Tk ({shapes()})")
    if value.shape[-3] != Hk:
        raise ArgumentError(
            f"value has {value.shape[-3]} heads but key has {Hk}: they must have the same Hk ({shapes()})"
        )
    if (Hk == 0) != (Hq == 0) or (Hk and Hq % Hk):
        raise ArgumentError(f"key has {Hk} heads but query has {Hq}: Hq must be a multiple of Hk ({shapes()})")
    if query.shape[:-3] == key.shape[:-3] == value.shape[:-3]:
        return tuple(query.shape[:-3])
    try:
        lead = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    except RuntimeError:
        raise ArgumentError(
            f"leading dimensions of query {tuple(query.shape[:-3])}, key {tuple(key.shape[:-3])} and value "
            f"{tuple(value.shape[:-3])} do not broadcast: make each pair equal or 1 ({shapes()})"
        ) from None
    return tuple(lead)


def _pairs(name: str, x: Tensor, lead: tuple[int, ...], Hq: int, Tq: int, Tk: int, headless: bool) -> Tensor:
    """A mask or bias tensor as (B or 1, Hq or 1, Tq or 1, Tk or 1), without expanding what it does not depend on."""
    given = tuple(x.shape)
    full = (*lead, Hq, Tq, Tk)
    ok = x.ndim == 2 or (x.ndim == len(full) and not headless)
    if ok:
        x = x[(None,) * (len(full) - x.ndim)]
        ok = all(n in (1, m) for n, m in zip(x.shape, full, strict=True))
    if not ok:
        letters = "…, Hq, Tq, Tk" if len(lead) > 1 else "B, Hq, Tq, Tk" if lead else "Hq, Tq, Tk"
        raise ArgumentError(
            message(
                name,
                expected=f"(Tq, Tk) or ({letters}) = {full}, sizes of 1 allowed",
                got=str(given),
                remedy=f"A batch of masks needs a head dimension of its own: {name}[:, None].",
            )
        )
    if math.prod(x.shape[:-3]) == 1:
        return x.reshape(1, *x.shape[-3:])
    return x.expand(*lead, *x.shape[-3:]).reshape(math.prod(lead), *x.shape[-3:])


def _check_per_head(name: str, x: Tensor, Hq: int) -> Tensor:
    if x.shape != (Hq,) or not x.is_floating_point():
        raise ArgumentError(
            message(
                name,
                expected=f"one number a query head, floating point, shape (Hq={Hq},)",
                got=f"{x.dtype} of shape {tuple(x.shape)}",
                remedy="Each query head has its own; key heads have none.",
            )
        )
    return x
