"""What a formula of `choices.py` gives on a case, in float64 NumPy.

A case is one set of numbers that the candidate was run on, with what it gave. The search asks for thousands of formulas on
the same small case, most of which share all but one step; so every step is kept and looked up again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clearhead.check.choices import INDEX, Formula
from clearhead.check.steps import (
    Array,
    Refused,
    alibi,
    capped,
    grouped,
    hidden,
    joined,
    no_type_check,
    normalised,
    products,
    relation,
    rotated,
    scale_of,
    softmax,
    unfused,
    unit_length,
)


@dataclass
class Case:
    """One call of a candidate: what went in, in one layout for all, and what came out."""

    name: str
    sources: dict[
        str, Array
    ]  # functions: q (B, Hq, Tq, D), k, v; modules: q, k, v (B, T, width), perhaps fused, perhaps x
    target: Array | None = None  # (B, Hq, Tq, Dv) for functions, (B, T, width) for modules
    heads: int = 0  # modules: query heads; 0 for functions, whose sources come in heads
    kv_heads: int = 0
    width: int = 0  # C; 0: heads times head width
    mask: Array | None = None  # (B or 1, 1 or H, Tq, Tk), True may be seen
    scale: float | None = None  # that is meant, where it is not 1/√D
    window: int | None = None
    softcap: float | None = None
    sinks: Array | None = None  # (Hq,)
    unmasked: bool = False  # called with its causal flag off
    past: int = 0  # tokens behind a cache: the query's first position on the keys' axis
    project: tuple[Array, Array] | None = None  # the output layer: y @ weight + bias
    loud: bool = False  # scores so large that rounding moves weights: only gross differences count
    notes: dict[str, Any] = field(default_factory=dict)
    again: Callable[[], Case] | None = None  # runs the candidate on the same numbers once more


_THROUGH_HEADS = INDEX["heads"] + 1  # dimensions that decide q, k and v as heads
_THROUGH_SCALE = INDEX["scale"] + 1
_THROUGH_AXIS = INDEX["sinks"] + 1
_SEES, _ALIGN, _MASK, _MERGE, _RESULT, _OVER = (
    INDEX[name] for name in ("sees", "align", "mask", "merge", "result", "over")
)


KEPT = 3000  # steps kept at a time; each is a few kB


@no_type_check
class Bench:
    """A case, and every formula on it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self._heads: dict[Formula, tuple[Array, Array, Array]] = {}
        self._scores: dict[Formula, Array] = {}
        self._weights: dict[Formula, Array] = {}
        self._masks: dict[tuple[str, str, str, int, int, int], Array | None] = {}
        self._empty: dict[tuple[str, str, str, int, int, int], Array | None] = {}

    def sizes(self, formula: Formula) -> dict[str, Any]:
        """The sizes by their letters, for scales and for words."""
        q, k, v = self.heads(formula)
        group = q.shape[1]
        hk = (
            self.case.kv_heads or self.case.sources["k"].shape[1]
            if self.case.heads
            else self.case.sources["k"].shape[1]
        )
        sizes: dict[str, Any] = {
            "B": q.shape[0], "H": group, "Hk": hk, "Tq": q.shape[2], "T": k.shape[2], "D": q.shape[3], "Dv": v.shape[3],
        }  # fmt: skip
        sizes["C"] = self.case.width or group * q.shape[3]
        sizes["C_is"] = "the input" if self.case.width else "all heads together"
        sizes["group"] = group // max(1, hk)
        sizes["past"], sizes["new"] = self.case.past, q.shape[2]
        return sizes

    # q, k and v ---------------------------------------------------------------------------------------------------------

    def heads(self, formula: Formula) -> tuple[Array, Array, Array]:
        """Query (B, Hq, Tq, D), key and value (B, Hq, Tk, ·), each key head repeated for its group."""
        made = formula[:_THROUGH_HEADS]
        if made not in self._heads:
            self._heads[made] = self._make_heads(formula)
        return self._heads[made]

    def _make_heads(self, formula: Formula) -> tuple[Array, Array, Array]:
        case = self.case
        roles = formula[0]
        fused, split, rope, cache, unit, over, grouping = formula[1:_THROUGH_HEADS]
        if case.heads:
            parts = self._split(roles, fused, split)
        else:
            if fused != "chunks" or split != "transposed" or "x" in roles:
                raise Refused
            parts = [case.sources[name] for name in roles]
        q, k, v = parts
        chunks = case.notes.get("chunks", [case.past])
        if cache.endswith("by place"):
            if rope == "none":
                raise Refused
            k, v = joined(cache, k, v, chunks)
        if rope != "none":
            q, k, v = rotated(rope, q, k, v, case.past, chunks)
        if cache != "in order" and not cache.endswith("by place"):
            k, v = joined(cache, k, v, chunks)
        if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
            raise Refused
        if unit in ("l2", "rms", "layer", "rms wide", "layer wide"):
            q, k = (unit_length(unit, t, case.notes.get("epsilon", 0.0)) for t in (q, k))
        elif unit == "softmaxed":
            q, k = (softmax(t, -1) for t in (q, k))
        if over != "tokens":
            axis = 0 if over == "batch" else 1
            if q.shape[:3] != k.shape[:3] or v.shape[:3] != k.shape[:3] or case.mask is not None:
                raise Refused
            q, k, v = (np.swapaxes(t, axis, 2) for t in (q, k, v))
        hq, hk = q.shape[1], k.shape[1]
        if v.shape[1] != hk or hq % hk:
            raise Refused
        return grouped(grouping, q, k, v)

    def _split(self, roles: str, fused: str, split: str) -> list[Array]:
        case = self.case
        hq, hk = case.heads, case.kv_heads
        raw = dict(case.sources)
        if "qkv" in raw:
            raw |= unfused(raw["qkv"], hq, hk, fused)
        elif fused != "chunks" and not case.notes.get("unfused"):
            raise Refused
        parts = []
        for place, name in zip("qkv", roles, strict=True):
            if name not in raw:
                raise Refused
            x = raw[name]
            how = split
            if split.endswith(("-view", "-strided")):
                which, _, kind = split.rpartition("-")
                how = kind if place in which else "transposed"
            count = hq if name in ("q", "x") else hk
            if split == "unsplit":
                count = 1
            elif (how == "view" and (count == 1 or x.shape[1] == 1)) or (how == "strided" and count == 1):
                raise Refused
            if x.shape[-1] % count:
                raise Refused
            b, t, width = x.shape
            if how == "view":
                parts.append(x.reshape(b, count, t, width // count))
            elif how == "strided":
                parts.append(x.reshape(b, t, width // count, count).transpose(0, 3, 1, 2))
            else:
                parts.append(x.reshape(b, t, count, width // count).transpose(0, 2, 1, 3))
        if split == "unsplit" and hq == 1:
            raise Refused
        return parts

    # Scores and weights -------------------------------------------------------------------------------------------------

    def scores(self, formula: Formula) -> Array:
        """Scaled scores (B, Hq, Tq, Tk), nothing hidden yet."""
        made = formula[:_THROUGH_SCALE]
        if made not in self._scores:
            q, k, _ = self.heads(formula)
            raw = (*formula[:_THROUGH_HEADS], "")
            if raw not in self._scores:
                self._scores[raw] = products(q, k, formula[INDEX["unit"]])
            self._scores[made] = self._scores[raw] * self.scale(formula)
        return self._scores[made]

    def scale(self, formula: Formula) -> float:
        """The number that scores are multiplied by."""
        name = formula[INDEX["scale"]]
        if name.startswith("="):
            return float(name[1:])
        if name == "1/sqrt(D)" and self.case.scale is not None:
            return self.case.scale
        if name == "ignored":
            name = "1/sqrt(D)"
        return scale_of(name, self.sizes(formula))

    def visible(self, formula: Formula) -> Array | None:
        """Who may see whom, (1 or B, 1 or H, Tq, Tk); None: everyone everything."""
        found = self._visibility(formula)
        if found not in self._masks:
            self._masks[found] = self._make_visible(*found[:5])
        return self._masks[found]

    def _visibility(self, formula: Formula) -> tuple[str, str, str, int, int, int]:
        """All that decides who may see whom."""
        q, k, _ = self.heads(formula)
        return formula[_SEES], formula[_ALIGN], formula[_MASK], q.shape[2], k.shape[2], q.shape[0]

    def _make_visible(self, sees: str, align: str, use: str, tq: int, tk: int) -> Array | None:
        case = self.case
        if case.unmasked and sees == "past":
            sees = "all"
        elif sees == "always past":
            sees = "past"
        if sees in ("only the cache", "not the cache"):
            if not case.past:
                raise Refused
            cached = np.broadcast_to(np.arange(tk)[None, :] < case.past, (tq, tk))
            if sees == "not the cache":
                cached = ~cached & (np.arange(tk)[None, :] <= np.arange(tq)[:, None] + case.past)
            return cached[None, None]
        causal = relation(sees, tq, tk, 0 if align == "start" else tk - tq, case.window)
        if case.mask is None:  # how a mask is used makes no difference then
            return None if causal is None else causal[None, None]
        given = case.mask
        if use == "ignored":
            return None if causal is None else causal[None, None]
        if use == "transposed":
            if tq != tk or (given == given[:, :, :1]).all():
                raise Refused
            given = np.swapaxes(given, -1, -2)
        elif use == "rows":
            if tq != tk or not (given == given[:, :, :1]).all():
                raise Refused
            given = np.swapaxes(given, -1, -2)
        elif use == "inverted":
            given = ~given
        elif use == "first sample":
            if given.shape[0] == 1:
                raise Refused
            given = given[:1]
        elif use == "shifted":
            given = np.roll(given, 1, axis=-1)
        if causal is None:
            if use in ("instead", "either"):
                raise Refused
            return given
        if use == "instead":
            return given
        return given | causal if use == "either" else given & causal

    def weights(self, formula: Formula) -> Array:
        """What each value is multiplied by, (B, Hq, Tq, Tk): after softmax and whatever comes behind it."""
        with np.errstate(all="ignore"):
            return self._kept_weights(formula)

    def _kept_weights(self, formula: Formula) -> Array:
        made = formula[:_THROUGH_AXIS]
        if made not in self._weights:
            if len(self._weights) > KEPT:
                self._weights.clear()
                self._scores.clear()
            self._weights[made] = self._make_weights(formula)
        return self._weights[made]

    def _make_weights(self, formula: Formula) -> Array:
        case = self.case
        z = self.scores(formula)
        visible = self.visible(formula)
        bias = formula[INDEX["bias"]]
        cap, hide, axis, sink = (formula[INDEX[name]] for name in ("cap", "hide", "axis", "sinks"))
        if case.softcap is not None and cap != "after":
            z = capped(cap, z, case.softcap, self.scale(formula))
        if bias != "none":
            z = z + alibi(bias, z, z.shape[-1] - z.shape[-2])
        late: Array | None = None
        if visible is not None:
            z, late = hidden(hide, z, visible)
        if cap == "after" and case.softcap is not None:
            z = case.softcap * np.tanh(z / case.softcap)
        if case.sinks is None:
            p = normalised(axis, z)
        elif axis != "keys":
            raise Refused
        else:
            p = self._with_sinks(sink, z, self.scale(formula))
        if late is not None:
            if hide == "after-minus-inf":
                p = np.where(late, p, -np.inf)
            else:
                p = np.where(late, p, 0.0)
                if hide == "after-again":
                    p = softmax(p, -1)
        return p

    def _with_sinks(self, sink: str, z: Array, scale: float) -> Array:
        sinks = self.case.sinks
        assert sinks is not None  # noqa: S101
        if sink == "dropped":
            return softmax(z, -1)
        column = np.broadcast_to(sinks[None, :, None, None], (*z.shape[:-1], 1)) * (scale if sink == "scaled" else 1.0)
        if sink == "not exponentiated":
            top = z.max(-1, keepdims=True)
            e = np.exp(z - top)
            return np.asarray(e / (e.sum(-1, keepdims=True) + column * np.exp(-top)))
        p = softmax(np.concatenate([z, column], axis=-1), -1)
        p, spare = p[..., :-1].copy(), p[..., -1]
        if sink == "first value":
            p[..., 0] += spare
        elif sink == "last value":
            p[..., -1] += spare
        elif sink == "mean value":
            p += spare[..., None] / p.shape[-1]
        return p

    # Results ------------------------------------------------------------------------------------------------------------

    def out(self, formula: Formula) -> Array:
        """What the formula gives, in the shape of the case's target. Raises `Refused` where it has no meaning."""
        with np.errstate(all="ignore"):
            p = self._kept_weights(formula)
            q, _, v = self.heads(formula)
            result = formula[_RESULT]
            if result == "weights transposed":
                if p.shape[-1] != p.shape[-2]:
                    raise Refused
                p = np.swapaxes(p, -1, -2)
            if result in ("weights averaged", "weights summed"):
                if p.shape[1] == 1:
                    raise Refused
                p = np.broadcast_to((np.mean if result.endswith("averaged") else np.sum)(p, 1, keepdims=True), p.shape)
            if result == "weights":
                if p.shape[-1] != v.shape[-1]:
                    raise Refused
                v = np.eye(v.shape[-1])
            y = p @ v
            y = self._finished(result, y, q, v)
            over = formula[_OVER]
            if over != "tokens":
                y = np.swapaxes(y, 0 if over == "batch" else 1, 2)
            return self.merged(formula, y)

    def merged(self, formula: Formula, y: Array) -> Array:
        """The heads' results (B, Hq, Tq, Dv) as the candidate gives them: merged and projected."""
        return self._output(formula[INDEX["output"]], self._merged(formula[INDEX["merge"]], y))

    def _output(self, output: str, y: Array) -> Array:
        if output == "plus input":
            x = self.case.sources.get("x")
            y = self._output("projected", y)
            if not self.case.heads or x is None or x.shape != y.shape:
                raise Refused
            return y + x
        if self.case.project is None:
            if output != "projected":
                raise Refused
            return y
        if output == "unprojected":
            return y
        weight, bias = self.case.project
        for _ in range(2 if output == "twice" else 1):
            w = weight.T if output == "transposed" else weight
            if y.shape[-1] != w.shape[0]:
                raise Refused
            y = y @ w + bias if output != "transposed" or w.shape[1] == len(bias) else y @ w
        return y

    def _finished(self, result: str, y: Array, q: Array, v: Array) -> Array:
        if result == "sum" or result.startswith("weights"):
            return y
        if result == "scaled":
            return y * (1 / math.sqrt(q.shape[-1]))
        if result == "scaled by value width":
            return y * (1 / math.sqrt(v.shape[-1]))
        if result == "doubled":
            return y * 2
        if result == "reversed":
            return y[:, :, ::-1]
        if result == "late":
            return np.asarray(np.roll(y, 1, axis=2))
        if result == "residual input":
            if "x" not in self.case.sources:
                raise Refused
            x = self.case.sources["x"]
            if x.shape[-1] != y.shape[1] * y.shape[3]:
                raise Refused
            return y + x.reshape(*x.shape[:2], y.shape[1], y.shape[3]).transpose(0, 2, 1, 3)
        other = q if result == "residual query" else v
        if other.shape != y.shape:
            raise Refused
        return y + other

    def _merged(self, merge: str, y: Array) -> Array:
        if not self.case.heads:
            if merge != "transposed":
                raise Refused
            return y
        b, h, t, d = y.shape
        if merge == "transposed":
            return y.transpose(0, 2, 1, 3).reshape(b, t, h * d)
        if h == 1:
            raise Refused
        if merge == "strided":
            return y.transpose(0, 2, 3, 1).reshape(b, t, h * d)
        if merge == "reshape":
            if t == 1:
                raise Refused
            return y.reshape(b, t, h * d)
        if merge == "reversed":
            return y[:, ::-1].transpose(0, 2, 1, 3).reshape(b, t, h * d)
        if merge == "mean":
            return np.asarray(y.mean(1))
        if merge == "sum":
            return np.asarray(y.sum(1))
        return y[:, 0] if merge == "first" else y[:, -1]

    @property
    def square(self) -> bool:
        """Whether there are as many queries as keys, so that both alignments are one."""
        q, k = (self.case.sources.get(name, self.case.sources.get("qkv")) for name in ("q", "k"))
        return q is None or k is None or q.shape[-2] == k.shape[-2]

    @property
    def finite(self) -> bool:
        """Whether all that the candidate gave are finite numbers."""
        return self.case.target is not None and bool(np.isfinite(self.case.target).all())

    @property
    def tells(self) -> bool:
        """Whether most of what the candidate gave are numbers."""
        target = self.case.target
        return target is not None and float(np.isfinite(target).mean()) > 0.5

    def empty_rows(self, formula: Formula) -> Array | None:
        """True for the queries (B or 1, H or 1, Tq) that see nothing at all, of which a formula says nothing."""
        visible = self.visible(formula)
        if visible is None:
            return None
        found = self._visibility(formula)
        if found not in self._empty:
            empty: Array = np.asarray(~visible.any(-1))
            self._empty[found] = empty if empty.any() else None
        seen = self._empty[found]
        if seen is not None and 2 * seen.sum() > seen.size:  # where hardly anybody sees anything, nothing is explained
            raise Refused
        return seen

    def error(self, formula: Formula) -> float:
        """max|out − target| as a share of max|target|; infinite where shapes, NaNs or infinities differ.

        Rows that see nothing are left out: what they should give is a question of its own.
        """
        try:
            mine, target = self.out(formula), self.case.target
            if target is None or mine.shape != target.shape:
                return math.inf
            empty = self.empty_rows(formula)
        except (Refused, ValueError):  # ValueError: options that leave shapes which do not go together
            return math.inf
        difference = np.abs(mine - target)
        wrong = ~np.isfinite(difference)
        if empty is not None and formula[INDEX["over"]] == "tokens":
            if formula[INDEX["merge"]] in ("reshape",) or formula[INDEX["result"]] in ("reversed", "late"):
                return math.inf
            if self.case.heads:  # (B, T, width): a row is left out when it is empty in any head
                rows = np.broadcast_to(np.asarray(empty.any(1))[..., None], difference.shape)
            else:
                rows = np.broadcast_to(empty[..., None], difference.shape)
            difference = np.where(rows, 0.0, difference)
            wrong &= ~rows
            target = np.where(rows, 0.0, target)
        if wrong.any():
            same = (np.isnan(mine) & np.isnan(target)) | (mine == target)
            if (wrong & ~same).any():
                return math.inf
            difference = np.where(wrong, 0.0, difference)
            target = np.where(wrong, 0.0, target)
        return float(difference.max(initial=0.0) / max(float(np.abs(target).max(initial=0.0)), 1e-30))
