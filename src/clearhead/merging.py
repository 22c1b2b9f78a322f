"""Observations put together: of successive queries, as decoding makes them, and of pieces of the keys.

With L = logaddexp(L_a, L_b), what was measured on a piece of the keys counts e^{L_a − L}: outputs, masses of groups and
everything else that is linear in a query's own weights. Σ p z = L − entropy adds up in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from clearhead.errors import ArgumentError, message
from clearhead.observables import Observation

__all__ = ["join_keys", "join_queries"]

PER_KEY = ("received", "viewers", "weighted_received", "received_by_group")  # added up over queries; keys come last
MAPS = ("map_mean", "map_max")
GROUPED = ("group_mean", "group_queries")
RANKED = {
    "top_keys": "top_weights",
    "top_contribution_keys": "top_contributions",
    "group_top_keys": "group_top_weights",
}

ANOTHER_GRID = "its cells are those of a shorter text. Measure the whole text in one call, or keep queries and keys."
_WHOLE_ROWS = (
    "it adds up over queries, whose weights were not yet those of whole rows. Measure each piece again with "
    "row_weights=torch.exp(piece.lse - joined.lse): its weighted_received is what the whole gives."
)
_NOT_KNOWN = "which queries it belongs to is not known any more. Ask for it in a call that sees all keys."


def join_queries(parts: Sequence[Observation]) -> Observation:
    """Observations of successive queries of the same text as one, such as a prompt and the tokens generated after it.

    Later parts may see more keys, and keys dropped from a cache may be missing (`first_key`). Per-query quantities follow one
    another; what keys receive is added up; maps are left out, since their cells would be others.

    Raises `ArgumentError` for parts that measured different quantities or do not follow one another. Time and memory: those
    of the result.
    """
    _check(parts)
    first_key = min(part.first_key for part in parts)
    expected = parts[0].offset
    for n, part in enumerate(parts):
        if part.offset != expected:
            raise ArgumentError(
                message(
                    "parts",
                    expected=f"part {n} to begin at query {expected}, where the one before it ends",
                    got=f"one that begins at query {part.offset}",
                    remedy="Join parts in the order of their queries, none left out.",
                )
            )
        expected += part.lse.shape[2]
    columns = [_columns(part) for part in parts]
    width = max((p.first_key - first_key + n for p, n in zip(parts, columns, strict=True) if n), default=0)
    values: dict[str, Tensor] = {}
    for name in parts[0].values:
        found = [_flat(part, name) for part in parts]
        if name in MAPS or name in GROUPED:
            continue
        if name in PER_KEY:
            wide = [_placed(x, p.first_key - first_key, width) for x, p in zip(found, parts, strict=True)]
            values[name] = _sum(_same_shape(wide, (0, 1, 2) if wide[0].ndim == 4 else (0, 1)))
        elif name == "value_norm":
            wide = [_placed(x, p.first_key - first_key, width) for x, p in zip(found, parts, strict=True)]
            values[name] = torch.stack(wide).amax(0)  # norms of the same keys, 0 where a part does not have them
        elif name == "rows":
            values[name] = torch.cat(
                [_placed(x, p.first_key - first_key, width) for x, p in zip(found, parts, strict=True)], 2
            )
        else:
            fill = -1 if name in RANKED else 0
            values[name] = torch.cat(_same_shape(found, (0, 1, *range(3, found[0].ndim)), fill), 2)
    if "group_mean" in parts[0].values:
        sums = [part.group_mean * part.group_queries[..., None] for part in parts]
        counts = _sum(_same_shape([part.group_queries for part in parts], (0, 2)))
        total = _sum(_same_shape(sums, (0, 2, 3)))
        values["group_mean"], values["group_queries"] = total / counts[..., None].clamp(min=1), counts
    padded = None
    if any(part.padded is not None for part in parts):
        each = [torch.zeros(1, p.lse.shape[2], dtype=torch.bool) if p.padded is None else p.padded for p in parts]
        rows = max(len(x) for x in each)
        padded = torch.cat([x.to(parts[0].lse.device).expand(rows, -1) for x in each], 1)
    lost = dict.fromkeys((n for n in MAPS if n in parts[0].values), ANOTHER_GRID)
    return Observation(values, parts[0].offset, padded, first_key, lost)


def join_keys(parts: Sequence[Observation]) -> Observation:
    """Observations of the same queries on successive pieces of the keys as one, whose weights are those of whole rows.

    >>> import torch
    >>> from clearhead import Causal, Observables, observe
    >>> q, k, v = torch.randn(3, 1, 2, 10, 8)
    >>> parts = []
    >>> for keys in (slice(0, 6), slice(6, 10)):
    ...     piece = Observables(first_key=keys.start, first_query=0)
    ...     mask = Causal(align=-keys.start)
    ...     parts.append(observe(q, k[:, :, keys], v[:, :, keys], mask=mask, observables=piece))
    >>> whole = observe(q, k, v, mask=Causal())
    >>> torch.allclose(join_keys(parts).entropy, whole.entropy, atol=1e-5)
    True

    Learned sinks are given with one of the pieces only. Left out: what keys receive, which needs the whole rows' L while it is
    measured (a second pass with `row_weights=torch.exp(piece.lse - joined.lse)` gives it), maps, group means and chosen rows.

    Raises `ArgumentError` for parts that measured different quantities or other queries. Time and memory O(parts) of one.
    """
    _check(parts, besides="sink")
    for n, part in enumerate(parts):
        if (part.offset, part.lse.shape) != (parts[0].offset, parts[0].lse.shape):
            raise ArgumentError(
                message(
                    "parts",
                    expected=f"part {n} to hold the queries of part 0, {tuple(parts[0].lse.shape)} from {parts[0].offset}",
                    got=f"{tuple(part.lse.shape)} from {part.offset}",
                    remedy="Give first_key and first_query to the Observables of each piece.",
                )
            )
    for n, (part, later) in enumerate(pairwise(parts), 1):
        if later.first_key <= part.first_key:
            raise ArgumentError(
                message(
                    "parts",
                    expected=f"part {n} to begin after key {part.first_key}, where the one before it begins",
                    got=f"one that begins at key {later.first_key}",
                    remedy="Join parts in the order of their keys, and give each its first_key.",
                )
            )
    lses = torch.stack([part.lse for part in parts])
    lse = torch.logsumexp(lses, 0)
    shares = torch.exp(lses - torch.where(lse == -torch.inf, 0.0, lse))
    values: dict[str, Tensor] = {}
    names = list(parts[0].values) + [n for part in parts for n in ("sink",) if n in part.values]
    for name in dict.fromkeys(names):
        having = [(part, share) for part, share in zip(parts, shares, strict=True) if name in part.values]
        found = [_flat(part, name) for part, _ in having]
        if name in (*PER_KEY, *MAPS, *GROUPED, "rows", *RANKED, *RANKED.values()):
            continue
        if name == "lse":
            values[name] = lse
        elif name == "visible":
            values[name] = _sum(found)
        elif name == "max_logit":
            values[name] = torch.stack(found).amax(0)
        elif name == "entropy":
            # Σ p z of a piece is L_a − H_a, and these add up by their shares.
            some = [s * torch.where(s > 0, p.lse - h, 0.0) for (p, s), h in zip(having, found, strict=True)]
            values[name] = torch.where(lse == -torch.inf, 0.0, lse - _sum(some))
        elif name == "sum_squares":
            values[name] = _sum(s**2 * x for (_, s), x in zip(having, found, strict=True))
        elif name == "value_norm":
            values[name] = torch.cat(found, -1)
        else:
            wide = _same_shape(found, tuple(range(3, found[0].ndim)))
            values[name] = _sum(_shared(x, s) for (_, s), x in zip(having, wide, strict=True))
    for keys, numbers in RANKED.items():
        if keys in parts[0].values:
            values[keys], values[numbers] = _best(parts, shares, keys, numbers)
    lost = dict.fromkeys((n for n in PER_KEY if n in parts[0].values), _WHOLE_ROWS)
    lost |= dict.fromkeys((n for n in (*MAPS, *GROUPED) if n in parts[0].values), _WHOLE_ROWS.split(". ")[0] + ".")
    lost |= dict.fromkeys((n for n in ("rows",) if n in parts[0].values), _NOT_KNOWN)
    return Observation(values, parts[0].offset, parts[0].padded, min(p.first_key for p in parts), lost)


def _check(parts: Sequence[Observation], besides: str = "") -> None:
    if not parts:
        raise ArgumentError(
            message("parts", expected="one observation or more", got="none", remedy="Join what observe() returned.")
        )
    names = [set(part.values) - {besides} for part in parts]
    for n, other in enumerate(names):
        if other != names[0]:
            raise ArgumentError(
                message(
                    "parts",
                    expected="the same quantities in every part",
                    got=f"{', '.join(sorted(other ^ names[0]))} in only one of parts 0 and {n}",
                    remedy="Observe every part with the same observables.",
                )
            )


def _flat(part: Observation, name: str) -> Tensor:
    """A quantity with its leading dimensions as one."""
    x = part.values[name]
    B, Hq, _ = part.lse.shape
    return x.reshape(B, Hq, *x.shape[-2:]) if name == "output" else x


def _columns(part: Observation) -> int:
    """How many keys a part saw, by what it measured of them; 0 where it measured nothing of the kind."""
    sizes = [part.values[n].shape[-1] for n in (*PER_KEY, "value_norm", "rows") if n in part.values]
    return max(sizes, default=0)


def _placed(x: Tensor, first: int, width: int) -> Tensor:
    """Something with keys last, as `width` keys, of which these are the ones from `first` on."""
    return pad(x, (first, width - first - x.shape[-1]))


def _same_shape(tensors: Sequence[Tensor], dimensions: Iterable[int], fill: int = 0) -> list[Tensor]:
    """Tensors made equally long in some dimensions: those of 1 are repeated, others filled up."""
    tensors = list(tensors)
    for d in dimensions:
        longest = max(x.shape[d] for x in tensors)
        for n, x in enumerate(tensors):
            if x.shape[d] == 1 and d < 2:
                tensors[n] = x.expand(*x.shape[:d], longest, *x.shape[d + 1 :])
            elif x.shape[d] < longest:
                tensors[n] = pad(x, (*(0, 0) * (x.ndim - 1 - d), 0, longest - x.shape[d]), value=fill)
    return tensors


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    for x in others:
        first = first + x
    return first


def _shared(x: Tensor, share: Tensor) -> Tensor:
    """A quantity (B, Hq, Tq, …) times a share (B, Hq, Tq), in its own dtype."""
    return (x * share[(...,) + (None,) * (x.ndim - 3)]).to(x.dtype)


def _best(parts: Sequence[Observation], shares: Tensor, keys: str, numbers: str) -> tuple[Tensor, Tensor]:
    """The k largest of all parts' k largest, ties to the smaller key."""
    k = max(part.values[keys].shape[-1] for part in parts)

    def equally_long(name: str, fill: int) -> list[Tensor]:
        found = [part.values[name] for part in parts]
        return _same_shape(found, range(3, found[0].ndim), fill)

    every = torch.cat(equally_long(keys, -1), -1)
    amounts = torch.cat([_shared(x, s) for x, s in zip(equally_long(numbers, 0), shares, strict=True)], -1)
    ranked = torch.where(every < 0, -torch.inf, amounts)
    _, order = torch.sort(ranked, dim=-1, descending=True, stable=True)
    return every.gather(-1, order)[..., :k], amounts.gather(-1, order)[..., :k]
