"""What the page lists as one number a head: which quantities, how each is read, and what uniform attention would have."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clearhead.observables import Observation
from clearhead.roles.scores import visible_keys
from clearhead.viewer.packed import number, numbers

# name, what it is called, its unit, what it is
QUANTITIES: tuple[tuple[str, str, str, str], ...] = (
    ("entropy", "entropy", "nats", "How spread out the weights are, the mean over the tokens; uniform attention has the most."),
    ("entropy_share", "entropy share", "", "Entropy divided by uniform attention's: 1 is as spread out as can be."),
    ("distance", "distance", "tokens", "How far back a head looks, the mean over weights and tokens."),
    ("max_weight", "largest weight", "", "The weight on the most attended token, the mean over the tokens."),
    ("max_logit", "largest logit", "", "The largest logit of any pair."),
    ("peak", "largest share received", "", "The share of all weight that the most attended token of the text receives."),
    ("sink", "learned sink", "", "The weight on the learned sink, the mean over the tokens."),
    ("sum_squares", "sum of squares", "", "A token's squared weights summed, the mean over tokens: 1 is one key alone."),
)  # fmt: skip


def quantity(observation: Observation, name: str, b: int) -> Callable[[], Tensor] | None:
    """How to read one number a head (Hq,) of a sample, or None where it was not measured."""
    values = observation.values
    if name == "peak":
        return (lambda: _peak(observation.received[b])) if "received" in values else None
    if name == "max_logit":
        return (lambda: observation.max_logit[b].amax(-1)) if name in values else None
    needs = {"entropy_share": ("entropy",), "max_weight": ("max_logit",)}.get(name, (name,))
    if any(need not in values for need in needs):
        return None
    return lambda: observation.mean(name)[b]


def _peak(received: Tensor) -> Tensor:
    return received.amax(-1) / received.sum(-1).clamp(min=1e-30)


def of_heads(
    observation: Observation, names: list[str], sample: int
) -> tuple[dict[str, list[float]], dict[str, float | None]]:
    """Of one layer: every quantity of every head, and what uniform attention would have where that is known."""
    found, nulls = {}, {}
    b = min(sample, len(observation.lse) - 1)
    for name in names:
        read = quantity(observation, name, b)
        if read is not None:
            found[name] = read().double().tolist()
    seen = _real(observation, sample, visible_keys(observation, sample))
    places = seen.clamp(min=1) + ("sink" in observation.values)
    if "entropy" in found:
        nulls["entropy"] = number(float(torch.log(places).mean()))
        nulls["entropy_share"] = 1.0
    if "max_weight" in found:
        nulls["max_weight"] = number(float((1 / places).mean()))
    return found, nulls


def uniform_histogram(observation: Observation, sample: int, bins: int) -> Float[np.ndarray, " bins"] | None:
    """The mean histogram of uniform attention, for a head whose queries see everything before them and themselves."""
    seen = numbers(_real(observation, sample, visible_keys(observation, sample))).astype(np.int64)
    positions = numbers(_real(observation, sample, torch.arange(observation.lse.shape[2]))) + observation.offset
    if not np.array_equal(seen, positions + 1):
        return None
    lows = [0, *(2**n for n in range(bins - 1))]
    highs = [*lows[1:], 1 << 62]
    inside = [np.clip(np.minimum(high, seen) - low, 0, None) for low, high in zip(lows, highs, strict=True)]
    return np.array([(count / seen).mean() for count in inside], dtype=np.float32)


def _real(observation: Observation, sample: int, values: Tensor) -> Tensor:
    """Of something about every query, the queries that are not padding."""
    if observation.padded is None:
        return values
    return values[~observation.padded[sample if observation.padded.shape[0] > 1 else 0]]
