"""Vectors as values in Numba code: `p = exp2(load(s, j) - top)` is LANES numbers wide.

Numba knows scalars and arrays; LLVM knows vectors of any length and cuts them into the machine's registers. This file
joins the two: a Numba type for an LLVM vector, with operators, and a handful of functions. Everything here is one or two
instructions; nothing allocates, raises or calls out.

Numbers obey IEEE: no flag lets LLVM assume that NaN or infinity cannot occur. `contract` lets it fuse a product and a sum.
"""
# No `from __future__ import annotations`: Numba reads nothing from annotations, and intrinsics have none.

import operator
from typing import Any

import numba
from llvmlite import ir
from numba import types, uint64
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from clearhead.kernels.cpu.machine import shape

LANES, WIDTH = shape().lanes, shape().width
SPLIT = shape().vectors // 2 * WIDTH  # the upper lanes begin here, and can be computed without the lower ones
# How functions here become code: no exceptions for division, and no entry from Python, which nobody uses and which takes longer
# to compile than the function. Kernels are entered by the C function that `lower` adds.
compiled = numba.njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)

ALL_LANES = uint64((1 << LANES) - 1)
CONTRACT = ("contract",)
I32, I64 = ir.IntType(32), ir.IntType(64)


class Vector(types.Type):
    """`count` numbers of one scalar type, held in registers."""

    def __init__(self, scalar: Any, count: int) -> None:
        self.scalar, self.count = scalar, count
        super().__init__(name=f"{scalar} x {count}")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        element = ir.IntType(1) if kind.scalar is types.boolean else manager[kind.scalar].get_value_type()
        super().__init__(manager, kind, ir.VectorType(element, kind.count))


FLOATS, INTS = Vector(types.float32, LANES), Vector(types.int32, LANES)


# ------------------------------------------------------------------------------------------------------------ operators


def _binary(op: Any, on: Any, emit: Any, result: Any = None) -> None:
    """Let Numba read `a op b` for two vectors of `on` scalars; `result` is the scalar of what comes out."""

    @infer_global(op)
    class _Typing(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and args[0] == args[1] and isinstance(args[0], Vector) and args[0].scalar is on:
                out = args[0] if result is None else Vector(result, args[0].count)
                return signature(out, *args)
            return None

    for count in {LANES, WIDTH}:
        kind = Vector(on, count)
        lower_builtin(op, kind, kind)(lambda context, builder, sig, args: emit(builder, *args))


for _op, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"), (operator.truediv, "fdiv")):
    _binary(_op, types.float32, lambda b, x, y, _n=_name: getattr(b, _n)(x, y, flags=CONTRACT))
for _op, _name in ((operator.add, "add"), (operator.sub, "sub"), (operator.lshift, "shl"), (operator.rshift, "ashr")):
    _binary(_op, types.int32, lambda b, x, y, _n=_name: getattr(b, _n)(x, y))
for _op, _sign in (
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
):
    _binary(_op, types.float32, lambda b, x, y, _s=_sign: b.fcmp_ordered(_s, x, y), types.boolean)
    _binary(_op, types.int32, lambda b, x, y, _s=_sign: b.icmp_signed(_s, x, y), types.boolean)
_binary(operator.and_, types.boolean, lambda b, x, y: b.and_(x, y))
_binary(operator.or_, types.boolean, lambda b, x, y: b.or_(x, y))
_binary(operator.and_, types.int32, lambda b, x, y: b.and_(x, y))
_binary(operator.or_, types.int32, lambda b, x, y: b.or_(x, y))


# ------------------------------------------------------------------------------------------------------ making and moving


def _spread(builder: Any, x: Any, count: int) -> Any:
    kind = ir.VectorType(x.type, count)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), x, I32(0))
    return builder.shuffle_vector(
        one, ir.Constant(kind, ir.Undefined), ir.Constant(ir.VectorType(I32, count), [0] * count)
    )


def _at(builder: Any, pointer: Any, index: Any, kind: Any) -> Any:
    return builder.bitcast(builder.gep(pointer, [index]), ir.PointerType(kind))


def _loader(out: Vector) -> Any:
    @intrinsic
    def load(typing, pointer, index):
        """The vector that begins at pointer[index]."""

        def emit(context, builder, sig, args):
            return builder.load(_at(builder, *args, context.get_value_type(out)), align=4)

        return out(pointer, types.int64), emit

    return load


load, load_int, load_short = _loader(FLOATS), _loader(INTS), _loader(Vector(types.float32, WIDTH))


@intrinsic
def store(typing, pointer, index, x):
    """Write a vector to pointer[index] and on."""

    def emit(context, builder, sig, args):
        builder.store(args[2], _at(builder, args[0], args[1], args[2].type), align=4)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, x), emit


def _splatter(out: Vector) -> Any:
    @intrinsic
    def splat(typing, x):
        """The same number in every lane."""
        return out(out.scalar), lambda context, builder, sig, args: _spread(builder, args[0], out.count)

    return splat


splat, splat_int, splat_short = _splatter(FLOATS), _splatter(INTS), _splatter(Vector(types.float32, WIDTH))


@intrinsic
def lane_numbers(typing):
    """0, 1, … LANES − 1."""
    numbers = ir.Constant(ir.VectorType(I32, LANES), list(range(LANES)))
    return INTS(), lambda context, builder, sig, args: numbers


@intrinsic
def fma(typing, a, b, c):
    """a · b + c, rounded once."""

    def emit(context, builder, sig, args):
        return _fma(builder, *args)

    return c(a, b, c), emit


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    kind = c.type
    name = f"llvm.fma.v{kind.count}f32"
    return builder.call(
        cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name), [a, b, c]
    )


@intrinsic
def larger(typing, a, b):
    """a where a > b, else b: one instruction; a NaN in either gives b."""

    def emit(context, builder, sig, args):
        compare = builder.icmp_signed if a.scalar is types.int32 else builder.fcmp_ordered
        return builder.select(compare(">", *args), *args)

    return a(a, b), emit


@intrinsic
def smaller(typing, a, b):
    """a where a < b, else b."""
    return a(a, b), lambda context, builder, sig, args: builder.select(builder.fcmp_ordered("<", *args), *args)


@intrinsic
def where(typing, mask, a, b):
    """a where the mask holds, else b."""
    return a(mask, a, b), lambda context, builder, sig, args: builder.select(*args)


@intrinsic
def bits(typing, x):
    """The same bits read as integers (of floats), or as floats (of integers)."""
    out = Vector(types.int32 if x.scalar is types.float32 else types.float32, x.count)
    return out(x), lambda context, builder, sig, args: builder.bitcast(args[0], context.get_value_type(out))


@intrinsic
def to_floats(typing, x):
    """Integers as floats."""
    out = Vector(types.float32, x.count)
    return out(x), lambda context, builder, sig, args: builder.sitofp(args[0], context.get_value_type(out))


@intrinsic
def lanes_set(typing, mask):
    """A mask as a number: bit n is lane n."""

    def emit(context, builder, sig, args):
        return builder.zext(builder.bitcast(args[0], ir.IntType(mask.count)), I64)

    return types.uint64(mask), emit


@intrinsic
def lowest_bit(typing, x):
    """The place of the lowest set bit of a number that is not 0."""

    def emit(context, builder, sig, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit


@intrinsic
def count_bits(typing, x):
    """How many bits of a number are set."""
    return types.int64(types.uint64), lambda context, builder, sig, args: builder.ctpop(args[0])


def _folded(builder: Any, v: Any, join: Any) -> Any:
    """One number of all the lanes, in a fixed order: halves on halves."""
    n = v.type.count
    while n > 1 and n % 2 == 0:
        n //= 2
        v = join(*(_picked(builder, v, v, list(range(start, start + n))) for start in (0, n)))
    total = builder.extract_element(v, I32(0))
    for lane in range(1, n):
        total = join(total, builder.extract_element(v, I32(lane)))
    return total


@intrinsic
def sum_of(typing, x):
    """The sum over the lanes, in a fixed order: halves on halves."""
    return types.float32(x), lambda context, builder, sig, args: _folded(builder, args[0], builder.fadd)


def _picked(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(order)), order))


def ask(builder: Any, place: Any) -> None:
    """Code that asks for the cache line at a pointer, to read it soon from the second-level cache."""
    place = builder.bitcast(place, ir.PointerType(ir.IntType(8)))
    kind = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
    call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(call, [place, I32(0), I32(2), I32(1)])  # read, second level, data


@intrinsic
def fetch(typing, address):
    """Ask for the cache line at an address, which will be read soon; one that is not there does no harm."""

    def emit(context, builder, sig, args):
        ask(builder, builder.inttoptr(args[0], ir.PointerType(ir.IntType(8))))
        return context.get_dummy_value()

    return types.void(types.int64), emit


def row_sums(builder: Any, vectors: list[Any]) -> Any:
    """WIDTH vectors of WIDTH numbers into the vector of their sums.

    Two vectors become one by adding their halves, side by side; after log2(WIDTH) rounds one vector holds every sum.
    """
    piece = WIDTH  # how many numbers of a row a vector still holds
    while piece > 1:
        half = piece // 2
        low = [source + n for source in (0, WIDTH) for at in range(0, WIDTH, piece) for n in range(at, at + half)]
        high = [n + half for n in low]
        vectors = [
            builder.fadd(_picked(builder, a, b, low), _picked(builder, a, b, high))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]
        piece = half
    return vectors[0]


@intrinsic
def max_of(typing, x):
    """The largest lane; a NaN may be passed over."""

    def emit(context, builder, sig, args):
        return _folded(builder, args[0], lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return types.float32(x), emit


@intrinsic
def first_of(typing, x):
    """The number in lane 0."""
    return types.float32(x), lambda context, builder, sig, args: builder.extract_element(args[0], I32(0))


@intrinsic
def bits_of(typing, x):
    """The bits of one float as an integer: in the order of the numbers from 0 up, with −0.0 below them."""
    return types.int32(types.float32), lambda context, builder, sig, args: builder.bitcast(args[0], I32)


@intrinsic
def add_row_sums(typing, rows, factor, target):
    """target[n] += Σ_lane factor[lane] · rows[n][lane] for n < WIDTH, the target in float64."""

    def emit(context, builder, sig, args):
        rows, factor, target = args
        kind = ir.VectorType(ir.FloatType(), WIDTH)

        pieces = range(0, LANES, WIDTH)
        factors = [_picked(builder, factor, factor, list(range(start, start + WIDTH))) for start in pieces]
        vectors = []
        for n in range(WIDTH):
            sum_ = ir.Constant(kind, [0.0] * WIDTH)
            for start, f in zip(pieces, factors, strict=True):
                x = builder.load(_at(builder, rows, I64(n * LANES + start), kind), align=4)
                sum_ = _fma(builder, x, f, sum_)
            vectors.append(sum_)
        sums = row_sums(builder, vectors)
        wide = ir.VectorType(ir.DoubleType(), WIDTH)
        place = _at(builder, target, I64(0), wide)
        builder.store(builder.fadd(builder.load(place, align=8), builder.fpext(sums, wide)), place, align=8)
        return context.get_dummy_value()

    return types.void(rows, factor, target), emit


# ---------------------------------------------------------------------------------------------------- pointers and atoms


def _pointer_to(scalar: Any) -> Any:
    @intrinsic
    def pointer(typing, address):
        """An address as a pointer."""
        out = types.CPointer(scalar)
        return out(types.int64), lambda context, builder, sig, args: builder.inttoptr(
            args[0], context.get_value_type(out)
        )

    return pointer


floats_at, ints_at, longs_at, doubles_at, halves_at, bytes_at = (
    _pointer_to(s) for s in (types.float32, types.int32, types.int64, types.float64, types.uint16, types.uint8)
)


@intrinsic
def after(typing, pointer, count):
    """The pointer `count` elements on."""
    return pointer(pointer, types.int64), lambda context, builder, sig, args: builder.gep(args[0], [args[1]])


@intrinsic
def float_from_bits(typing, x):
    """A float64 from its bits, as float32."""

    def emit(context, builder, sig, args):
        return builder.fptrunc(builder.bitcast(args[0], ir.DoubleType()), ir.FloatType())

    return types.float32(types.int64), emit


@intrinsic
def take_ticket(typing, counter):
    """The number at the pointer, which is one higher from then on; every caller, on any thread, gets its own.

    What a thread wrote before is there for whoever gets a later number.
    """

    def emit(context, builder, sig, args):
        return builder.atomic_rmw("add", args[0], I64(1), "acq_rel")

    return types.int64(counter), emit


def _pointer_as(scalar: Any) -> Any:
    @intrinsic
    def reread(typing, pointer):
        """The same place, read as numbers of another kind."""
        out = types.CPointer(scalar)
        return out(pointer), lambda context, builder, sig, args: builder.bitcast(args[0], context.get_value_type(out))

    return reread


as_ints, as_longs = _pointer_as(types.int32), _pointer_as(types.int64)
