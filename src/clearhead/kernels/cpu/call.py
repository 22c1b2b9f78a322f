"""One call as the kernels read it: an array of 64-bit integers, each with a name and a place.

Addresses, sizes, strides (in elements) and switches; the few numbers that are not integers stand as the bits of a float64.
Address 0 means "not given". Every stride of a dimension that broadcasts is 0, so nothing is ever expanded.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import count

import torch
from torch import Tensor

from clearhead.kernels.problem import Problem

_place: Iterator[int] = count()


def _one() -> int:
    return next(_place)


def _strided(dimensions: int) -> tuple[int, ...]:
    """An address and its strides."""
    return tuple(next(_place) for _ in range(1 + dimensions))


# Tensors of four dimensions: (b, h, t, d).
QUERY, QUERY_B, QUERY_H, QUERY_T, QUERY_D = _strided(4)
KEY, KEY_B, KEY_H, KEY_T, KEY_D = _strided(4)
VALUE, VALUE_B, VALUE_H, VALUE_T, VALUE_D = _strided(4)
OUT, OUT_B, OUT_H, OUT_T, OUT_D = _strided(4)  # written only where OUT_D is 1
LSE = _one()  # (B, Hq, Tq) contiguous float32
GRAD, GRAD_B, GRAD_H, GRAD_T, GRAD_D = _strided(4)  # of the output
GRAD_LSE, C = _one(), _one()  # (B, Hq, Tq) contiguous float32: dL, and room for dL − Σ_d dO·O
D_QUERY = _one()  # (B, Hq, Tq, D) contiguous, of the inputs' dtype
D_KEY, D_VALUE = _one(), _one()  # (B, Hk, parts, KEYS_PADDED, D or Dv rounded up to registers) float32
D_BIAS, D_BIAS_B, D_BIAS_H, D_BIAS_I, D_BIAS_J = _strided(4)  # float32
KEYS_PADDED = _one()  # Tk rounded up to tiles
# What gradients of measured numbers add to those of the output (see `kernels.terms`), if any of this is there.
TERMS, BELOW, SQUARE, AWAY = (_one() for _ in range(4))  # a switch; (B, Hq, Tq) contiguous float32
COLUMNS, ROW_COLUMNS = _one(), _one()  # how many; (B, Hq, Tq, COLUMNS) contiguous float32
KEY_COLUMNS, KEY_COLUMNS_B, KEY_COLUMNS_H = (_one() for _ in range(3))  # rows of keys, KEYS_PADDED of them a head
B, HQ, HK, TQ, TK, D, DV, GROUPS, DTYPE = (_one() for _ in range(9))
# The mask: see `masks.Plan`. Intervals and labels are int32.
LO, HI, INTERVAL_B = _one(), _one(), _one()
LABELS, QUERY_LABELS, QUERY_LABELS_N, QUERY_LABELS_B = (_one() for _ in range(4))
KEY_LABELS, KEY_LABELS_N, KEY_LABELS_B = _one(), _one(), _one()
DENSE, DENSE_B, DENSE_H, DENSE_I, DENSE_J = _strided(4)
BIAS, BIAS_B, BIAS_H, BIAS_I, BIAS_J = _strided(4)
BIAS_DTYPE, SLOPES, SINKS, OFFSET = (_one() for _ in range(4))
SCALE, SOFTCAP = _one(), _one()  # float64 bits; no softcap is 0.0
# How the work is cut, and the scratch memory of each worker.
TASKS, NEXT_TICKET, TICKETS, STRIPS_A_TASK, PARTS, SCRATCH, SCRATCH_SIZE = (_one() for _ in range(7))
FINISHED = _one()  # int64 of each head, 0 at first: how many of its parts are done, where they are to be merged
DECODED, CHUNK, DIRTY = _one(), _one(), _one()  # decoding: room for chunks, keys of one, whether a NaN came out
# What is observed, if anything is.
OBSERVING = _one()
K, TOP_KEYS, TOP_WEIGHTS, MAX_LOGIT, ENTROPY, VISIBLE = (_one() for _ in range(6))
SELF, PREVIOUS, FIRST, DISTANCE, SAME, AFTER_SAME, TOKENS, TOKENS_B = (_one() for _ in range(8))
POSITION, TOKENS_N, FIRST_KEY, SQUARES, HISTOGRAM, BINS = (_one() for _ in range(6))
GROUPS_N, KEY_GROUPS, KEY_GROUPS_B, QUERY_GROUPS, QUERY_GROUPS_B = (_one() for _ in range(5))
GROUP_WEIGHT, GROUP_K, GROUP_TOP_KEYS, GROUP_TOP_WEIGHTS, BY_GROUP_OUT = (_one() for _ in range(5))
NORMS, CONTRIBUTION_KEYS, CONTRIBUTIONS = (_one() for _ in range(3))
ROW_WEIGHTS, ROW_WEIGHTS_B, ROW_WEIGHTS_H, WEIGHTED, WEIGHTED_OUT = (_one() for _ in range(5))
CHANNELS, VIEWERS, VIEWERS_OUT, MAP_ROW_BOUNDS = (_one() for _ in range(4))
RECEIVED, RECEIVED_OUT, PADDED, PADDED_B, ROWS, ROW_COUNT, ROW_NUMBERS, LONGEST = (_one() for _ in range(8))
MAP_ROWS, MAP_COLUMNS, MAP_ROW, MAP_COLUMN, MAP_COLUMN_BOUNDS = (_one() for _ in range(5))
MAP_SUM, MAP_MAX, MAP_COUNT, MAP_MEAN_OUT, MAP_MAX_OUT = (_one() for _ in range(5))
FIELDS = _one()

NOTHING = bytes(8 * FIELDS)
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def float_bits(x: float) -> int:
    """A float64 as the integer with the same bits."""
    return int(struct.unpack("q", struct.pack("d", x))[0])


class Builder:
    """Collects one call in `numbers`, as kernels read it; holds on to everything whose address it has written down."""

    def __init__(self) -> None:
        self.numbers = array("q", NOTHING)
        self.held: list[object] = []

    def put(self, place: int, *values: int) -> None:
        """Numbers from a place on."""
        for n, value in enumerate(values, place):
            self.numbers[n] = value

    def address(self, place: int, x: Tensor | array[int]) -> None:
        """Where a contiguous tensor or array begins."""
        self.held.append(x)
        self.numbers[place] = x.data_ptr() if isinstance(x, Tensor) else x.buffer_info()[0]

    def counters(self, place: int, count: int) -> None:
        """So many counters that begin at 0."""
        self.address(place, array("q", bytes(8 * count)))

    def labels(self, place: int, step: int, x: Tensor) -> None:
        """Where a contiguous (B or 1, T) tensor begins, and its step from sample to sample, 0 where all share one."""
        self.address(place, x)
        self.numbers[step] = x.shape[1] if len(x) > 1 else 0

    def strided(self, place: int, x: Tensor) -> None:
        """Where a tensor of four dimensions begins, and its strides; 0 for dimensions of one entry, which broadcast."""
        self.address(place, x)
        for n, (size, step) in enumerate(zip(x.shape, x.stride(), strict=True), place + 1):
            self.numbers[n] = 0 if size == 1 else step


def describe(problem: Problem) -> Builder:
    """A call with its inputs, sizes, options and mask written down. The plan must be tightened."""
    p = problem
    builder = Builder()
    builder.strided(QUERY, p.query)
    builder.strided(KEY, p.key)
    builder.strided(VALUE, p.value)
    batch, hq, tq, d = p.query.shape
    _, hk, tk, dv = p.value.shape
    builder.put(B, batch, hq, hk, tq, tk, d, dv, p.groups, DTYPES[p.query.dtype])
    lo, hi = p.plan.once("int32", lambda: [x.to(torch.int32).contiguous() for x in (p.plan.lo, p.plan.hi)])
    builder.address(LO, lo)
    builder.address(HI, hi)
    builder.put(INTERVAL_B, tq if len(lo) > 1 else 0)
    if p.plan.query_labels is not None and p.plan.key_labels is not None:
        for labels, other, place, number in (
            (p.plan.query_labels, p.plan.key_labels, QUERY_LABELS, tq),
            (p.plan.key_labels, p.plan.query_labels, KEY_LABELS, tk),
        ):
            short = small_integers(labels, other)
            builder.address(place, short)
            builder.put(place + 1, short.shape[1] * number, number if short.shape[1] > 1 else 0)
        builder.put(LABELS, len(p.plan.query_labels))
    if p.plan.dense is not None:
        builder.strided(DENSE, p.plan.dense)
    if p.bias is not None:
        bias = p.bias if p.bias.dtype in DTYPES else p.bias.float()
        builder.strided(BIAS, bias)
        builder.put(BIAS_DTYPE, DTYPES[bias.dtype])
    for place, x in ((SLOPES, p.slopes), (SINKS, p.sinks)):
        if x is not None:
            builder.address(place, x.float().contiguous())
    builder.put(OFFSET, p.first_position, float_bits(p.scale), float_bits(p.softcap or 0.0))
    return builder


def small_integers(labels: Tensor, *others: Tensor) -> Tensor:
    """Labels as int32; where some of these or of the others do not fit they are numbered instead, equal ones equally."""
    every = (labels, *others)
    if all(x.numel() == 0 or (int(x.min()) >= 0 and int(x.max()) < 2**31) for x in every):
        return labels.to(torch.int32).contiguous()
    known = torch.unique(torch.cat([x.flatten() for x in every]))
    return torch.searchsorted(known, labels.contiguous()).to(torch.int32)
