"""Who computes a case: clearhead, and what PyTorch has. Others are in `engines`.

A candidate is given a case and its inputs and returns a function without arguments that computes the output. Where it
cannot, it raises `Unavailable` with the reason.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from clearhead import Observables, attention, observe
from clearhead.bench.cases import Case, Inputs, document_ids

Forward = Callable[[], Tensor]
WHOLE = 1_000_000_000  # bytes of whole T×T matrices up to which a candidate that forms them is run


class Unavailable(Exception):  # noqa: N818 - it is an answer, not a mistake
    """Why a candidate cannot run a case."""


@dataclass(frozen=True)
class Candidate:
    """A name, how to make it ready for a case, and what it needs to be measured fairly."""

    name: str
    build: Callable[[Case, Inputs], Forward]
    impl: str | None = None  # for clearhead: the implementation asked for
    unobserved: str | None = None  # for an observing one: who computes the same and looks at nothing
    rest: float = 0.0  # seconds to wait before its samples, until torch's own threads have stopped spinning
    compiles: bool = False  # takes seconds to get ready: left out of a quick run


def clearhead(impl: str = "auto") -> Candidate:
    """Our own attention with one implementation."""

    def build(case: Case, inputs: Inputs) -> Forward:
        mask = case.mask
        return lambda: attention(inputs.query, inputs.key, inputs.value, mask=mask, impl=impl)

    return Candidate("clearhead" if impl == "auto" else f"clearhead {impl}", build, impl=impl)


def observing(impl: str = "auto", *, light: bool = False) -> Candidate:
    """Our own attention that also measures the default observables, or with `light` only what costs nothing beside it."""
    observables = Observables.light() if light else Observables()

    def build(case: Case, inputs: Inputs) -> Forward:
        q, k, v, mask = inputs.query, inputs.key, inputs.value, case.mask
        return lambda: observe(q, k, v, observables=observables, mask=mask, impl=impl).output

    name = ("observe light" if light else "observe") + ("" if impl == "auto" else f" {impl}")
    return Candidate(name, build, impl=impl, unobserved=clearhead(impl).name)


def need_room(case: Case, count: int, what: str) -> None:
    """Raise `Unavailable` where `count` float32 matrices (Tq, T) would take more memory than is asked of anybody's machine."""
    whole = 4 * count * case.Tq * case.T
    if whole > WHOLE:
        raise Unavailable(f"its {what} would take {whole / 1e9:.1f} GB")


def sdpa(case: Case, inputs: Inputs) -> Forward:
    """PyTorch's `scaled_dot_product_attention`, with a bool mask where it has no better word for what is seen."""
    visible, causal = inputs.visible, case.sees == "causal"
    return lambda: scaled_dot_product_attention(
        inputs.query, inputs.key, inputs.value, attn_mask=visible, is_causal=causal, enable_gqa=inputs.grouped
    )


def math(case: Case, inputs: Inputs) -> Forward:
    """The same, held to PyTorch's plain path, which forms the T×T weights."""
    need_room(case, case.B * case.Hq, "T×T weights")
    run = sdpa(case, inputs)

    def call() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return run()

    return call


def flex(case: Case, inputs: Inputs) -> Forward:
    """PyTorch's compiled FlexAttention, given the mask as a block mask made beforehand."""
    if case.kind == "backward":
        raise Unavailable("has no gradients on a CPU")
    if importlib.util.find_spec("torch.nn.attention.flex_attention") is None:
        raise Unavailable(f"torch {torch.__version__} does not have it")
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # every case is compiled for its own sizes; what earlier ones left counts against a limit
    blocks = None
    if case.sees != "all":
        blocks = create_block_mask(_rule(case), None, None, case.Tq, case.T, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(inputs.query, inputs.key, inputs.value, block_mask=blocks, enable_gqa=inputs.grouped)


def _rule(case: Case) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The mask as FlexAttention is given it: a predicate on the positions of one query and one key."""
    part = case.part
    if case.sees == "causal":
        return lambda _b, _h, i, j: i >= j
    if case.sees == "window":
        return lambda _b, _h, i, j: (i >= j) & (i - j < part)
    ids = document_ids(case.T, part)
    if case.sees == "documents":
        return lambda _b, _h, i, j: ids[i] == ids[j]
    return lambda _b, _h, i, j: (i >= j) & (ids[i] == ids[j])
