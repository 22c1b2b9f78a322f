"""A trace in tables: a row a head, what a token looks at, how much goes to each group, what changed between two runs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from clearhead.addresses import ByHead, Head
from clearhead.errors import InputError
from clearhead.trace import Call, Trace, check_sample

if TYPE_CHECKING:
    import pandas
    import xarray

MEANS = ("entropy", "entropy_share", "max_weight", "first_weight", "previous_weight", "self_weight", "distance", "sink")


def table(trace: Trace, *, batch: int = 0) -> list[dict[str, Any]]:
    """A row a head: address, module, the role it earns on this text with its score and null, and means over the queries."""
    from clearhead.roles import label, roles

    check_sample(trace, batch)
    scores = roles(trace, sample=batch)
    rows = []
    for call in trace.calls:
        means = {name: call.observation.mean(name)[batch] for name in MEANS if _has(call, name)}
        for n, head in enumerate(call.addresses()):
            role = label(scores[head])
            rows.append(
                {
                    "head": str(head),
                    "layer": head.layer,
                    "index": head.head,
                    "module": call.name,
                    "crosses": call.crosses,
                    "role": None if role is None else role.role,
                    "score": None if role is None else role.score,
                    "null": None if role is None else role.null,
                    **{name: float(mean[n]) for name, mean in means.items()},
                }
            )
    return rows


def _has(call: Call, name: str) -> bool:
    return hasattr(call.observation, name)


class Looked(NamedTuple):
    """A key that a query looks at: its position, what it reads as, and the weight."""

    key: int
    piece: str
    weight: float


def top(trace: Trace, token: int, *, k: int = 3, batch: int = 0) -> ByHead[list[Looked]]:
    """What one token looks at most through every head: the k keys with the largest weights, as many as were kept.

    Raises `InputError` for a token that is not there.
    """
    check_sample(trace, batch)
    found: ByHead[list[Looked]] = ByHead()
    for call in trace.calls:
        seen = call.observation
        row = call.row(token)
        names = _names(trace, call, batch)
        keys, weights = seen.top_keys[batch, :, row, :k].tolist(), seen.top_weights[batch, :, row, :k].tolist()
        for head, its_keys, its_weights in zip(call.addresses(), keys, weights, strict=True):
            found[head] = [
                Looked(key, names[key] if key < len(names) else str(key), weight)
                for key, weight in zip(its_keys, its_weights, strict=True)
                if key >= 0
            ]
    return found


def _names(trace: Trace, call: Call, batch: int) -> list[str]:
    """What a call's keys read as: the trace's pieces where they are those of this stream and sample, else ids."""
    if call.key_ids is None:
        return trace.tokens if batch == 0 and not call.crosses else []
    ids = call.key_ids[batch].tolist()
    if trace.spell is not None:
        return trace.spell(ids)
    known = trace.pieces or []
    if (trace.token_ids or [])[: len(ids)] == ids and len(known) >= len(ids):
        return known
    return [f"‹{i}›" for i in ids]


def groups(trace: Trace, *, queries: slice | Sequence[int] = slice(None), batch: int = 0) -> ByHead[list[float]]:
    """Mean weight on every group of keys over some queries, a list a head; `Observables(key_groups=…)` measures it."""
    check_sample(trace, batch)
    found: ByHead[list[float]] = ByHead()
    for call in trace.calls:
        rows = call.observation.group_weight[batch]  # (Hq, Tq, G)
        chosen = rows[:, queries if isinstance(queries, slice) else list(queries)].mean(1)
        found.update(zip(call.addresses(), chosen.tolist(), strict=True))
    return found


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
        shares = [
            _share(seen.received[batch].double()[:, places])
            for seen, places in ((a, mine), (b, theirs))
            if _received(seen)
        ]
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


def _received(seen: Any) -> bool:
    return seen.received is not None  # raises with what to ask for where it was not measured


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


def to_pandas(trace: Trace, *, batch: int = 0) -> pandas.DataFrame:
    """`table` as a DataFrame, heads as its index."""
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_pandas: needs pandas, which is not installed; pip install pandas") from error
    rows = table(trace, batch=batch)
    return pandas.DataFrame(rows, columns=None if rows else ["head"]).set_index("head")


def to_xarray(trace: Trace) -> xarray.Dataset:
    """Every quantity with its dimensions named, one variable a quantity and layer: `entropy_L3` (batch, head, query)."""
    try:
        import xarray
    except ImportError as error:
        raise InputError("to_xarray: needs xarray, which is not installed; pip install xarray") from error
    names = {"B": "batch", "Hq": "head", "Tq": "query", "Tk": "key", "R": "cell", "k": "rank", "G": "group", "n": "row"}
    found = {}
    from clearhead.observables import Observation, measured

    for call in trace.calls:
        for name, x in call.observation.values.items():
            letters = measured(Observation)[name].shape.split() if name in measured(Observation) else []
            if len(letters) == x.ndim:
                # Dimensions of different layers or texts may differ in size, and of one quantity repeat: number those.
                dims = [
                    f"{names.get(letter, letter)}_{'' if letters.count(letter) == 1 else f'{n}_'}{x.shape[n]}"
                    for n, letter in enumerate(letters)
                ]
                run = f"_run{call.run}" if call.run else ""
                found[f"{name}_L{call.layer}{run}"] = (dims, x.detach().cpu().numpy())
    return xarray.Dataset(found)
