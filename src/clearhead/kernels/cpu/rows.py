"""Rows of numbers in and out of the caller's tensors: three dtypes, any strides, and queries turned on their side.

Inside, everything is float32. A strip holds its queries as columns, [d][lane], so that one register holds the same d of WIDTH
queries; `lay` and `lift` turn blocks of WIDTH x WIDTH numbers in registers.
"""

from typing import Any

from llvmlite import ir
from numba import float32, int64, types
from numba.extending import intrinsic

from clearhead.kernels.cpu.vector import (
    CONTRACT,
    I32,
    I64,
    LANES,
    WIDTH,
    Vector,
    _at,
    _spread,
    after,
    compiled,
    floats_at,
    halves_at,
    load_short,
    splat_short,
    store,
    sum_of,
)

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2  # how the dtype of a tensor is written in a call
SHORT = Vector(types.float32, WIDTH)


def widen(builder: Any, raw: Any, half: bool) -> Any:
    """16 bits as a float32, one number or a vector."""
    count = getattr(raw.type, "count", None)

    def of(kind: Any) -> Any:
        return kind if count is None else ir.VectorType(kind, count)

    if half:
        return builder.fpext(builder.bitcast(raw, of(ir.HalfType())), of(ir.FloatType()))
    wide = builder.zext(raw, of(I32))
    return builder.bitcast(builder.shl(wide, ir.Constant(of(I32), [16] * count if count else 16)), of(ir.FloatType()))


def _narrow(builder: Any, x: Any, half: bool) -> Any:
    """A float32 as 16 bits, rounded to the nearest, ties to even; one number or a vector."""
    count = getattr(x.type, "count", None)

    def of(kind: Any) -> Any:
        return kind if count is None else ir.VectorType(kind, count)

    def number(n: int) -> Any:
        return ir.Constant(of(I32), [n] * count if count else n)

    if half:
        return builder.bitcast(builder.fptrunc(x, of(ir.HalfType())), of(ir.IntType(16)))
    raw = builder.bitcast(x, of(I32))
    odd = builder.and_(builder.lshr(raw, number(16)), number(1))
    rounded = builder.lshr(builder.add(raw, builder.add(odd, number(0x7FFF))), number(16))
    quiet = builder.or_(builder.lshr(raw, number(16)), number(0x40))  # a NaN must not be rounded into infinity
    return builder.trunc(builder.select(builder.fcmp_unordered("uno", x, x), quiet, rounded), of(ir.IntType(16)))


def _reader(half: bool, vector: bool) -> Any:
    @intrinsic
    def read(typing, pointer, index):
        def emit(context, builder, sig, args):
            kind = ir.VectorType(ir.IntType(16), WIDTH) if vector else ir.IntType(16)
            return widen(builder, builder.load(_at(builder, *args, kind), align=2), half)

        return (SHORT if vector else types.float32)(pointer, types.int64), emit

    return read


def _writer(half: bool, vector: bool) -> Any:
    @intrinsic
    def write(typing, pointer, index, x):
        def emit(context, builder, sig, args):
            raw = _narrow(builder, args[2], half)
            builder.store(raw, _at(builder, args[0], args[1], raw.type), align=2)
            return context.get_dummy_value()

        return types.void(pointer, types.int64, SHORT if vector else types.float32), emit

    return write


read_bf16, read_fp16 = _reader(False, False), _reader(True, False)
read_bf16s, read_fp16s = _reader(False, True), _reader(True, True)
write_bf16, write_fp16 = _writer(False, False), _writer(True, False)
write_bf16s, write_fp16s = _writer(False, True), _writer(True, True)


@compiled
def number(address, dtype, index):
    """One number of a tensor, as float32."""
    if dtype == FLOAT32:
        return floats_at(address)[index]
    if dtype == BFLOAT16:
        return read_bf16(halves_at(address), index)
    return read_fp16(halves_at(address), index)


@compiled
def put_number(address, dtype, index, x):
    """Write one number to a tensor."""
    if dtype == FLOAT32:
        floats_at(address)[index] = x
    elif dtype == BFLOAT16:
        write_bf16(halves_at(address), index, x)
    else:
        write_fp16(halves_at(address), index, x)


@compiled
def read_row(address, dtype, index, step, count, target):
    """`count` numbers of a tensor, from `index` on and `step` apart, to target[0 … count)."""
    done = int64(0)
    if step == 1:
        whole = count // WIDTH * WIDTH
        if dtype == FLOAT32:
            for n in range(0, whole, WIDTH):
                store(target, n, load_short(floats_at(address), index + n))
        elif dtype == BFLOAT16:
            for n in range(0, whole, WIDTH):
                store(target, n, read_bf16s(halves_at(address), index + n))
        else:
            for n in range(0, whole, WIDTH):
                store(target, n, read_fp16s(halves_at(address), index + n))
        done = whole
    for n in range(done, count):
        target[n] = number(address, dtype, index + n * step)


@compiled
def write_row(address, dtype, index, count, source):
    """`count` numbers side by side from source to a tensor."""
    whole = count // WIDTH * WIDTH
    if dtype == FLOAT32:
        for n in range(0, whole, WIDTH):
            store(floats_at(address), index + n, load_short(source, n))
    elif dtype == BFLOAT16:
        for n in range(0, whole, WIDTH):
            write_bf16s(halves_at(address), index + n, load_short(source, n))
    else:
        for n in range(0, whole, WIDTH):
            write_fp16s(halves_at(address), index + n, load_short(source, n))
    for n in range(whole, count):
        put_number(address, dtype, index + n, source[n])


@compiled
def all_finite(rows, row, width, count):
    """Whether every number of some rows is finite."""
    zero = splat_short(float32(0.0))
    odd = zero
    for n in range(count):
        for d in range(0, width // WIDTH * WIDTH, WIDTH):
            x = load_short(rows, n * row + d)
            odd = odd + (x - x)
        for d in range(width // WIDTH * WIDTH, width):
            x = rows[n * row + d]
            odd = odd + splat_short(x - x)
    return sum_of(odd) == float32(0.0)


@intrinsic
def turn_block(typing, source, source_row, target, target_row, factor):
    """target[c][r] = factor · source[r][c] for r, c < WIDTH: log2(WIDTH) rounds in which pairs of rows swap halves."""

    def emit(context, builder, sig, args):
        source, source_row, target, target_row, factor = args
        kind = ir.VectorType(ir.FloatType(), WIDTH)
        scale = _spread(builder, factor, WIDTH)
        rows = [
            builder.fmul(
                builder.load(_at(builder, source, builder.mul(source_row, I64(r)), kind), align=4),
                scale,
                flags=CONTRACT,
            )
            for r in range(WIDTH)
        ]
        size = WIDTH // 2
        while size:
            low = [c if not c & size else WIDTH + (c ^ size) for c in range(WIDTH)]
            high = [c ^ size if not c & size else WIDTH + c for c in range(WIDTH)]
            low, high = (ir.Constant(ir.VectorType(I32, WIDTH), order) for order in (low, high))
            swapped = list(rows)
            for r in range(WIDTH):
                if not r & size:
                    swapped[r] = builder.shuffle_vector(rows[r], rows[r | size], low)
                    swapped[r | size] = builder.shuffle_vector(rows[r], rows[r | size], high)
            rows, size = swapped, size // 2
        for c in range(WIDTH):
            builder.store(rows[c], _at(builder, target, builder.mul(target_row, I64(c)), kind), align=4)
        return context.get_dummy_value()

    i = types.int64
    return types.void(source, i, target, i, types.float32), emit


@compiled
def lay(source, source_row, width, target, factor):
    """LANES rows of `width` numbers into columns, target[d][lane], times a factor."""
    whole = width // WIDTH * WIDTH
    for lane in range(0, LANES, WIDTH):
        for d in range(0, whole, WIDTH):
            turn_block(after(source, lane * source_row + d), source_row, after(target, d * LANES + lane), LANES, factor)
    for d in range(whole, width):
        for lane in range(LANES):
            target[d * LANES + lane] = source[lane * source_row + d] * factor


@compiled
def lift(source, width, target, target_row):
    """Columns source[d][lane] back into LANES rows of `width` numbers."""
    whole = width // WIDTH * WIDTH
    one = float32(1.0)
    for lane in range(0, LANES, WIDTH):
        for d in range(0, whole, WIDTH):
            turn_block(after(source, d * LANES + lane), LANES, after(target, lane * target_row + d), target_row, one)
    for d in range(whole, width):
        for lane in range(LANES):
            target[lane * target_row + d] = source[d * LANES + lane]
