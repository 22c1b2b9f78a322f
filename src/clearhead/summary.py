"""A trace in tables: a row a head, what a token looks at, how much goes to each group; as pandas and xarray have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from clearhead.addresses import ByHead
from clearhead.errors import InputError
from clearhead.observables import Observation, measured
from clearhead.trace import Call, Trace, check_sample

if TYPE_CHECKING:
    import pandas
    import xarray

MEANS = ("entropy", "entropy_share", "max_weight", "first_weight", "previous_weight", "self_weight", "distance", "sink")


def table(trace: Trace, *, batch: int = 0) -> list[dict[str, Any]]:
    """A row a head: address, module, the role it earns on this text with its score and null, and means over the queries."""
    from clearhead.roles import label, roles

    check_sample(trace, batch)
    scores = roles(trace, batch=batch)
    rows = []
    for call in trace.calls:
        means = {name: call.observation.mean(name)[batch] for name in MEANS if hasattr(call.observation, name)}
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
    known, found = measured(Observation), {}
    for call in trace.calls:
        for name, x in call.observation.values.items():
            letters = known[name].shape.split() if name in known else []
            if len(letters) == x.ndim:
                # Dimensions of different layers or texts may differ in size, and of one quantity repeat: number those.
                dims = [
                    f"{names.get(letter, letter)}_{'' if letters.count(letter) == 1 else f'{n}_'}{x.shape[n]}"
                    for n, letter in enumerate(letters)
                ]
                run = f"_run{call.run}" if call.run else ""
                found[f"{name}_L{call.layer}{run}"] = (dims, x.detach().cpu().numpy())
    return xarray.Dataset(found)
