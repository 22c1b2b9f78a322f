"""What the browser plays with: the same functions, run for every position of a slider."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from clearhead.attention import attention
from clearhead.ladder import online_softmax, single_head
from clearhead.ladder.example import Projected
from clearhead.ladder.rung4_single_head import SingleHead
from clearhead.ladder.rung5_multi_head import MultiHead
from clearhead.ladder.rung6_online_softmax import Tile
from clearhead.lesson.experiments import spread

DIGITS = 4


def numbers(tensor: Tensor, digits: int = DIGITS) -> Any:
    """A tensor as nested lists of rounded numbers; what is not finite is null, since JSON has no infinity."""

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(v) for v in value]
        return round(value, digits) if abs(value) < 1e30 else None

    return rounded(tensor.detach().tolist())


def pair(four: SingleHead) -> dict[str, Any]:
    """Queries, keys, scores and weights of the first sequence: whatever made one weight."""
    return {
        "q": numbers(four.q[0]),
        "k": numbers(four.k[0]),
        "scores": numbers(four.scores[0]),
        "weights": numbers(four.weights[0]),
    }


@torch.no_grad()
def edges(layers: Projected) -> list[dict[str, Any]]:
    """Rung 4 with the edge of what may be seen moved by −1 (only the past) to T − 1 (everything).

    Each with its weights (T, T) and its leak: how far every token's result moves when only the last token of x changes.
    """
    x, query, key, value = layers
    x = x[:1]  # (1, T, C)
    T = x.shape[1]
    changed = x.clone()
    changed[:, -1] += 1  # the last token becomes another one
    at = torch.arange(T)
    found = []
    for edge in range(-1, T):
        may = at[None, :] <= at[:, None] + edge  # (T, T), True = may attend
        four, other = single_head(x, query, key, value), single_head(changed, query, key, value)
        before, after = (attention(_one(f.q), _one(f.k), _one(f.v), mask=may) for f in (four, other))
        weights = attention(_one(four.q), _one(four.k), torch.eye(T)[None, None], mask=may)  # the values are 1 0 0 …
        leak = (after - before).abs().amax(-1)[0, 0]  # (T,)
        found.append({"edge": edge, "weights": numbers(weights[0, 0]), "leak": numbers(leak)})
    return found


def _one(tensor: Tensor) -> Tensor:
    """(B, T, D) -> (B, 1, T, D)."""
    return tensor[:, None]


def scales() -> list[dict[str, Any]]:
    """Variance of scores, measured and predicted, and the weights of one query, for some widths and scales."""
    found = []
    for D in (4, 16, 64, 256):
        for name, scale in (("1", 1.0), ("1/√D", D**-0.5), ("1/D", 1 / D), ("1/√C, C = 4·D", (4 * D) ** -0.5)):
            seen = spread(D, scale)
            found.append(
                {
                    "D": D,
                    "scale": name,
                    "variance": round(seen.variance, 4),
                    "predicted": round(D * scale**2, 4),
                    "strongest": round(seen.strongest, 4),
                    "weights": numbers(seen.weights),
                }
            )
    return found


def tiles(five: MultiHead, size: int) -> list[dict[str, Any]]:
    """Every tile of rung 6 for the first head of the first sequence, as it passes."""
    seen: list[Tile] = []
    online_softmax(five.q[:1, :1], five.k[:1, :1], five.v[:1, :1], tile=size, look=seen.append)
    return [
        {
            "row": t.row,
            "column": t.column,
            "scores": numbers(t.scores[0, 0], 2),
            "top": numbers(t.top[0, 0, :, 0]),
            "total": numbers(t.total[0, 0, :, 0]),
        }
        for t in seen
    ]
