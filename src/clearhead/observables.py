"""What can be measured on a pattern (`Observables`), and what was measured (`Observation`).

Notation, used by every formula: z_ij is the logit after scale, softcap, bias and mask; L_i = log Σ_j e^{z_ij} (a sink's
logit included); p_ij = e^{z_ij − L_i}; a_i the absolute position of query i; n_i how many keys it may see. Logarithms are
natural, entropies in nats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

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
    - `top_k`: the k keys with the largest weights; ties go to the smaller key.
    - `received`: Σ_i p_ij for every key.
    - `positions`: the weight on the query itself, on the token before it, and on key 0.
    - `distance`: Σ_j p_ij (a_i − j), tokens.
    - `map`: cells along each side of the pooled picture of the pattern (mean and maximum of every cell).
    - `rows`: queries whose whole row of weights is kept, as positions 0 … Tq − 1 (negative: from the end).
    - `token_ids`: integer ids of the keys' tokens, (Tk,) or (B, Tk). Given, the weight on equal tokens (`same_token`) and
      on what followed equal tokens (`after_same_token`, the induction pattern) is measured too.

    `lse` is always measured: it costs nothing and everything else can be recomputed from it.
    """

    max_logit: bool = True
    entropy: bool = True
    top_k: int = 8
    received: bool = True
    positions: bool = True
    distance: bool = True
    map: int = 64
    rows: tuple[int, ...] = ()
    token_ids: Tensor | None = None

    def __post_init__(self) -> None:
        for name in ("top_k", "map"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ArgumentError(
                    message(name, expected="an integer >= 0", got=repr(value), remedy="Use 0 to switch it off.")
                )
        ids = self.token_ids
        if ids is not None and (ids.ndim not in (1, 2) or ids.is_floating_point() or ids.is_complex()):
            raise ArgumentError(
                message(
                    "token_ids",
                    expected="an integer tensor of shape (Tk,) or (B, Tk)",
                    got=f"{ids.dtype} of shape {tuple(ids.shape)}",
                    remedy="Pass what the tokenizer returned as input_ids.",
                )
            )

    @classmethod
    def light(cls) -> Observables:
        """Only what costs nothing beside the attention itself: lse, largest logit, the weights at fixed positions."""
        return cls(entropy=False, top_k=0, received=False, distance=False, map=0)


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
    """

    values: Mapping[str, Tensor]
    offset: int  # position of query 0 on the keys' axis: Tk − Tq
    padded: Tensor | None = None  # bool (B or 1, Tq): padding queries, left out of every mean

    output = _Measured("B Hq Tq Dv", "", "Σ_j p_ij v_j, in the inputs' dtype and shape.")
    lse = _Measured("B Hq Tq", "", "L_i, natural logarithm; −inf where a query sees nothing.")
    visible = _Measured("B Hq Tq", "", "n_i, how many keys each query may see. Dimensions may be 1.")
    max_logit = _Measured("B Hq Tq", "max_logit=True", "max_j z_ij; −inf where a query sees nothing.")
    entropy = _Measured("B Hq Tq", "entropy=True", "−Σ p log p over the keys and the sink, if there is one; nats.")
    top_keys = _Measured("B Hq Tq k", "top_k=8", "Keys with the largest weights, −1 where there are fewer than k.")
    top_weights = _Measured("B Hq Tq k", "top_k=8", "Their weights, 0 where there are fewer than k.")
    received = _Measured("B Hq Tk", "received=True", "Σ_i p_ij over the queries that are not padding.")
    self_weight = _Measured("B Hq Tq", "positions=True", "p at the query's own position; 0 where there is no such key.")
    previous_weight = _Measured("B Hq Tq", "positions=True", "p at the position before; 0 where there is none.")
    first_weight = _Measured("B Hq Tq", "positions=True", "p at key 0.")
    distance = _Measured("B Hq Tq", "distance=True", "Σ_j p_ij (a_i − j), tokens.")
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

    @property
    def max_weight(self) -> Tensor:
        """e^{max_j z_ij − L_i}, the largest weight of each query (B, Hq, Tq); 0 where it sees nothing."""
        return torch.where(self.lse == -torch.inf, 0.0, torch.exp(self.max_logit - self.lse))

    @property
    def entropy_share(self) -> Tensor:
        """Entropy / log n_i, in [0, 1]: 1 is uniform over what may be seen; 0 where n_i < 2. (B, Hq, Tq).

        With learned sinks the sink counts as one more key.
        """
        places = self.visible + ("sink" in self.values)
        most = torch.log(places.clamp(min=1).to(self.entropy.dtype))
        return torch.where(most > 0, self.entropy / most, torch.zeros_like(self.entropy))

    @property
    def effective_keys(self) -> Tensor:
        """e^entropy, the effective number of keys attended to. (B, Hq, Tq)."""
        return torch.exp(self.entropy)

    def mean(self, name: str, *, start: int = 0) -> Tensor:
        """Mean of a per-query quantity over the queries that are not padding, from query `start` on; (B, Hq).

        >>> observation.mean("entropy", start=1)   # doctest: +SKIP
        """
        values: Tensor = getattr(self, name)[..., start:]
        if self.padded is None:
            return values.mean(-1)
        real = ~self.padded[:, None, start:].expand(values.shape)
        return torch.where(real, values, 0.0).sum(-1) / real.sum(-1).clamp(min=1)

    def to(self, device: torch.device | str) -> Observation:
        """The same observation with every tensor on another device."""
        padded = None if self.padded is None else self.padded.to(device)
        return dataclasses.replace(self, values={n: t.to(device) for n, t in self.values.items()}, padded=padded)

    def __repr__(self) -> str:
        parts = ", ".join(f"{n} {tuple(t.shape)}" for n, t in self.values.items())
        return f"Observation({parts})"


def measured(observation: type[Observation]) -> dict[str, _Measured]:
    """Every quantity an observation can hold, with its shape, how to ask for it and what it is; for docs and listings."""
    return {name: value for name, value in vars(observation).items() if isinstance(value, _Measured)}
