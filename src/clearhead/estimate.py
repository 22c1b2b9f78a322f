"""`estimate`: what looking will cost here, before it is done, and what the T×T weights would take."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.arguments import CheckedCall, checked_call
from clearhead.attention import observe
from clearhead.biases import ALiBi
from clearhead.errors import ArgumentError, message
from clearhead.kernels import select
from clearhead.kernels.problem import Problem
from clearhead.masks import Causal, Dense, Mask
from clearhead.measuring import distance_bins, query_offset
from clearhead.observables import Observables, Observation, measured

SIZES = (512, 2048)  # tokens of the two calls that are timed
HEADS = 4  # query heads, at least, that give every thread something to do
TRIES = 3


@dataclass(frozen=True)
class Estimate:
    """What `estimate` expects of looking at some attention calls; printed, it is one line."""

    seconds: float  # time to compute the output and measure everything
    bytes: int  # of the output and everything measured, which stays; tens of MB of scratch memory come on top
    eager_bytes: int  # of all T×T weights of every head, in query's dtype, as a model that returns them keeps them
    pairs: int  # query-key pairs that are met, over all heads and calls
    impl: str
    sizes: tuple[int, int, int, int]  # B, Hq, Tq, Tk of one call
    layers: int

    def __str__(self) -> str:
        B, Hq, Tq, Tk = self.sizes
        tokens = f"{Tk:,} tokens" if Tq == Tk else f"{Tq:,} queries and {Tk:,} keys"
        parts = [f"{n:,} {one if n == 1 else many}" for n, one, many in (
            (self.layers, "layer", "layers"), (Hq, "head", "heads"), (B, "text", "texts"),
        ) if (one, n) != ("text", 1)]  # fmt: skip
        return (
            f"looking takes about {_seconds(self.seconds)} and keeps {_bytes(self.bytes)} "
            f"({', '.join(parts)}, {tokens}, {self.impl}); the T×T weights would take {_bytes(self.eager_bytes)}"
        )


def estimate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    observables: Observables | None = None,
    mask: Mask | Tensor | None = None,
    bias: Tensor | ALiBi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: str = "auto",
    layers: int = 1,
) -> Estimate:
    """How long `observe` would take for these arguments on this machine, and how much memory what it returns.

    >>> q = torch.zeros(()).expand(1, 32, 8192, 128)    # sizes alone: nothing of this size is allocated
    >>> expected = estimate(q, q, q, mask=Causal(), layers=32)
    >>> expected.eager_bytes == 32 * 32 * 8192**2 * 4, expected.seconds > 0
    (True, True)

    Arguments as for `observe`, of which only shapes, dtypes, devices and the mask are read; and `layers`, how many such calls
    there will be.

    Returns:
        An `Estimate`; `print` shows it in one line.

    The first time, two small causal calls of the same widths, dtype and observables (512 and 2048 tokens) are timed, which
    takes about as long as they do; the result is kept for the process. Time is then modelled as a·rows + b·pairs, pairs being
    those within the mask's intervals. On an idle machine it is within a quarter of what is measured for texts of 1,000 tokens
    and more; twice off is possible for a few queries, for labels or bool tensors that hide much inside their intervals, and
    wherever something else is running.
    """
    if isinstance(layers, bool) or layers < 1:
        raise ArgumentError(
            message("layers", expected="an integer >= 1", got=repr(layers), remedy="One attention call counts as one.")
        )
    observables = Observables() if observables is None else observables
    with torch.no_grad():
        call = checked_call(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
        p = call.problem.tightened()
        name = select.choose(impl, p)
        rates = _rates(p, observables, name)
    B, Hq, Tq, _ = p.query.shape
    Tk = p.key.shape[2]
    pairs = int((p.plan.hi - p.plan.lo).clamp(min=0).sum()) * Hq * (B // max(1, len(p.plan.lo)))
    return Estimate(
        seconds=layers * (rates.a_row * B * Hq * Tq + rates.a_pair * pairs),
        bytes=layers * _kept_bytes(call, observables, rates),
        eager_bytes=layers * B * Hq * Tq * Tk * p.query.dtype.itemsize,
        pairs=layers * pairs,
        impl=name,
        sizes=(B, Hq, Tq, Tk),
        layers=layers,
    )


@dataclass(frozen=True)
class _Rates:
    """Seconds a row and a pair, and the shape and size of a number of everything measured in the smaller call."""

    a_row: float
    a_pair: float
    shapes: dict[str, tuple[tuple[int, ...], int]]


_known: dict[tuple[object, ...], _Rates] = {}


def _rates(p: Problem, observables: Observables, name: str) -> _Rates:
    """Measured once for each kind of call."""
    kind = (
        name, p.query.device, p.query.dtype, p.query.shape[3], p.value.shape[3], p.groups, p.softcap is None,
        p.bias is None, p.slopes is None, p.sinks is None, p.plan.dense is None, torch.get_num_threads(),
        *(_switch(getattr(observables, field.name)) for field in dataclasses.fields(observables)),
    )  # fmt: skip
    if kind not in _known:
        _known[kind] = _measure(p, observables, name)
    return _known[kind]


def _switch(value: object) -> object:
    """What an observable is set to, as far as time goes."""
    if isinstance(value, Tensor):
        return "given"
    return len(value) if isinstance(value, tuple) else value


def _measure(p: Problem, observables: Observables, name: str) -> _Rates:
    """Time two small calls, and solve for the cost of a row and of a pair."""
    seconds: list[float] = []
    shapes: dict[str, tuple[tuple[int, ...], int]] = {}
    for T in SIZES:
        args, options = _small(p, observables, T)
        best = float("inf")
        for n in range(1 + TRIES):
            _wait(p.query.device)
            start = time.perf_counter()
            seen = observe(*args, **options, impl=name)  # type: ignore[arg-type]
            _wait(p.query.device)
            if n:  # the first one compiles, loads and allocates
                best = min(best, time.perf_counter() - start)
        seconds.append(best)
        shapes = shapes or {n: (tuple(x.shape), x.dtype.itemsize) for n, x in seen.values.items()}
    heads = p.groups * _key_heads(p)
    (rows, few), (more_rows, many) = ((heads * T, heads * T * (T + 1) // 2) for T in SIZES)
    a_pair = max(0.0, (seconds[1] * rows - seconds[0] * more_rows) / (many * rows - few * more_rows))
    if not a_pair:  # too noisy to tell apart: all of it counts by pairs
        return _Rates(0.0, seconds[1] / many, shapes)
    return _Rates(max(0.0, (seconds[1] - a_pair * many) / more_rows), a_pair, shapes)


def _key_heads(p: Problem) -> int:
    return max(1, HEADS // max(1, p.groups))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _small(p: Problem, observables: Observables, T: int) -> tuple[tuple[Tensor, ...], dict[str, object]]:
    """A causal call over T tokens and a few heads, of the same kind."""
    random = torch.Generator().manual_seed(0)
    Hk = _key_heads(p)
    Hq = Hk * p.groups

    def normal(heads: int, width: int) -> Tensor:
        return torch.randn(1, heads, T, width, generator=random).to(p.query)

    mask: Mask = Causal()
    if p.plan.dense is not None:  # with holes, so that it does not pass for intervals
        mask = Dense((torch.rand(T, T, generator=random) > 0.05).tril().to(p.query.device))
    bias: Tensor | ALiBi | None = None
    if p.slopes is not None:
        bias = ALiBi(p.slopes[:1].expand(Hq))
    elif p.bias is not None:
        bias = torch.zeros(T if p.bias.shape[2] > 1 else 1, T if p.bias.shape[3] > 1 else 1).to(p.bias)
    options: dict[str, object] = {
        "mask": mask,
        "bias": bias,
        "scale": p.scale,
        "softcap": p.softcap,
        "sinks": None if p.sinks is None else p.sinks.new_zeros(Hq),
        "observables": _cut(observables, Hq, p.value.shape[3], T),
    }
    return (normal(Hq, p.query.shape[3]), normal(Hk, p.key.shape[3]), normal(Hk, p.value.shape[3])), options


def _cut(observables: Observables, Hq: int, Dv: int, T: int) -> Observables:
    """The same for T tokens of one sample and Hq heads: as many groups, as wide a projection, any tokens."""
    j = torch.arange(T)

    def groups(ids: Tensor | None) -> Tensor | None:
        return None if ids is None else j % (1 + max(0, int(ids.max()) if ids.numel() else 0))

    projection = observables.output_weight
    return dataclasses.replace(
        observables,
        rows=tuple(n % T for n in range(len(observables.rows))),
        token_ids=None if observables.token_ids is None else j % 100,
        key_groups=groups(observables.key_groups),
        query_groups=groups(observables.query_groups),
        row_weights=None if observables.row_weights is None else torch.ones(T),
        output_weight=None if projection is None else projection.new_zeros(len(projection), Hq * Dv),
        first_key=0,
        first_query=None,
    )


def _kept_bytes(call: CheckedCall, observables: Observables, rates: _Rates) -> int:
    """Bytes of the output and everything measured: shapes are those of the small call with its sizes exchanged."""
    p = call.problem
    B, Hq, Tq, _ = p.query.shape
    Tk, Dv = p.value.shape[2:]
    bins = distance_bins(query_offset(observables, Tq, Tk), Tq, Tk)
    sizes = {"B": B, "Hq": Hq, "Tq": Tq, "Tk": Tk, "Dv": Dv, "bins": bins}
    known = measured(Observation)
    total = 0
    for name, (shape, size) in rates.shapes.items():
        letters = known[name].shape.split() if name in known else []
        if letters[-2:] == ["R", "R"]:
            letters[-2:] = [str(min(T, observables.map)) for T in (Tq, Tk)]
        for letter, small in zip(letters or map(str, shape), shape, strict=True):
            size *= sizes.get(letter, int(letter) if letter.isdecimal() else small)
        total += size
    return total


def _seconds(x: float) -> str:
    """A time as people say it.

    >>> _seconds(0.0042), _seconds(3.21), _seconds(75.0)
    ('4.2 ms', '3.2 s', '1 min 15 s')
    """
    if x < 1:
        return f"{1000 * x:.2g} ms" if x < 0.1 else f"{1000 * x:.0f} ms"
    return f"{x:.1f} s" if x < 60 else f"{int(x) // 60} min {int(x) % 60} s"


def _bytes(n: int) -> str:
    """A size as people say it, in powers of 1000.

    >>> _bytes(950), _bytes(137_438_953_472)
    ('950 B', '137 GB')
    """
    size, unit = float(n), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if size < 999.5 or unit == "PB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 10 or unit == "B" else f"{size:.1f} {unit}"
