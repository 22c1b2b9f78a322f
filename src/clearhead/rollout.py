"""`rollout`: what one position has been given by every token, through all layers at once (Abnar and Zuidema 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.errors import ArgumentError, message
from clearhead.pattern import Pattern


@dataclass(frozen=True, eq=False, repr=False)
class Rollout:
    """What `rollout` found; float64 on the patterns' device.

    `layers` (L, T): row n is the share of every token after n + 1 layers from the top, row 0 being one layer's. `input` (T,)
    is the last row: the shares of the tokens that went into the model.
    """

    layers: Tensor
    position: int

    @property
    def input(self) -> Tensor:
        """Shares of the model's input tokens, (T,). They sum to 1, or to less where learned sinks took weight."""
        return self.layers[-1]

    def __repr__(self) -> str:
        return f"Rollout(layers {tuple(self.layers.shape)}, position {self.position})"


def rollout(
    patterns: Sequence[Pattern],
    position: int,
    *,
    batch: int = 0,
    heads: Sequence[int] | Sequence[Sequence[float]] | Tensor | None = None,
) -> Rollout:
    """Row `position` of Â_L · … · Â_1, with Â = ½ (Ā + I) and Ā the mean over the heads of a layer; first layer first.

    >>> q, k = torch.randn(2, 6, 1, 4, 50, 16)                   # six layers of four heads
    >>> patterns = [Pattern(q[n], k[n], mask=Causal()) for n in range(6)]
    >>> shares = rollout(patterns, 20)
    >>> shares.layers.shape, round(float(shares.input.sum()), 4), int(shares.input.nonzero().max())
    (torch.Size([6, 50]), 1.0, 20)

    The ½ I stands for the residual stream, which carries half of every layer's output past its attention; half is a
    convention, not a measurement. What this is not: see "What rollout is not" in the documentation.

    Arguments:
        patterns: one a layer, from the first layer to the last, each with Tq = Tk and all of one length.
        position: the token to start from, in the last layer's output; negative numbers count from the end.
        batch: the sample.
        heads: None, the mean over all heads of a layer; a head number a layer; or (L, Hq) weights ≥ 0 of the heads, of which
            each layer's are divided by their sum.

    Returns:
        A `Rollout`.

    Raises:
        ArgumentError: no patterns, lengths that differ or Tq ≠ Tk, a position that is not there or is padding, heads that do
            not fit.

    No T×T: the product is taken from the left, a row vector times a matrix a layer, which streams past as in
    `Pattern.received`. Time O(L · heads · visible pairs · D), memory O(L · T).
    """
    T = _checked_length(patterns)
    position = _checked_position(position, T)
    shares = [_shares(heads, n, len(patterns), pattern.shape[1]) for n, pattern in enumerate(patterns)]
    samples = [_of_sample(pattern, batch) for pattern in patterns]
    _check_not_padding(patterns, position, batch)
    vector = torch.zeros(T, dtype=torch.float64, device=patterns[-1].device)
    vector[position] = 1.0
    found = []
    for views, layer in zip(reversed(samples), reversed(shares), strict=True):
        given = torch.zeros_like(vector)
        for view, share in zip(views, layer, strict=True):
            if share:
                given += share * view.received(vector)[0, 0].to(vector)
        vector = (vector + given) / 2
        found.append(vector)
    return Rollout(torch.stack(found), position)


def _checked_length(patterns: Sequence[Pattern]) -> int:
    """T, the same for all."""
    if not patterns:
        raise ArgumentError(
            message("patterns", expected="one pattern a layer", got="none", remedy="Keep query and key while watching.")
        )
    T = patterns[0].shape[3]
    for n, pattern in enumerate(patterns):
        Tq, Tk = pattern.shape[2:]
        if not Tq == Tk == T:
            raise ArgumentError(
                message(
                    "patterns",
                    expected=f"Tq = Tk = {T} in every layer, a row for every token",
                    got=f"Tq = {Tq} and Tk = {Tk} in layer {n}",
                    remedy="Run the whole text at once: rows that a cache has taken the place of cannot be passed through.",
                )
            )
    return T


def _checked_position(position: int, T: int) -> int:
    if isinstance(position, bool) or not -T <= position < T:
        raise ArgumentError(
            message(
                "position",
                expected=f"a token from 0 to T - 1 = {T - 1} (or negative, from the end)",
                got=repr(position),
                remedy="Name the token whose output is asked about.",
            )
        )
    return position % T


def _of_sample(pattern: Pattern, batch: int) -> list[Pattern]:
    """The heads of one sample."""
    return [pattern.head(h, batch) for h in range(pattern.shape[1])]


def _check_not_padding(patterns: Sequence[Pattern], position: int, batch: int) -> None:
    for pattern in patterns:
        padded = pattern.padded
        if padded is not None and bool(padded[batch % len(padded) if len(padded) > 1 else 0, position]):
            raise ArgumentError(
                message(
                    "position",
                    expected="a token that is not padding",
                    got=f"{position}, which is padding in sample {batch}",
                    remedy="Padding stands behind lengths[b] - 1, or in front with side='left'.",
                )
            )


def _shares(
    heads: Sequence[int] | Sequence[Sequence[float]] | Tensor | None, layer: int, layers: int, Hq: int
) -> list[float]:
    """How much each head of a layer counts; they sum to 1."""
    if heads is None:
        return [1.0 / Hq] * Hq
    if len(heads) != layers:
        raise ArgumentError(
            message(
                "heads",
                expected=f"an entry for each of the {layers} layers",
                got=f"{len(heads)}",
                remedy="Leave it out for the mean over all heads.",
            )
        )
    given = heads[layer]
    if isinstance(given, Tensor):
        given = given.tolist()
    if isinstance(given, int) and not isinstance(given, bool):
        if not 0 <= given < Hq:
            raise ArgumentError(
                message(
                    "heads",
                    expected=f"a head from 0 to Hq - 1 = {Hq - 1} in layer {layer}",
                    got=str(given),
                    remedy="Heads are counted from 0 in every layer.",
                )
            )
        return [float(h == given) for h in range(Hq)]
    weights = [float(w) for w in given] if isinstance(given, Sequence) else []
    total = sum(weights)
    if len(weights) != Hq or not all(w >= 0 for w in weights) or not 0 < total < float("inf"):
        raise ArgumentError(
            message(
                "heads",
                expected=f"a head number, or Hq = {Hq} weights >= 0 that are not all 0, in layer {layer}",
                got=repr(given),
                remedy="Weights are divided by their sum.",
            )
        )
    return [w / total for w in weights]
