"""Random attention calls for the property tests, three independent oracles, and small helpers the tests share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from clearhead import (
    ALiBi,
    All,
    Causal,
    Documents,
    Observables,
    Observation,
    Padding,
    Prefix,
    Window,
    attention,
    observe,
)
from clearhead.kernels import tiled, tiled_observe
from clearhead.masks import Dense, Mask
from clearhead.testing import assert_within_tolerance, math_path

# The most precise dtype of every implementation: the compiled one has no float64.
PRECISE = {"cpu": torch.float32, "tiled": torch.float64, "reference": torch.float64}
IMPLS = list(PRECISE)

PER_QUERY = (
    "lse", "max_logit", "entropy", "self_weight", "previous_weight", "first_weight", "distance", "sink", "same_token",
    "after_same_token", "sum_squares", "distance_histogram", "group_weight", "top_contributions", "group_top_weights",
)  # fmt: skip
COUNTS = ("visible", "viewers", "group_queries")
# Keys that were ranked, and what they were ranked by.
RANKED = {
    "top_keys": "top_weights",
    "top_contribution_keys": "top_contributions",
    "group_top_keys": "group_top_weights",
}


@dataclass(frozen=True, eq=False)
class Case:
    """One call: query, key, value of four dimensions and what else attention() takes."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        q, k, v = (tuple(x.shape) for x in (self.query, self.key, self.value))
        return f"Case(query {q}, key {k}, value {v}, {self.options})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would print every number

    @property
    def args(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """B, Hq, Tq, Tk."""
        return (*self.query.shape[:3], self.key.shape[2])

    def to(self, dtype: torch.dtype) -> Case:
        """Every floating-point number rounded to dtype."""

        def cast(x: Any) -> Any:
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        return Case(*map(cast, self.args), {name: cast(x) for name, x in self.options.items()})

    @property
    def visible(self) -> Tensor:
        """Who may attend to whom by the mask alone, (B or 1, Hq or 1, Tq, Tk), −inf in a bias left out."""
        B, _, Tq, Tk = self.sizes
        mask = self.options.get("mask")
        if isinstance(mask, Tensor):
            return mask.expand(*mask.shape[:-2], Tq, Tk)[(None,) * (4 - mask.ndim)]
        return (All() if mask is None else mask).dense(Tq, Tk, B=B)

    @property
    def added(self) -> Tensor | None:
        """What is added to the scores, as a tensor of four dimensions."""
        bias = self.options.get("bias")
        _, _, Tq, Tk = self.sizes
        if isinstance(bias, ALiBi):
            first = {"end": Tk - Tq, "start": 0}.get(bias.align, bias.align)
            a = first + torch.arange(Tq)[:, None]
            slopes = bias.slopes.to(self.query.dtype)
            return -slopes[None, :, None, None] * (a - torch.arange(Tk)).abs()
        return None if bias is None else bias[(None,) * (4 - bias.ndim)]


def sdpa(case: Case) -> Tensor:
    """The call through PyTorch's own operator, which has neither softcap nor sinks."""
    attn_mask = case.visible
    if case.added is not None:
        attn_mask = torch.where(case.visible, case.added, -torch.inf)
    groups = case.query.shape[1] != case.key.shape[1]
    return scaled_dot_product_attention(
        *case.args, attn_mask=attn_mask, scale=case.options.get("scale"), enable_gqa=groups
    )


def onnx_reference(case: Case) -> Tensor:
    """The call through ONNX's reference evaluator, in the inputs' own dtype.

    A sink becomes one more key: of width zero, so that its score is 0, with the sink's logit as its bias and value 0.
    """
    from onnx.reference.ops.op_attention import _compute_attention

    query, key, value = case.args
    B, Hq, Tq, Tk = case.sizes
    bias = torch.zeros(B, Hq, Tq, Tk, dtype=query.dtype)
    if case.added is not None:
        bias = bias + case.added
    bias = torch.where(case.visible, bias, -torch.inf)
    sinks = case.options.get("sinks")
    if sinks is not None:
        key, value = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (key, value))
        bias = torch.cat([bias, sinks[None, :, None, None].expand(B, Hq, Tq, 1).to(bias.dtype)], dim=-1)
    scale = case.options.get("scale")
    if scale is not None and scale < 0:  # it takes the square root
        query, scale = -query, -scale
    q, k, v, b = (x.numpy() for x in (query, key, value, bias))
    found = _compute_attention(q, k, v, attn_mask=b, scale=scale, softcap=case.options.get("softcap"))
    return torch.from_numpy(found[0])


def math_baseline(case: Case) -> Tensor:
    """The call through `math_path`, in the inputs' own dtype."""
    names: dict[str, Any] = {n: case.options.get(n) for n in ("scale", "softcap", "sinks")}
    return math_path(*case.args, visible=case.visible, bias=case.added, **names)


def score_terms(case: Case) -> float:
    """1 + the largest |query|·|key|·scale + |bias|: a weight is e^z, and its relative error is the error of z.

    Scores are in float32 for 16-bit inputs too, so there their rounding is smaller than that of a result.
    """
    scale = case.options.get("scale")
    longest = [float(x.norm(dim=-1).max()) for x in (case.query.double(), case.key.double())]
    finer = 1.0 if case.query.dtype == torch.float64 else torch.finfo(torch.float32).eps / eps(case.query)
    added = torch.zeros(1) if case.added is None else case.added[case.added.isfinite()].abs()
    product = longest[0] * longest[1] * abs(case.query.shape[-1] ** -0.5 if scale is None else scale)
    return 1 + finer * (product + float(added.max() if added.numel() else 0))


def eps(x: Tensor) -> float:
    return torch.finfo(x.dtype).eps


def output_terms(case: Case) -> float:
    """How large the terms are that an output adds up: values, by weights e^z whose relative error is the error of z.

    Small problems need saying so: with a handful of outputs the baseline is exact now and then by luck.
    """
    return float(case.value.abs().max()) * score_terms(case)


def gradients(case: Case, upstream: Tensor, call: Any) -> dict[str, Tensor]:
    """Of everything that can have one, by name; `call` is attention(), or takes a `Case` when it is `math_baseline`."""
    leaves = dict(zip(("query", "key", "value"), case.args, strict=True))
    leaves |= {n: x for n, x in case.options.items() if n in ("bias", "sinks") and isinstance(x, Tensor)}
    leaves = {n: x.detach().clone().requires_grad_() for n, x in leaves.items()}
    options = {**case.options, **leaves}
    grown = Case(*(options.pop(n) for n in ("query", "key", "value")), options)
    out = call(grown)
    found = torch.autograd.grad(out, leaves.values(), upstream.to(out.dtype), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def gradient_terms(case: Case, upstream: Tensor) -> dict[str, float]:
    """How large the terms are that each gradient adds up, as `output_terms` says it of the output."""
    scale = case.options.get("scale")
    scale = abs(case.query.shape[-1] ** -0.5 if scale is None else scale)
    weights = score_terms(case)
    dots = float(upstream.double().norm(dim=-1).max() * case.value.double().norm(dim=-1).max()) * weights
    return {
        "query": dots * float(case.key.abs().max()) * scale,
        "key": dots * float(case.query.abs().max()) * scale,
        "value": float(upstream.abs().max()) * weights,
        "bias": dots,
        "sinks": dots,
    }


def assert_right(case: Case, impl: str, *, backward: bool = True) -> None:
    """Output and gradients of a call, in its own dtype, within the tolerance rule against the reference in float64."""
    exact = case.to(torch.float64)
    truth = attention(*exact.args, **exact.options, impl="reference")
    got = attention(*case.args, **case.options, impl=impl)
    assert_within_tolerance(got, truth, math_baseline(case), magnitude=output_terms(case), what=f"output of {impl}")
    if not backward:
        return
    upstream = torch.arange(got.numel(), dtype=torch.float64).reshape(got.shape).sin().to(case.query.dtype)
    wanted = gradients(exact, upstream, lambda c: attention(*c.args, **c.options, impl="reference"))
    plain = gradients(case, upstream, math_baseline)
    terms = gradient_terms(case, upstream)
    for name, x in gradients(case, upstream, lambda c: attention(*c.args, **c.options, impl=impl)).items():
        what = f"gradient of {name} of {impl}"
        assert_within_tolerance(x, wanted[name], plain[name], gradient=True, magnitude=terms[name], what=what)


def observed_terms(name: str, case: Case, lse: Tensor) -> float:
    """How large the terms are that a measured quantity adds up: up to Tk weights of things as large as this."""
    long, wide = float(case.sizes[2]), float(case.value.abs().max()) * case.value.shape[-1]
    terms = {"distance": float(sum(case.sizes[2:])), "value_norm": wide, "top_contributions": wide}
    terms |= dict.fromkeys(("received", "received_by_group", "weighted_received"), 3 * long)
    # A weight is e^(z − L): its relative error is the absolute error of z, so z's size belongs to the magnitude.
    finite = lse[torch.isfinite(lse)].abs()
    return terms.get(name, 1.0) * (1.0 + float(finite.max() if finite.numel() else 0))


def assert_observed_right(case: Case, observables: Observables, impl: str) -> None:
    """Everything measured in the case's own dtype loses no more than twice what the definition loses in it."""
    exact = case.to(torch.float64)
    truth = observe(*exact.args, **exact.options, observables=observables, impl="reference")
    baseline = observe(*case.args, **case.options, observables=observables, impl="reference")
    seen = observe(*case.args, **case.options, observables=observables, impl=impl)
    assert set(seen.values) == set(truth.values)
    for name, got in seen.values.items():
        if name in COUNTS:
            assert torch.equal(*torch.broadcast_tensors(got, truth.values[name])), name
        elif name != "output" and name not in RANKED:
            size, what = observed_terms(name, case, truth.lse), f"{name} of {impl}"
            assert_within_tolerance(got, truth.values[name], baseline.values[name], magnitude=size, what=what)
    for keys, name in RANKED.items():
        if keys in seen.values:
            listed = listed_numbers(keys, seen, truth, weights_of(exact))
            size, what = observed_terms(name, case, truth.lse), f"{name} at {keys} of {impl}"
            assert_within_tolerance(listed, truth.values[name], baseline.values[name], magnitude=size, what=what)


def weights_of(case: Case) -> Tensor:
    """All weights, through `rows` of the reference."""
    B, Hq, Tq, Tk = case.sizes
    if not Tq:
        return torch.zeros(B, Hq, 0, Tk, dtype=torch.float64)
    every = Observables(rows=tuple(range(Tq)))
    return observe(*case.args, **case.options, observables=every, impl="reference").rows


def listed_numbers(name: str, seen: Observation, truth: Observation, weights: Tensor) -> Tensor:
    """What the keys in a ranking weigh (or contribute), once it is sure that they are keys that may be in it."""
    first = truth.first_key
    keys, wanted = (torch.where(x.values[name] < 0, -1, x.values[name] - first) for x in (seen, truth))
    if name == "top_keys":
        return listed_weights(keys, wanted, weights)
    if name == "top_contribution_keys":
        return listed_weights(keys, wanted, weights * truth.value_norm[:, :, None])
    found = [listed_weights(keys[..., g, :], wanted[..., g, :], weights) for g in range(keys.shape[-2])]
    for g in range(keys.shape[-2]):  # a key of another group would have been sorted out by the definition
        mine, theirs = (x[..., g, :].sort(-1).values for x in (keys, wanted))
        other = keys[..., [n for n in range(keys.shape[-2]) if n != g], :].flatten(-2)
        assert not bool(((mine[..., None] == other[..., None, :]) & (mine >= 0)[..., None]).any()), (g, theirs)
    return torch.stack(found, -2) if found else truth.group_top_weights.float()


def listed_weights(keys: Tensor, wanted: Tensor, weights: Tensor) -> Tensor:
    """The weights at `top_keys`, once it is sure that these are as many keys as wanted, each of them once.

    Which of two equal weights comes first may differ where rounding differs; what the keys weigh may not.
    """
    assert torch.equal(keys >= 0, wanted >= 0), "as many top keys as may be seen"
    ordered = keys.sort(-1).values
    assert bool(((ordered.diff(dim=-1) > 0) | (ordered[..., :-1] < 0)).all()), "top_keys repeats a key"
    weights = torch.nn.functional.pad(weights, (0, 1))
    return weights.gather(-1, keys % weights.shape[-1]).to(torch.float32)


@contextmanager
def small_tiles() -> Iterator[None]:
    """Let the blocked implementation cut small inputs into many tiles, so that small tests meet every seam."""
    sizes = {"TILE_ROWS": 8, "TILE_KEYS": 16, "TILE_BYTES": 8 * 8 * 16, "BLOCK_BYTES": 8 * 8 * 24}
    with ExitStack() as stack:
        for module in (tiled, tiled_observe):
            for name, size in sizes.items():
                if hasattr(module, name):
                    stack.enter_context(mock.patch.object(module, name, size))
        yield


# ------------------------------------------------------------------------------------------------ hypothesis strategies


def integers(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def aligns(B: int, Tq: int, Tk: int) -> st.SearchStrategy[Any]:
    offset = st.integers(-Tq, Tk + 1)
    return st.one_of(st.just("end"), st.just("start"), offset, st.lists(offset, min_size=B, max_size=B).map(integers))


def bools(*shape: int) -> st.SearchStrategy[Tensor]:
    """Bool tensors, mostly True, drawn by a seed: hypothesis need not shrink every entry."""
    return st.tuples(st.integers(0, 2**31), st.floats(0.2, 0.95)).map(
        lambda drawn: torch.rand(shape, generator=torch.Generator().manual_seed(drawn[0])) < drawn[1]
    )


@st.composite
def dense_tensors(draw: st.DrawFn, B: int, Hq: int, Tq: int, Tk: int) -> Tensor:
    shape = draw(
        st.sampled_from([(Tq, Tk), (B, Hq, Tq, Tk), (1, Hq, Tq, Tk), (B, 1, Tq, Tk), (B, 1, 1, Tk), (1, 1, Tq, 1)])
    )
    return draw(bools(*shape))


@st.composite
def single_masks(draw: st.DrawFn, B: int, Hq: int, Tq: int, Tk: int) -> Mask:
    kind = draw(st.sampled_from(["all", "causal", "window", "prefix", "documents", "padding", "dense"]))
    align = draw(aligns(B, Tq, Tk))
    some = st.integers(0, Tk)
    counts = st.lists(some, min_size=B, max_size=B).map(integers)
    if kind == "causal":
        return Causal(align)
    if kind == "window":
        return Window(draw(st.integers(1, Tk + 2)), right=draw(st.integers(0, 4)), align=align)
    if kind == "prefix":
        return Prefix(draw(st.one_of(some, counts)), align=align)
    if kind == "padding":
        queries = st.lists(st.integers(0, Tq), min_size=B, max_size=B).map(integers)
        return Padding(draw(counts), side=draw(st.sampled_from(["right", "left"])), queries=draw(st.none() | queries))
    if kind == "dense":
        return Dense(draw(dense_tensors(B, Hq, Tq, Tk)))
    if kind == "documents":
        seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
        batch = draw(st.sampled_from([(), (B,)]))
        ids = torch.randint(-2, 3, (*batch, Tk), generator=seed)
        if draw(st.booleans()):  # packed in order: documents become intervals
            ids = ids.sort(-1).values
        query_ids = None
        if Tq > Tk or draw(st.booleans()):
            query_ids = torch.randint(-2, 3, (*draw(st.sampled_from([(), (B,)])), Tq), generator=seed)
        return Documents(ids, query_ids)
    return All()


def masks(B: int, Hq: int, Tq: int, Tk: int) -> st.SearchStrategy[Mask]:
    """One to three masks, combined."""

    def combined(parts: list[Mask]) -> Mask:
        whole = parts[0]
        for part in parts[1:]:
            whole = whole & part
        return whole

    return st.lists(single_masks(B, Hq, Tq, Tk), min_size=1, max_size=3).map(combined)


def asked(case: Case, draw: st.DrawFn) -> Observables:
    """Everything at once, with odd numbers of cells, keys, groups and rows."""
    B, Hq, Tq, Tk = case.sizes
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def ids(low: int, high: int, length: int) -> Tensor:
        found = torch.randint(low, high, draw(st.sampled_from([(length,), (B, length)])), generator=seed)
        return found.sort(-1).values if draw(st.booleans()) else found

    def numbers(*shape: int) -> Tensor:
        return torch.randn(shape, generator=seed, dtype=torch.float64)

    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["output_weight"] = numbers(5, Hq * case.value.shape[-1])
    if draw(st.booleans()):
        more["row_weights"] = numbers(*draw(st.sampled_from([(Tq,), (B, Tq), (1, Hq, Tq), (B, Hq, Tq)])))
    if draw(st.booleans()):
        more |= {"key_groups": ids(-1, 3, Tk), "group_top_k": draw(st.integers(0, 3))}
        if draw(st.booleans()):
            more["query_groups"] = ids(-1, 4, Tq)
    if draw(st.booleans()):  # a piece of a text
        more |= {"first_key": draw(st.integers(0, 5)), "first_query": draw(st.integers(0, 9))}
    text = more.get("first_key", 0) + Tk + (draw(st.integers(0, 3)) if more.get("first_key") else 0)
    rows = tuple(draw(st.lists(st.integers(-Tq, Tq - 1), max_size=3))) if Tq else ()
    return Observables(
        sum_squares=True, distance_histogram=True, contributions=True, top_k=draw(st.integers(1, 6)),
        map=draw(st.integers(1, 12)), rows=rows, token_ids=ids(0, 4, text), **more,
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, *, least: int = 0, longest: int = 30, plain: bool = False) -> Case:
    """Float64 calls of every kind. `plain`: only what PyTorch's operator has too; `least`: the smallest size."""
    B, Hk, groups = draw(st.tuples(st.integers(least, 3), st.integers(least, 3), st.integers(1, 3)))
    Tq, Tk = draw(st.tuples(st.integers(least, longest), st.integers(least, longest)))
    D, Dv = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    Hq = Hk * groups
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=seed, dtype=torch.float64)

    options: dict[str, Any] = {}
    kind = draw(st.sampled_from(["none", "object", "object", "object", "tensor"]))
    if kind == "object":
        options["mask"] = draw(masks(B, Hq, Tq, Tk))
    elif kind == "tensor":
        options["mask"] = draw(dense_tensors(B, Hq, Tq, Tk))
    bias = draw(st.sampled_from(["none", "none", "tensor", "hiding", "alibi"]))
    if bias == "alibi" and Hq:
        options["bias"] = ALiBi(Hq, align=draw(st.sampled_from(["end", "start", 3])))
    elif bias in ("tensor", "hiding"):
        shape = draw(st.sampled_from([(Tq, Tk), (B, Hq, Tq, Tk), (1, Hq, 1, Tk), (B, 1, Tq, 1)]))
        options["bias"] = normal(*shape)
        if bias == "hiding":
            options["bias"] = torch.where(draw(bools(*shape)), options["bias"], -torch.inf)
    if draw(st.booleans()):
        options["scale"] = draw(st.sampled_from([0.0, -0.7, 0.3, 1.0, 2.5]))
    if not plain and draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.5, 3.0, 30.0]))
    if not plain and draw(st.booleans()):
        options["sinks"] = normal(Hq)
    return Case(normal(B, Hq, Tq, D), normal(B, Hk, Tk, D), normal(B, Hk, Tk, Dv), options)


def without(case: Case, *names: str) -> Case:
    return dataclasses.replace(case, options={n: x for n, x in case.options.items() if n not in names})
