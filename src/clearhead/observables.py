"""What can be measured on a pattern (`Observables`), and what was measured (`Observation`).

Notation, used by every formula: z_ij is the logit after scale, softcap, bias and mask; L_i = log Σ_j e^{z_ij} (a sink's
logit included); p_ij = e^{z_ij − L_i}; a_i the absolute position of query i; n_i how many keys it may see. Logarithms are
natural, entropies in nats.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, NotMeasuredError, message


@dataclass(frozen=True, eq=False)
class Observables:
    """What to measure, in the same pass that computes the output.

    >>> Observables(top_k=3, map=0).top_k
    3

    Each is a switch, or a number whose 0 switches it off:

    - `max_logit`: the largest logit a query sees, and the largest weight.
    - `entropy`: L_i − Σ_j p_ij z_ij = −Σ_j p_ij log p_ij, nats; a learned sink counts as one more key.
    - `sum_squares`: Σ_j p_ij², 1 where all weight is on one key, 1 / n_i where it is spread evenly.
    - `top_k`: the k keys with the largest weights; ties go to the smaller key.
    - `received`: Σ_i p_ij for every key; with `row_weights`, Σ_i r_i p_ij too.
    - `positions`: the weight on the query itself, on the token before it, and on key 0.
    - `distance`: Σ_j p_ij (a_i − j), tokens.
    - `distance_histogram`: the weight at distances |a_i − j| of 0, 1, 2-3, 4-7, … tokens.
    - `map`: cells along each side of the pooled picture of the pattern (mean and maximum of every cell).
    - `rows`: queries whose whole row of weights is kept, as positions 0 … Tq − 1 (negative: from the end).
    - `contributions`: ‖v_j‖ of every key, and with `top_k` the keys that contribute most, by p_ij ‖v_j‖ (Kobayashi et al.
      2020). Weights alone mislead where values are tiny, as at sinks. With `output_weight`, the (E, Hq·Dv) weight of the
      layer's output projection, ‖W_O^h v_j‖ takes the place of ‖v_j‖.

    And what needs something to be told, measured when it is given:

    - `token_ids`: integer ids of the text's tokens, (T,) or (B, T). The weight on equal tokens (`same_token`) and on what
      followed equal tokens (`after_same_token`, the induction pattern).
    - `key_groups`: a group from 0 on for every key, (Tk,) or (B, Tk), −1 for none: documents, turns, kinds of token. The
      weight on every group, and what keys receive from every group of queries. `query_groups`, (Tq,) or (B, Tq), are those of
      the keys at the queries' own positions unless given. `group_top_k`: the k largest weights inside every group.
    - `row_weights`: r_i, floating point, (Tq,), (B, Tq) or (B, Hq, Tq).

    When the keys of a call are only a piece of a text, `first_key` is the text's position of key 0 and `first_query` that of
    query 0 (default: the last query stands at the last key). Keys are then named by their positions in the text.

    `lse` is always measured: it costs nothing and everything else can be recomputed from it. Time and memory of each:
    docs/how-to/observe.md.
    """

    max_logit: bool = True
    entropy: bool = True
    sum_squares: bool = False
    top_k: int = 8
    received: bool = True
    positions: bool = True
    distance: bool = True
    distance_histogram: bool = False
    map: int = 64
    rows: tuple[int, ...] = ()
    contributions: bool = False
    output_weight: Tensor | None = None
    token_ids: Tensor | None = None
    key_groups: Tensor | None = None
    query_groups: Tensor | None = None
    group_top_k: int = 0
    row_weights: Tensor | None = None
    first_key: int = 0
    first_query: int | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "map", "group_top_k", "first_key"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                remedy = "Use 0 to switch it off." if name != "first_key" else "Leave it out for a whole text."
                raise ArgumentError(message(name, expected="an integer >= 0", got=repr(value), remedy=remedy))
        for name, shape in (("token_ids", "T"), ("key_groups", "Tk"), ("query_groups", "Tq")):
            _check_ids(name, getattr(self, name), shape)
        self._check_floats()
        for name, other, why in (
            ("group_top_k", "key_groups", "a group for every key"),
            ("query_groups", "key_groups", "a group for every key"),
            ("output_weight", "contributions", "True, which is what it changes"),
        ):
            if _given(getattr(self, name)) and not _given(getattr(self, other)):
                raise ArgumentError(
                    message(
                        other,
                        expected=f"{why}, since {name} was given",
                        got=repr(getattr(self, other)),
                        remedy=f"Give {other} too, or leave {name} out.",
                    )
                )

    def _check_floats(self) -> None:
        weight, rows = self.output_weight, self.row_weights
        if weight is not None and (weight.ndim != 2 or not weight.is_floating_point()):
            raise ArgumentError(
                message(
                    "output_weight",
                    expected="a floating-point tensor of shape (E, Hq·Dv)",
                    got=f"{weight.dtype} of shape {tuple(weight.shape)}",
                    remedy="Pass the weight of the output projection as nn.Linear stores it.",
                )
            )
        if rows is not None and (rows.ndim not in (1, 2, 3) or not rows.is_floating_point()):
            raise ArgumentError(
                message(
                    "row_weights",
                    expected="a floating-point tensor of shape (Tq,), (B, Tq) or (B, Hq, Tq)",
                    got=f"{rows.dtype} of shape {tuple(rows.shape)}",
                    remedy="Give one number for every query.",
                )
            )

    @classmethod
    def light(cls) -> Observables:
        """Only what costs nothing beside the attention itself: lse, largest logit, the weights at fixed positions."""
        return cls(entropy=False, top_k=0, received=False, distance=False, map=0)

    @classmethod
    def full(cls, *, token_ids: Tensor | None = None, key_groups: Tensor | None = None) -> Observables:
        """Everything that can be measured of a text by itself, and what its tokens and groups add when they are given.

        >>> Observables.full().distance_histogram
        True
        """
        return cls(
            sum_squares=True, distance_histogram=True, contributions=True, token_ids=token_ids, key_groups=key_groups
        )

    def map_bounds(self, length: int) -> list[int]:
        """Where each cell of the map begins along one side, and where the last one ends.

        >>> Observables(map=4).map_bounds(10)
        [0, 2, 5, 7, 10]

        Cells differ by at most one position; with fewer positions than cells there is one cell a position.
        """
        return list(_even_bounds(length, min(length, self.map)))


@lru_cache(maxsize=16)  # every layer asks again
def _even_bounds(length: int, cells: int) -> tuple[int, ...]:
    return tuple(c * length // cells for c in range(cells + 1)) if cells else (0,)


def _given(x: object) -> bool:
    return isinstance(x, Tensor) or bool(x)


def _check_ids(name: str, ids: Tensor | None, letters: str) -> None:
    if ids is None:
        return
    if ids.ndim not in (1, 2) or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        remedy = (
            "what the tokenizer returned as input_ids"
            if name == "token_ids"
            else "group numbers from 0 on, −1 for none"
        )
        raise ArgumentError(
            message(
                name,
                expected=f"an integer tensor of shape ({letters},) or (B, {letters})",
                got=f"{ids.dtype} of shape {tuple(ids.shape)}",
                remedy=f"Pass {remedy}.",
            )
        )
    if name != "token_ids" and ids.numel() and int(ids.min()) < -1:
        raise ArgumentError(
            message(
                name, expected="groups from 0 on, or −1 for none", got=str(int(ids.min())), remedy="Number them anew."
            )
        )


DIFFERENTIABLE = frozenset({
    "lse", "max_logit", "entropy", "sum_squares", "received", "weighted_received", "received_by_group", "self_weight",
    "previous_weight", "first_weight", "distance", "distance_histogram", "group_weight", "group_mean", "sink", "rows",
    "same_token", "after_same_token",
})  # fmt: skip
"""What carries gradients to query, key, bias and sinks, beside the output."""


class _Measured:
    """One named quantity of an `Observation`: returns its tensor, or says which observable to ask for."""

    def __init__(self, shape: str, asked_by: str, doc: str) -> None:
        self.shape, self.asked_by = shape, asked_by
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> _Measured: ...
    @overload
    def __get__(self, instance: Observation, owner: type) -> Tensor: ...
    def __get__(self, instance: Observation | None, owner: type) -> Tensor | _Measured:
        if instance is None:
            return self
        if self.name in instance.left_out:
            raise NotMeasuredError(f"{self.name} is not in this observation: {instance.left_out[self.name]}")
        if self.name not in instance.values:
            raise NotMeasuredError(
                f"{self.name} was not measured in this observation; measured were {', '.join(instance.values)}. "
                f"Ask for it with Observables({self.asked_by})."
            )
        return instance.values[self.name]


@dataclass(frozen=True, eq=False, repr=False)
class Observation:
    """The measured values of one attention call, float32 (float64 for float64 inputs), indices int64.

    Quantities are attributes: `observation.entropy` is a tensor (B, Hq, Tq). One that was not measured says which
    observable to ask for. `values` holds them all by name.

    Where an input of `observe` requires grad, numbers that follow the weights smoothly carry gradients: `DIFFERENTIABLE` lists
    them, and what is made of them (`max_weight`, `entropy_share`, `received_mean`, …) carries them too. Rankings and their
    weights, maps, counts and contributions carry none. `detach()` lets go of all.

    `observation[b, h]` is the observation of some samples and heads, numbers, slices or lists of them; all dimensions stay.
    `merging.join_queries` puts observations of successive queries together, `merging.join_keys` those of pieces of the keys.
    """

    values: Mapping[str, Tensor]
    offset: int  # position of query 0 in the text: Tk − Tq, unless `first_query` said otherwise
    padded: Tensor | None = None  # bool (B or 1, Tq): padding queries, left out of every mean
    first_key: int = 0  # position of key 0 in the text
    left_out: Mapping[str, str] = field(default_factory=dict)  # what was measured and lost in joining, and why

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))

    output = _Measured("B Hq Tq Dv", "", "Σ_j p_ij v_j, in the inputs' dtype and shape.")
    lse = _Measured("B Hq Tq", "", "L_i, natural logarithm; −inf where a query sees nothing.")
    visible = _Measured("B Hq Tq", "", "n_i, how many keys each query may see. Dimensions may be 1.")
    max_logit = _Measured("B Hq Tq", "max_logit=True", "max_j z_ij; −inf where a query sees nothing.")
    entropy = _Measured("B Hq Tq", "entropy=True", "−Σ p log p over the keys and the sink, if there is one; nats.")
    sum_squares = _Measured("B Hq Tq", "sum_squares=True", "Σ_j p_ij², over the keys.")
    top_keys = _Measured(
        "B Hq Tq k", "top_k=8", "Keys with the largest weights, −1 where there are fewer than k, or the query is NaN."
    )
    top_weights = _Measured("B Hq Tq k", "top_k=8", "Their weights, 0 where there are fewer than k.")
    received = _Measured("B Hq Tk", "received=True", "Σ_i p_ij over the queries that are not padding.")
    viewers = _Measured("B Hq Tk", "received=True", "How many queries, padding left out, may see each key.")
    weighted_received = _Measured("B Hq Tk", "row_weights=r", "Σ_i r_i p_ij over the queries that are not padding.")
    received_by_group = _Measured(
        "B Hq G Tk", "received=True, key_groups=ids", "`received` from each group of queries."
    )
    self_weight = _Measured("B Hq Tq", "positions=True", "p at the query's own position; 0 where there is no such key.")
    previous_weight = _Measured("B Hq Tq", "positions=True", "p at the position before; 0 where there is none.")
    first_weight = _Measured("B Hq Tq", "positions=True", "p at key 0.")
    distance = _Measured("B Hq Tq", "distance=True", "Σ_j p_ij (a_i − j), tokens.")
    distance_histogram = _Measured(
        "B Hq Tq bins", "distance_histogram=True", "Weight at distances |a_i − j| of 0, 1, 2-3, 4-7, … tokens."
    )
    group_weight = _Measured("B Hq Tq G", "key_groups=ids", "Σ_{j in g} p_ij for every group g of keys.")
    group_mean = _Measured(
        "B Hq G G", "key_groups=ids", "Mean of `group_weight` over the queries of each group (rows); padding left out."
    )
    group_queries = _Measured("B 1 G", "key_groups=ids", "How many queries, padding left out, each group has.")
    group_top_keys = _Measured("B Hq Tq G k", "group_top_k=k, key_groups=ids", "As `top_keys`, inside every group.")
    group_top_weights = _Measured("B Hq Tq G k", "group_top_k=k, key_groups=ids", "Their weights.")
    value_norm = _Measured("B Hq Tk", "contributions=True", "‖v_j‖, or ‖W_O^h v_j‖ where `output_weight` was given.")
    top_contribution_keys = _Measured(
        "B Hq Tq k",
        "contributions=True, top_k=8",
        "Keys that contribute most, by p_ij ‖v_j‖; −1 where there are fewer.",
    )
    top_contributions = _Measured("B Hq Tq k", "contributions=True, top_k=8", "Their p_ij ‖v_j‖.")
    sink = _Measured(
        "B Hq Tq", "sinks were given", "e^{s_h − L_i}: weight on the learned sink; with the keys it sums to 1."
    )
    map_mean = _Measured("B Hq R R", "map=64", "Mean weight over the pairs of each cell that may be seen.")
    map_max = _Measured("B Hq R R", "map=64", "Largest weight of each cell.")
    rows = _Measured("B Hq n Tk", "rows=(...)", "All weights of the chosen queries, in the order they were asked for.")
    same_token = _Measured("B Hq Tq", "token_ids=ids", "Σ_{j<a_i, t_j = t_i} p_ij: weight on earlier equal tokens.")
    after_same_token = _Measured(
        "B Hq Tq", "token_ids=ids", "Σ_{1≤j≤a_i, t_{j−1} = t_i} p_ij: weight on what followed earlier equal tokens."
    )

    if not TYPE_CHECKING:  # so that a wrong name is still found before it runs

        def __getattr__(self, name: str) -> object:
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # says itself why it is not there
            raise AttributeError(
                f"an Observation has no {name!r}: it is what was measured of the weights (entropy, top_keys, …), and no tensor "
                'of them; trace.crop("L2H3") and Pattern compute any part of the weights'
            )

    @property
    def max_weight(self) -> Tensor:
        """e^{max_j z_ij − L_i}, the largest weight of each query (B, Hq, Tq); 0 where it sees nothing."""
        seen = self.lse != -torch.inf
        # Chosen before subtracting, too: of −inf − (−inf) even an unused gradient is NaN.
        below = torch.where(seen, self.max_logit, 0.0) - torch.where(seen, self.lse, 0.0)
        return torch.where(seen, torch.exp(below), 0.0)

    @property
    def max_key(self) -> Tensor:
        """The key with the largest weight, −1 where a query sees nothing. (B, Hq, Tq). Needs `top_k` of 1 or more."""
        return self.top_keys[..., 0]

    @property
    def entropy_share(self) -> Tensor:
        """Entropy / log n_i, in [0, 1]: 1 is uniform over what may be seen; 0 where n_i < 2. (B, Hq, Tq).

        With learned sinks the sink counts as one more key.
        """
        places = self.visible + ("sink" in self.values)
        most = torch.log(places.clamp(min=1).to(self.entropy.dtype))
        return torch.where(most > 0, self.entropy / torch.where(most > 0, most, 1.0), torch.zeros_like(self.entropy))

    @property
    def effective_keys(self) -> Tensor:
        """e^entropy, the effective number of keys attended to. (B, Hq, Tq)."""
        return torch.exp(self.entropy)

    @property
    def received_mean(self) -> Tensor:
        """Mean weight a key gets from the queries that may see it; 0 where none may. (B, Hq, Tk)."""
        return self.received / self.viewers.clamp(min=1)

    @property
    def received_contribution(self) -> Tensor:
        """Σ_i p_ij ‖v_j‖: `received` as what it carries. (B, Hq, Tk)."""
        return self.received * self.value_norm

    def mean(self, name: str, *, start: int = 0) -> Tensor:
        """Mean of a per-query quantity over the queries that are not padding, from query `start` on.

        (B, Hq), followed by what the quantity has beside its queries (groups, bins). That of `entropy_share` leaves out the
        queries that see one key, in which it cannot differ.

        >>> observation.mean("entropy", start=1)   # doctest: +SKIP
        """
        values: Tensor = getattr(self, name)[:, :, start:]
        if self.padded is None and name != "entropy_share":
            return values.mean(2)
        real = torch.ones(values.shape[:3], dtype=torch.bool, device=values.device)
        if self.padded is not None:
            real = real & ~self.padded[:, None, start:]
        if name == "entropy_share":
            real = real & (self.visible.expand(-1, -1, self.lse.shape[2])[:, :, start:] >= 2)
        more = (...,) + (None,) * (values.ndim - 3)
        return torch.where(real[more], values, 0.0).sum(2) / real.sum(2)[more].clamp(min=1)

    def __getitem__(self, which: Any) -> Observation:
        """Some samples, or `[samples, heads]`: numbers, slices, lists or tensors of numbers; all dimensions stay.

        >>> observation[0, [2, 5]].entropy.shape   # doctest: +SKIP
        torch.Size([1, 2, 100])
        """
        samples, heads = which if isinstance(which, tuple) else (which, slice(None))
        B, Hq, _ = self.lse.shape
        chosen = [_numbers("sample", samples, B), _numbers("head", heads, Hq)]
        flat = dict(self.values)
        if "output" in flat:  # a trace does not keep it
            flat["output"] = self.output.reshape(B, Hq, *self.output.shape[-2:])
        values = {}
        for name, x in flat.items():
            part = x[chosen[0]] if len(x) == B else x
            values[name] = part[:, chosen[1]] if part.shape[1] == Hq else part
        padded = self.padded
        if padded is not None and len(padded) == B:
            padded = padded[chosen[0]]
        return dataclasses.replace(self, values=values, padded=padded)

    def to(self, device: torch.device | str) -> Observation:
        """The same observation with every tensor on another device."""
        padded = None if self.padded is None else self.padded.to(device)
        return dataclasses.replace(self, values={n: t.to(device) for n, t in self.values.items()}, padded=padded)

    def detach(self) -> Observation:
        """The same observation without gradients: what it was computed from can be forgotten."""
        return dataclasses.replace(self, values={n: t.detach() for n, t in self.values.items()})

    def to_dict(self) -> dict[str, Tensor | int | None]:
        """Everything by name: the measured tensors, `offset`, `first_key` and `padded`."""
        return {**self.values, "offset": self.offset, "first_key": self.first_key, "padded": self.padded}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Observation:
        """What `to_dict` was called on."""
        own = ("offset", "first_key", "padded")
        values = {name: x for name, x in found.items() if name not in own}
        return cls(values, **{name: found[name] for name in own})

    def _repr_mimebundle_(self, **given: Any) -> dict[str, Any]:
        """What a notebook shows: the viewer, or a picture and a table where anywidget is not installed."""
        found: dict[str, Any] = importlib.import_module("clearhead.viewer.notebook").bundle(self, **given)
        return found

    def __repr__(self) -> str:
        parts = ", ".join(f"{n} {tuple(t.shape)}" for n, t in self.values.items())
        return f"Observation({parts})"


def _numbers(what: str, chosen: Any, count: int) -> list[int]:
    """What an index chooses of `count` things, as numbers from 0 on."""
    if isinstance(chosen, slice):
        return list(range(count))[chosen]
    numbers = torch.as_tensor(chosen).flatten().tolist()
    for n in numbers:
        if not isinstance(n, int) or not -count <= n < count:
            raise ArgumentError(
                message(
                    what,
                    expected=f"numbers from 0 to {count - 1} (or negative, from the end)",
                    got=repr(n),
                    remedy="Choose with numbers, a slice or a list: observation[0, 2:4].",
                )
            )
    return [n % count for n in numbers]


def measured(observation: type[Observation]) -> dict[str, _Measured]:
    """Every quantity an observation can hold, with its shape, how to ask for it and what it is; for docs and listings."""
    return {name: value for name, value in vars(observation).items() if isinstance(value, _Measured)}
