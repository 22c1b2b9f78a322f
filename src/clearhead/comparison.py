"""What changed from one run to another, head by head, on the tokens that both have."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.trace import Call, Trace, check_sample


@dataclass(frozen=True)
class Change:
    """How a head changed between two runs: numbers over the tokens that both have.

    `received`: half the sum of |differences| between the shares of weight that keys receive, 0 (the same) to 1 (nothing in
    common). The others are mean absolute differences a query; None where one run did not measure it.
    """

    head: Head
    received: float
    entropy: float | None
    first_weight: float | None
    previous_weight: float | None
    self_weight: float | None


@dataclass(frozen=True)
class Comparison:
    """What changed, the head that changed most first, and how many tokens were compared of each run's."""

    changes: list[Change]
    aligned: int
    tokens: tuple[int, int]

    def __str__(self) -> str:
        rows = [f"{self.aligned} tokens compared, of {self.tokens[0]} and {self.tokens[1]}"]
        rows += [
            f"{change.head!s:>8}  received {change.received:.3f}"
            + "".join(
                f"  {name.removesuffix('_weight')} {value:.3f}"
                for name, value in vars(change).items()
                if name not in ("head", "received") and value is not None
            )
            for change in self.changes[:10]
        ]
        return "\n".join(rows)


def compare(one: Trace, other: Trace, *, batch: int = 0) -> Comparison:
    """Heads that changed most between two runs, on the same tokens or on those that two texts have in common, in order.

    Raises `InputError` where the runs have no head, no length or no token in common.
    """
    for side in (one, other):
        check_sample(side, batch)
    pairs = [
        (call, match)
        for call in one.calls
        for match in other.calls
        if match.layer == call.layer and match.run == call.run
    ]
    if not pairs:
        raise InputError("compare: the two traces have no layer in common; watch the same layers of both models")
    mine, theirs = _aligned(one, other, pairs[0], batch)
    changes = []
    for call, match in pairs:
        if call.crosses or match.crosses:
            continue
        a, b = call.observation, match.observation
        shares = [_share(seen.received[batch].double()[:, places]) for seen, places in ((a, mine), (b, theirs))]
        for head in (h for h in call.addresses() if h in match.addresses()):
            n, m = call.index(head), match.index(head)
            moved = float((shares[0][n] - shares[1][m]).abs().sum() / 2)
            means: list[float | None] = []
            for name in ("entropy", "first_weight", "previous_weight", "self_weight"):
                if name not in a.values or name not in b.values:
                    means.append(None)
                    continue
                x, y = a.values[name][batch, n, mine], b.values[name][batch, m, theirs]
                means.append(float((x - y).abs().mean()))
            changes.append(Change(head, moved, *means))
    changes.sort(key=lambda change: (-change.received, change.head))
    return Comparison(changes, len(mine), (pairs[0][0].rows, pairs[0][1].rows))


def _share(received: Tensor) -> Tensor:
    return received / received.sum(-1, keepdim=True).clamp(min=1e-30)


def _aligned(one: Trace, other: Trace, pair: tuple[Call, Call], batch: int) -> tuple[Tensor, Tensor]:
    """Positions of the tokens that both runs have, in both."""
    a, b = _ids(one, pair[0], batch), _ids(other, pair[1], batch)
    if a is None or b is None:
        if pair[0].rows != pair[1].rows:
            raise InputError(
                f"compare: one run has {pair[0].rows} tokens and the other {pair[1].rows}, and which they are is not known; "
                "set token_ids of both traces"
            )
        every = torch.arange(pair[0].rows)
        return every, every
    blocks = difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks() if a != b else [(0, 0, len(a))]
    mine = [i + n for i, _, size in blocks for n in range(size)]
    theirs = [j + n for _, j, size in blocks for n in range(size)]
    if not mine:
        raise InputError(f"compare: the two texts, of {len(a)} and {len(b)} tokens, have no token in common")
    return torch.tensor(mine), torch.tensor(theirs)


def _ids(trace: Trace, call: Call, batch: int) -> list[int] | None:
    """The tokens of a call's queries, as far as they are known and as many."""
    ids = call.query_ids
    if ids is not None:
        return [int(i) for i in ids[batch]]
    known = trace.token_ids
    return known if batch == 0 and known is not None and len(known) == call.rows else None
