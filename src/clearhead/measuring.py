"""`Observables` made ready for one call: checked against its sizes, with every group, token and position known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead.errors import ArgumentError, message
from clearhead.observables import Observables


@dataclass(frozen=True, eq=False)
class Measuring:
    """What every implementation of `observe` is given beside the call itself.

    Positions here count from the call's own key 0, wherever in a text that stands.
    """

    want: Observables
    offset: int  # position of query 0
    padded: Tensor | None  # bool (B or 1, Tq): padding queries
    tokens: Tensor | None  # int64 (B or 1, N), of the whole text: entry `first_key` is key 0's
    key_groups: Tensor | None  # int64 (B or 1, Tk), −1 for none
    query_groups: Tensor | None  # int64 (B or 1, Tq), −1 for none
    groups: int  # G
    row_weights: Tensor | None  # (B or 1, Hq or 1, Tq) in the dtype to compute in
    value_norm: Tensor | None  # (B, Hq, Tk) in the dtype to compute in
    bins: int  # of the distance histogram

    @property
    def first_key(self) -> int:
        """The text's position of key 0."""
        return self.want.first_key


def ready(
    want: Observables, query: Tensor, key: Tensor, value: Tensor, padded: Tensor | None, dtype: torch.dtype
) -> Measuring:
    """Check `want` against four-dimensional query, key and value, and resolve it. O(T), O(T·Dv²) with an output weight.

    Raises `ArgumentError` for rows that are not there, and for ids, groups and weights of a wrong length.
    """
    B, Hq, Tq, _ = query.shape
    Tk, device = key.shape[2], query.device
    _check_rows(want.rows, Tq)
    offset = query_offset(want, Tq, Tk)
    piece = want.first_key > 0 or want.first_query is not None
    tokens = _by_sample("token_ids", want.token_ids, "Tk", want.first_key + Tk, B, device, longer=piece)
    key_groups = _by_sample("key_groups", want.key_groups, "Tk", Tk, B, device)
    query_groups = _by_sample("query_groups", want.query_groups, "Tq", Tq, B, device)
    groups = 0
    if key_groups is not None:
        if query_groups is None:
            query_groups = groups_at_queries(key_groups, Tq, offset)
        groups = count_groups(key_groups, query_groups)
    return Measuring(
        want=want,
        offset=offset,
        padded=padded,
        tokens=tokens,
        key_groups=key_groups,
        query_groups=query_groups,
        groups=groups,
        row_weights=_row_weights(want.row_weights, B, Hq, Tq, device, dtype),
        value_norm=value_norms(value, want.output_weight, Hq, dtype) if want.contributions else None,
        bins=distance_bins(offset, Tq, Tk),
    )


def query_offset(want: Observables, Tq: int, Tk: int) -> int:
    """Position of query 0, counted from the call's own key 0: the last query stands at the last key unless told otherwise."""
    return Tk - Tq if want.first_query is None else want.first_query - want.first_key


def distance_bins(offset: int, Tq: int, Tk: int) -> int:
    """How many bins of 0, 1, 2-3, 4-7, … tokens hold every distance of a call, ahead and back."""
    farthest = max(abs(offset + Tq - 1), abs(offset - Tk + 1)) if Tq and Tk else 0
    return 1 + farthest.bit_length()


def count_groups(*ids: Tensor | None) -> int:
    """G: one more than the largest number of a group."""
    return 1 + max((int(x.max()) for x in ids if x is not None and x.numel()), default=-1)


def groups_at_queries(key_groups: Int[Tensor, "*b tk"], Tq: int, offset: int) -> Int[Tensor, "*b tq"]:
    """The groups of the keys at the queries' own positions; −1 where there is no such key."""
    Tk = key_groups.shape[-1]
    a = torch.arange(Tq, device=key_groups.device) + offset
    if not Tk:
        return key_groups.new_full((*key_groups.shape[:-1], Tq), -1)
    return torch.where((a >= 0) & (a < Tk), key_groups[..., a.clamp(0, Tk - 1)], -1)


def value_norms(value: Tensor, output_weight: Tensor | None, Hq: int, dtype: torch.dtype) -> Tensor:
    """‖v_j‖ or ‖W_O^h v_j‖ for every query head, (B, Hq, Tk). O(T·Dv), with a weight O(T·Dv²) and memory of one head more."""
    B, Hk, Tk, Dv = value.shape
    groups = Hq // max(1, Hk)
    with torch.no_grad():
        if output_weight is None:
            norms: Tensor = torch.linalg.vector_norm(value.to(dtype), dim=-1)
            return norms.repeat_interleave(groups, dim=1)
        if output_weight.shape[1] != Hq * Dv:
            raise ArgumentError(
                message(
                    "output_weight",
                    expected=f"shape (E, Hq·Dv={Hq}·{Dv}={Hq * Dv})",
                    got=str(tuple(output_weight.shape)),
                    remedy="Pass the weight of the output projection as nn.Linear stores it.",
                )
            )
        per_head = output_weight.to(value.device, dtype).unflatten(1, (Hq, Dv))
        found = value.new_empty(B, Hq, Tk, dtype=dtype)
        for h in range(Hq):
            # ‖W v‖² = vᵀ (Wᵀ W) v: no vector of the width E is made.
            gram = per_head[:, h].mT @ per_head[:, h]
            v = value[:, h // groups].to(dtype)
            found[:, h] = ((v @ gram) * v).sum(-1).clamp(min=0).sqrt()
    return found


def one_hot(groups: Int[Tensor, "b t"], count: int) -> Bool[Tensor, "b t g"]:
    """Whether each position belongs to each group; −1 belongs to none."""
    return groups[..., None] == torch.arange(count, device=groups.device)


def group_means(weights: Tensor, measuring: Measuring) -> tuple[Tensor, Tensor]:
    """Mean weight of each group of keys (columns) over the queries of each group (rows), (B, Hq, G, G); queries, (B, 1, G)."""
    if measuring.query_groups is None:
        raise RuntimeError("group_means needs groups")
    members = one_hot(measuring.query_groups, measuring.groups)  # (b, Tq, G)
    if measuring.padded is not None:
        members = members & ~measuring.padded[..., None]
    counts = members.sum(1)[:, None].expand(len(weights), -1, -1)
    kept = torch.where(members.any(-1)[:, None, :, None], weights, 0.0)  # not times: padding may hold NaN
    members = members.to(weights.dtype)
    return (members.mT[:, None] @ kept) / counts[..., None].clamp(min=1), counts


def _check_rows(rows: tuple[int, ...], Tq: int) -> None:
    for row in rows:
        if not -Tq <= row < Tq:
            raise ArgumentError(
                message(
                    "rows",
                    expected=f"queries from 0 to Tq - 1 = {Tq - 1} (or negative, from the end)",
                    got=str(row),
                    remedy="Name queries by their position in this call.",
                )
            )


def _by_sample(
    name: str, ids: Tensor | None, letters: str, length: int, B: int, device: torch.device, *, longer: bool = False
) -> Tensor | None:
    """Ids as int64 (B or 1, length) on the call's device; `longer` where more of them may be given."""
    if ids is None:
        return None
    fits = ids.shape[-1] == length or (longer and ids.shape[-1] > length)
    if not fits or (ids.ndim == 2 and ids.shape[0] not in (1, B)):
        least = "at least " if longer else ""
        whose = "query" if letters == "Tq" else "key"
        remedy = "With a cache, give those of the whole text, not only of the new tokens."
        raise ArgumentError(
            message(
                name,
                expected=f"one for every {whose}: {least}({letters}={length},) or (B={B}, {letters}={length})",
                got=str(tuple(ids.shape)),
                remedy=remedy if whose == "key" else "Leave it out to take the keys' groups at the queries' positions.",
            )
        )
    whole = ids if ids.ndim == 2 else ids[None]
    return whole.to(device, torch.int64)


def _row_weights(
    weights: Tensor | None, B: int, Hq: int, Tq: int, device: torch.device, dtype: torch.dtype
) -> Tensor | None:
    if weights is None:
        return None
    shape = tuple(weights.shape)
    whole = weights.detach().reshape(*(1,) * (2 - len(shape)), *shape)  # (…, b, Tq) or (b, h, Tq)
    whole = whole[:, None] if whole.ndim == 2 else whole
    if whole.shape[2] != Tq or whole.shape[0] not in (1, B) or whole.shape[1] not in (1, Hq):
        raise ArgumentError(
            message(
                "row_weights",
                expected=f"shape (Tq={Tq},), (B={B}, Tq={Tq}) or (B={B}, Hq={Hq}, Tq={Tq})",
                got=str(shape),
                remedy="Give one number for every query.",
            )
        )
    return whole.to(device, dtype)
