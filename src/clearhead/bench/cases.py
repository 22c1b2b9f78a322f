"""What is measured: shapes, dtypes and masks, the useful work in each, and the tensors of a case."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from clearhead.errors import dtype_name
from clearhead.masks import All, Causal, Documents, Mask, Window

Kind = Literal["forward", "backward", "decode", "window", "documents", "overhead", "observe"]
Sees = Literal["all", "causal", "window", "documents", "causal documents"]

# Operations a pair and width. Forward has two products of two operations each; backward has five: the scores again, and four.
FORWARD, BOTH = 4, 14
HEADS = {4096: 8, 8192: 4, 16384: 2}  # fewer heads where one call would take seconds; 12 everywhere else


@dataclass(frozen=True)
class Case:
    """One thing to measure: B samples, Hq heads that read Hk key heads, Tq queries, Tk keys, width D for q, k and v.

    >>> Case("window", torch.float32, T=8, Hq=1, D=4, sees="window", part=3).pairs
    21
    """

    kind: Kind
    dtype: torch.dtype
    T: int  # keys; and queries, unless `decode`
    Hq: int
    D: int
    Hk: int = 0  # 0: as many as Hq
    sees: Sees = "causal"
    part: int = 0  # keys in a window, or number of documents
    quick: bool = False  # in the small selection

    @property
    def B(self) -> int:  # noqa: N802
        """Samples."""
        return 1

    @property
    def Tq(self) -> int:  # noqa: N802
        """Queries: one when decoding."""
        return 1 if self.kind == "decode" else self.T

    @property
    def key_heads(self) -> int:
        """Hk, filled in."""
        return self.Hk or self.Hq

    @property
    def name(self) -> str:
        """What a person reads and `--case` searches."""
        heads = f"H={self.Hq}" if self.key_heads == self.Hq else f"H={self.Hq}:{self.key_heads}"
        which = {
            "backward": "forward+backward",
            "window": f"window {self.part}",
            "documents": f"{self.part} {self.sees}",
        }
        dtype = dtype_name(self.dtype)
        return f"{which.get(self.kind, self.kind)} {dtype} D={self.D} T={self.T} {heads}"

    @property
    def pairs(self) -> int:
        """Query-key pairs of one head that may be seen."""
        if self.sees == "all":
            return self.Tq * self.T
        if self.sees == "causal":
            return triangle(self.T)
        if self.sees == "window":
            unseen = max(self.T - self.part, 0)
            return triangle(self.T) - triangle(unseen)
        sizes = document_sizes(self.T, self.part)
        return sum(n * n for n in sizes) if self.sees == "documents" else sum(triangle(n) for n in sizes)

    @property
    def useful_flops(self) -> int:
        """Operations that the pairs need: 2·D for the score and 2·D for the weighted value, 3.5 times that with gradients."""
        return (BOTH if self.kind == "backward" else FORWARD) * self.pairs * self.D * self.Hq * self.B

    @property
    def useful_bytes(self) -> int:
        """K and V, read once."""
        return 2 * self.B * self.key_heads * self.T * self.D * self.dtype.itemsize

    @property
    def limit(self) -> Literal["fma", "read"]:
        """What the hardware limits: reading memory when one query meets many keys, arithmetic otherwise."""
        return "read" if self.kind == "decode" else "fma"

    @property
    def mask(self) -> Mask:
        """The mask as clearhead is given it."""
        if self.sees == "all":
            return All()
        if self.sees == "causal":
            return Causal()
        if self.sees == "window":
            return Window(self.part)
        documents = Documents(document_ids(self.T, self.part))
        return documents if self.sees == "documents" else documents & Causal()


def triangle(n: int) -> int:
    """1 + 2 + … + n: the pairs of n queries that see themselves and what stands before them."""
    return n * (n + 1) // 2


def document_ids(T: int, count: int) -> Tensor:
    """(T,) numbers of `count` documents as equal in length as they can be."""
    return torch.arange(T) * count // T


def document_sizes(T: int, count: int) -> list[int]:
    """Their lengths."""
    return torch.bincount(document_ids(T, count), minlength=count).tolist()


def _all_cases() -> list[Case]:
    fp32, bf16, fp16 = torch.float32, torch.bfloat16, torch.float16
    cases = []
    for dtype in (fp32, bf16, fp16):
        for D in (64, 128):
            for n in range(7, 15):
                T = 2**n
                quick = ((dtype, D) == (fp32, 64) and T in (128, 512, 2048)) or (dtype, D, T) == (fp16, 64, 512)
                cases.append(Case("forward", dtype, T, HEADS.get(T, 12), D, quick=quick))
    for D in (64, 128):
        for T in (128, 256, 512, 1024, 2048, 4096):
            cases.append(Case("backward", fp32, T, HEADS.get(T, 12), D, quick=(D, T) == (64, 512)))
    for dtype, Hk in ((fp32, 32), (fp32, 8), (bf16, 8), (fp16, 8)):
        cases.append(Case("decode", dtype, 8192, 32, 128, Hk=Hk, sees="all", quick=Hk == 8 and dtype != fp16))
    cases += [
        Case("window", fp32, 4096, 4, 64, sees="window", part=256, quick=True),
        Case("window", fp32, 8192, HEADS[8192], 64, sees="window", part=256),
        Case("documents", fp32, 8192, HEADS[8192], 64, sees="documents", part=8),
        Case("documents", fp32, 8192, HEADS[8192], 64, sees="causal documents", part=8),
        Case("overhead", fp32, 8, 4, 64, quick=True),
    ]
    for T in (128, 256, 512, 1024, 2048, 4096, 8192):
        cases.append(Case("observe", fp32, T, HEADS.get(T, 12), 64, quick=T == 1024))
    return cases


CASES = _all_cases()


def selected(text: str = "", *, quick: bool = False) -> list[Case]:
    """The cases whose name holds `text`, upper or lower case; with `quick`, of the small selection only."""
    return [case for case in CASES if text.lower() in case.name.lower() and (case.quick or not quick)]


class Inputs:
    """The tensors of a case, the same ones for every candidate and in every run.

    `query` (B, Hq, Tq, D), `key` and `value` (B, Hk, T, D), and `gradient`, what flows back, shaped as the output.
    """

    def __init__(self, case: Case, dtype: torch.dtype | None = None) -> None:
        self.case = case
        random = torch.Generator().manual_seed(0)
        shapes = ((case.Hq, case.Tq), (case.key_heads, case.T), (case.key_heads, case.T), (case.Hq, case.Tq))
        made = [
            torch.randn(case.B, heads, length, case.D, generator=random).to(case.dtype).to(dtype or case.dtype)
            for heads, length in shapes
        ]
        self.query, self.key, self.value, self.gradient = made
        if case.kind == "backward":
            for x in made[:3]:
                x.requires_grad_()

    @cached_property
    def visible(self) -> Tensor | None:
        """The bool (Tq, T) mask that others need; None where being causal, or seeing everything, says it all."""
        if self.case.sees in ("all", "causal"):
            return None
        return self.case.mask.dense(self.case.Tq, self.case.T)[0, 0].contiguous()

    @property
    def grouped(self) -> bool:
        """Whether several query heads read one key head."""
        return self.case.key_heads != self.case.Hq
