"""Who may attend to whom: small objects instead of T×T tensors.

Every mask states its rule twice, and a test holds the two together:

- `rule(i, j, sizes)` is the definition, a predicate on query i and key j. `dense()` evaluates it for every pair and is
  what `reference/` uses.
- `plan(sizes)` says the same in O(T) numbers, a `Plan`: for each query one interval of keys, and labels where an
  interval is not enough. It is what `kernels/` use to skip tiles that are empty and to leave full tiles untested.

Positions: query i stands at absolute position a = i + offset; offset = Tk - Tq when aligned at the end (the last query
sees the last key, as decoding needs), 0 when aligned at the start (`scaled_dot_product_attention`'s `is_causal`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, dtype_name, message
from clearhead.plans import Plan

Align = Literal["end", "start"] | int | Tensor


@dataclass(frozen=True)
class Sizes:
    """What a mask must know about the call it is used in: batch, query and key lengths, device."""

    B: int
    Tq: int
    Tk: int
    device: torch.device


class Mask:
    """Base of all masks. Combine with `&`: a pair is allowed when every part allows it."""

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:
        """The definition: may query i (…, Tq, 1) see key j (…, 1, Tk)? Broadcasts to bool (B or 1, H or 1, Tq, Tk)."""
        raise NotImplementedError

    def plan(self, sizes: Sizes) -> Plan:
        """The same in O(T) numbers; see `Plan`. Time and memory O(B·(Tq + Tk)) for every mask but a bool tensor."""
        raise NotImplementedError

    def padded(self, sizes: Sizes) -> Tensor | None:  # noqa: ARG002
        """Which queries are padding, bool (B or 1, Tq); None when none can be."""
        return None

    def dense(self, Tq: int, Tk: int, *, B: int = 1, device: torch.device | str = "cpu") -> Tensor:
        """Every pair at once, True = may attend, (B or 1, H or 1, Tq, Tk).

        >>> Causal().dense(2, 3).int()[0, 0].tolist()
        [[1, 1, 0], [1, 1, 1]]

        O(Tq·Tk) memory: for reading and testing, never used by a fast path.
        """
        sizes = Sizes(B, Tq, Tk, torch.device(device))
        i = torch.arange(Tq, device=device).view(1, 1, Tq, 1)
        j = torch.arange(Tk, device=device).view(1, 1, 1, Tk)
        return self.rule(i, j, sizes).expand(-1, -1, Tq, Tk)

    def __and__(self, other: Mask) -> Mask:
        """`Causal() & Padding(lengths)`: allowed by both."""
        if not isinstance(other, Mask):
            raise ArgumentError(
                message(
                    "mask &",
                    expected="another mask object",
                    got=type(other).__name__,
                    remedy="Wrap a bool tensor first: Causal() & Dense(tensor).",
                )
            )
        return Both(self, other)


@dataclass(frozen=True)
class Both(Mask):
    """What `a & b` makes: a pair is allowed when both allow it."""

    first: Mask
    second: Mask

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102
        return self.first.rule(i, j, sizes) & self.second.rule(i, j, sizes)

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        return self.first.plan(sizes) & self.second.plan(sizes)

    def padded(self, sizes: Sizes) -> Tensor | None:  # noqa: D102
        a, b = self.first.padded(sizes), self.second.padded(sizes)
        return b if a is None else a if b is None else a | b

    def __repr__(self) -> str:
        return f"{self.first!r} & {self.second!r}"


def _offset(align: Align, sizes: Sizes) -> Tensor | int:
    """How far query 0 stands behind key 0; an int, or (B, 1) when it differs by sample."""
    if isinstance(align, Tensor):
        if align.ndim != 1 or align.shape[0] not in (1, sizes.B):
            raise ArgumentError(
                message(
                    "align",
                    expected=f"one offset a sample, shape (B={sizes.B},)",
                    got=str(tuple(align.shape)),
                    remedy="Pass an int, or a 1-D integer tensor of B offsets.",
                )
            )
        return align.to(sizes.device)[:, None]
    if isinstance(align, int):
        return align
    return sizes.Tk - sizes.Tq if align == "end" else 0


def _check_align(align: Align) -> None:
    if isinstance(align, Tensor):
        if align.is_floating_point() or align.is_complex() or align.dtype == torch.bool:
            got = f"a {align.dtype} tensor"
        else:
            return
    elif align in ("end", "start") or (isinstance(align, int) and not isinstance(align, bool)):
        return
    else:
        got = repr(align)
    raise ArgumentError(
        message(
            "align",
            expected='"end", "start", an int offset, or an integer tensor of B offsets',
            got=got,
            remedy='Use "end" for decoding with a cache, "start" for what is_causal=True means in PyTorch.',
        )
    )


def _positions(align: Align, sizes: Sizes) -> Tensor:
    """Absolute position of every query, int (1 or B, Tq)."""
    return torch.arange(sizes.Tq, device=sizes.device)[None] + _offset(align, sizes)


def _spread(offset: Tensor | int) -> Tensor | int:
    """(B, 1) offsets as (B, 1, 1, 1), to stand beside i and j."""
    return offset[:, :, None, None] if isinstance(offset, Tensor) else offset


def _interval(lo: Tensor | int, hi: Tensor | int, sizes: Sizes) -> Plan:
    """An interval of keys for every query, cut to the keys there are."""
    rows = torch.zeros(1, sizes.Tq, dtype=torch.int64, device=sizes.device)
    low, high = (rows + lo).clamp(0, sizes.Tk), (rows + hi).clamp(0, sizes.Tk)
    return Plan(low.to(torch.int32), high.to(torch.int32))


@dataclass(frozen=True)
class All(Mask):
    """Every query sees every key. The same as `mask=None`.

    >>> All().dense(1, 3).tolist()
    [[[[True, True, True]]]]
    """

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102, ARG002
        return (i >= 0) & (j >= 0)

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        return _interval(0, sizes.Tk, sizes)


@dataclass(frozen=True)
class Causal(Mask):
    """Query i sees key j when j ≤ i + offset: itself and the past.

    >>> Causal().dense(2, 3).int()[0, 0].tolist()                # aligned at the end: the last query sees the last key
    [[1, 1, 0], [1, 1, 1]]
    >>> Causal(align="start").dense(2, 3).int()[0, 0].tolist()   # what is_causal=True means in PyTorch
    [[1, 0, 0], [1, 1, 0]]

    `align`: "end" (offset Tk − Tq), "start" (offset 0), an int offset, or an integer tensor of B offsets.
    """

    align: Align = "end"

    def __post_init__(self) -> None:
        _check_align(self.align)

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102
        return j <= i + _spread(_offset(self.align, sizes))

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        return _interval(0, _positions(self.align, sizes) + 1, sizes)


@dataclass(frozen=True)
class Window(Mask):
    """A query at position a sees keys a − keys < j ≤ a + right: `keys` keys including itself, and `right` after it.

    >>> Window(2).dense(3, 3).int()[0, 0].tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]

    The same counting as `sliding_window` in Hugging Face models; flash-attention's `(W - 1, 0)` is `Window(W)`.
    """

    keys: int
    right: int = 0
    align: Align = "end"

    def __post_init__(self) -> None:
        _check_align(self.align)
        for name, value, least in (("keys", self.keys, 1), ("right", self.right, 0)):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ArgumentError(
                    message(
                        f"Window {name}",
                        expected=f"an integer >= {least}",
                        got=repr(value),
                        remedy="A window counts the query itself: Window(1) sees only itself.",
                    )
                )

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102
        a = i + _spread(_offset(self.align, sizes))
        return (j > a - self.keys) & (j <= a + self.right)

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        a = _positions(self.align, sizes)
        return _interval(a - self.keys + 1, a + self.right + 1, sizes)


@dataclass(frozen=True)
class Prefix(Mask):
    """A prefix-LM: the first n keys are seen by everyone, the rest causally.

    >>> Prefix(2).dense(3, 3).int()[0, 0].tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]

    `n`: an int, or an integer tensor of B lengths.
    """

    n: int | Tensor
    align: Align = "end"

    def __post_init__(self) -> None:
        _check_align(self.align)
        if isinstance(self.n, Tensor):
            _check_per_sample("Prefix n", self.n)
        elif self.n < 0:
            raise ArgumentError(
                message("Prefix n", expected="an integer >= 0", got=repr(self.n), remedy="Use 0 for no prefix.")
            )

    def _n(self, sizes: Sizes) -> Tensor | int:
        return _per_sample("Prefix n", self.n, sizes) if isinstance(self.n, Tensor) else self.n

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102
        return (j < _spread(self._n(sizes))) | (j <= i + _spread(_offset(self.align, sizes)))

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        seen = _positions(self.align, sizes) + 1
        n = self._n(sizes)
        return _interval(0, torch.maximum(seen, n) if isinstance(n, Tensor) else seen.clamp(min=n), sizes)


def _check_per_sample(name: str, value: Tensor) -> None:
    if value.ndim != 1 or value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ArgumentError(
            message(
                name,
                expected="a 1-D integer tensor, one number a sample, shape (B,)",
                got=f"{value.dtype} of shape {tuple(value.shape)}",
                remedy="Pass torch.tensor([...]) of lengths.",
            )
        )


def _per_sample(name: str, value: Tensor, sizes: Sizes) -> Tensor:
    """(B,) as (B, 1) on the right device."""
    if value.shape[0] not in (1, sizes.B):
        raise ArgumentError(
            message(
                name,
                expected=f"one number a sample, shape (B={sizes.B},)",
                got=str(tuple(value.shape)),
                remedy="The batch of the mask and of query, key and value must agree.",
            )
        )
    return value.to(sizes.device)[:, None]


@dataclass(frozen=True)
class Padding(Mask):
    """Sample b has `lengths[b]` real keys; the others are padding that nobody sees.

    >>> Padding(torch.tensor([1, 3])).dense(1, 3, B=2).int()[:, 0, 0].tolist()
    [[1, 0, 0], [1, 1, 1]]

    `side`: where the padding stands, "right" (default) or "left". Padding queries are computed like others and left out
    of every mean; they are found by their position (aligned at the end when Tq < Tk), or given as `queries`, the number
    of real queries in each sample, as cross-attention needs.
    """

    lengths: Tensor
    side: Literal["right", "left"] = "right"
    queries: Tensor | None = None

    def __post_init__(self) -> None:
        _check_per_sample("Padding lengths", self.lengths)
        if self.queries is not None:
            _check_per_sample("Padding queries", self.queries)
        if self.side not in ("right", "left"):
            raise ArgumentError(
                message(
                    "Padding side",
                    expected='"right" or "left"',
                    got=repr(self.side),
                    remedy="Say where the padding tokens stand.",
                )
            )

    def _ends(self, lengths: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """First real position and the one after the last, each (B, 1)."""
        if self.side == "left":
            return total - lengths, torch.full_like(lengths, total)
        return torch.zeros_like(lengths), lengths

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102, ARG002
        first, end = self._ends(_per_sample("Padding lengths", self.lengths, sizes), sizes.Tk)
        return (j >= _spread(first)) & (j < _spread(end))

    def padded(self, sizes: Sizes) -> Tensor:  # noqa: D102
        if self.queries is not None:
            first, end = self._ends(_per_sample("Padding queries", self.queries, sizes), sizes.Tq)
            a = torch.arange(sizes.Tq, device=sizes.device)[None]
        else:
            first, end = self._ends(_per_sample("Padding lengths", self.lengths, sizes), sizes.Tk)
            a = _positions("end", sizes)
        return (a < first) | (a >= end)

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        first, end = self._ends(_per_sample("Padding lengths", self.lengths, sizes), sizes.Tk)
        return _interval(first, end, sizes)


@dataclass(frozen=True)
class Documents(Mask):
    """Packed sequences: a query sees only keys of its own document.

    >>> Documents(torch.tensor([0, 0, 7])).dense(3, 3).int()[0, 0].tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]

    `ids`: an integer for every key, (Tk,) or (B, Tk); any numbers, in any order. With Tq ≠ Tk the queries' own ids are
    `query_ids`, (Tq,) or (B, Tq); left out, they are the last Tq of `ids`.
    """

    ids: Tensor
    query_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for name, ids in (("Documents ids", self.ids), ("Documents query_ids", self.query_ids)):
            if ids is not None and (ids.ndim not in (1, 2) or ids.is_floating_point() or ids.is_complex()):
                raise ArgumentError(
                    message(
                        name,
                        expected="an integer tensor of shape (T,) or (B, T)",
                        got=f"{ids.dtype} of shape {tuple(ids.shape)}",
                        remedy="Number the documents: torch.tensor([0, 0, 0, 1, 1]).",
                    )
                )

    def _labels(self, sizes: Sizes) -> tuple[Tensor, Tensor]:
        """Labels of queries (B or 1, Tq) and of keys (B or 1, Tk)."""
        keys = torch.atleast_2d(self.ids.to(sizes.device))
        if self.query_ids is not None:
            queries = torch.atleast_2d(self.query_ids.to(sizes.device))
        else:
            queries = keys[:, max(0, keys.shape[1] - sizes.Tq) :]
        for name, ids, T, letter in (("ids", keys, sizes.Tk, "Tk"), ("query_ids", queries, sizes.Tq, "Tq")):
            if ids.shape[1] != T or ids.shape[0] not in (1, sizes.B):
                raise ArgumentError(
                    message(
                        f"Documents {name}",
                        expected=f"shape ({letter}={T},) or (B={sizes.B}, {letter}={T})",
                        got=str(tuple(ids.shape)),
                        remedy="Give every key a document, and pass query_ids when there are more queries than keys.",
                    )
                )
        return queries, keys

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102, ARG002
        queries, keys = self._labels(sizes)
        return queries[:, None, :, None] == keys[:, None, None, :]

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        queries, keys = self._labels(sizes)
        everything = _interval(0, sizes.Tk, sizes)
        return Plan(everything.lo, everything.hi, queries[None].long(), keys[None].long())


@dataclass(frozen=True, eq=False)
class Intervals(Mask):
    """Query i of sample b sees the keys lo[b, i] ≤ j < hi[b, i]: what a model's own mask becomes when it is watched.

    >>> Intervals(torch.tensor([[0, 1]]), torch.tensor([[2, 3]])).dense(2, 3).int()[0, 0].tolist()
    [[1, 1, 0], [0, 1, 1]]

    `lo`, `hi`: integers (B or 1, Tq). `padding`: bool (B or 1, Tq), queries that are padding. `hidden`: bool (B or 1, Tk), keys
    that nobody sees, in the middle of intervals too.
    """

    lo: Tensor
    hi: Tensor
    padding: Tensor | None = None
    hidden: Tensor | None = None

    @classmethod
    def everything(cls, Tq: int, Tk: int, *, padding: Tensor | None = None) -> Intervals:
        """Every query sees every key; `padding` only says which queries not to count."""
        device = None if padding is None else padding.device
        zeros = torch.zeros(1, Tq, dtype=torch.int64, device=device)
        return cls(zeros, zeros + Tk, padding)

    def _fits(self, sizes: Sizes) -> None:
        for name, x, T, letter in (
            ("lo", self.lo, sizes.Tq, "Tq"),
            ("hi", self.hi, sizes.Tq, "Tq"),
            ("padding", self.padding, sizes.Tq, "Tq"),
            ("hidden", self.hidden, sizes.Tk, "Tk"),
        ):
            if x is not None and (x.ndim != 2 or x.shape[0] not in (1, sizes.B) or x.shape[1] != T):
                raise ArgumentError(
                    message(
                        f"Intervals {name}",
                        expected=f"shape (B={sizes.B} or 1, {letter}={T})",
                        got=str(tuple(x.shape)),
                        remedy="A mask belongs to the call it was made for.",
                    )
                )

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102, ARG002
        self._fits(sizes)
        lo, hi = (x.to(sizes.device)[:, None, :, None] for x in (self.lo, self.hi))
        seen = (j >= lo) & (j < hi)
        return seen if self.hidden is None else seen & ~self.hidden.to(sizes.device)[:, None, None]

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        self._fits(sizes)
        spans = _interval(self.lo.to(sizes.device), self.hi.to(sizes.device), sizes)
        if self.hidden is None:
            return spans
        labels = self.hidden.to(sizes.device).long()[None]
        return Plan(spans.lo, spans.hi, labels.new_zeros(1, 1, sizes.Tq), labels)

    def padded(self, sizes: Sizes) -> Tensor | None:  # noqa: D102
        return None if self.padding is None else self.padding.to(sizes.device)

    def __repr__(self) -> str:
        return f"Intervals({', '.join(map(str, self.lo.shape))})"


@dataclass(frozen=True, eq=False)
class Planned(Mask):
    """A plan that is there already, such as one that was read from a file, as a mask."""

    given: Plan
    padding: Tensor | None = None

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102
        spans = Intervals(self.given.lo, self.given.hi).rule(i, j, sizes)
        if self.given.query_labels is not None and self.given.key_labels is not None:
            for queries, keys in zip(self.given.query_labels, self.given.key_labels, strict=True):
                spans = spans & Documents(keys, queries).rule(i, j, sizes)
        return spans if self.given.dense is None else spans & self.given.dense.to(sizes.device)

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        return self.given.to(sizes.device)

    def padded(self, sizes: Sizes) -> Tensor | None:  # noqa: D102
        return None if self.padding is None else self.padding.to(sizes.device)


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A bool tensor, True = may attend, that broadcasts to (B, Hq, Tq, Tk). What a plain tensor given as `mask` becomes.

    >>> Dense(torch.tensor([[True, False]])).dense(1, 2).tolist()
    [[[[True, False]]]]
    """

    pairs: Tensor

    def __post_init__(self) -> None:
        if self.pairs.dtype != torch.bool:
            raise ArgumentError(
                message(
                    "mask",
                    expected="a mask object, or a bool tensor in which True means may attend",
                    got=f"a {dtype_name(self.pairs.dtype)} tensor of shape {tuple(self.pairs.shape)}",
                    remedy="Numbers that are added to the scores go to bias=; for a 0/1 mask use mask.bool().",
                )
            )

    def rule(self, i: Tensor, j: Tensor, sizes: Sizes) -> Tensor:  # noqa: D102, ARG002
        pairs = self.pairs.to(sizes.device)
        pairs = pairs[(None,) * max(0, 4 - pairs.ndim)]
        sizes_ok = pairs.ndim == 4 and pairs.shape[0] in (1, sizes.B)
        if not sizes_ok or pairs.shape[2] not in (1, sizes.Tq) or pairs.shape[3] not in (1, sizes.Tk):
            raise ArgumentError(
                message(
                    "mask",
                    expected=f"a shape that broadcasts to (B={sizes.B}, Hq, Tq={sizes.Tq}, Tk={sizes.Tk})",
                    got=str(tuple(self.pairs.shape)),
                    remedy="Insert dimensions of size 1 where the mask does not depend on them, e.g. mask[:, None].",
                )
            )
        return pairs

    def plan(self, sizes: Sizes) -> Plan:  # noqa: D102
        i = torch.zeros(1, dtype=torch.int64, device=sizes.device)
        pairs = self.rule(i, i, sizes).expand(-1, -1, sizes.Tq, sizes.Tk)
        everything = _interval(0, sizes.Tk, sizes)
        return Plan(everything.lo, everything.hi, dense=pairs)

    def __repr__(self) -> str:
        return f"Dense({tuple(self.pairs.shape)})"
