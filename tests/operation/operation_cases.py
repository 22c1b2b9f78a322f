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

from clearhead import ALiBi, All, Causal, Documents, Padding, Prefix, Window
from clearhead.kernels import tiled, tiled_observe
from clearhead.masks import Dense, Mask

# The most precise dtype of every implementation: the compiled one has no float64.
PRECISE = {"cpu": torch.float32, "tiled": torch.float64, "reference": torch.float64}
IMPLS = list(PRECISE)

PER_QUERY = (
    "lse", "max_logit", "entropy", "self_weight", "previous_weight", "first_weight", "distance", "sink", "same_token",
    "after_same_token",
)  # fmt: skip


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
            a = torch.arange(Tk - Tq, Tk)[:, None]
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
        options["bias"] = ALiBi(Hq)
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
