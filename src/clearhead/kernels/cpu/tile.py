"""The micro-kernels: products of small tiles that stay in registers from the first multiplication to the last.

    C[r, :] (+)= Σ_n A[r, n] · B[n, :]          r < ROWS, C's and B's rows being one or more registers wide

Each step n loads a row of B once, spreads ROWS numbers of A over all lanes, and does ROWS · VECTORS fused multiply-adds on
accumulators that never leave the registers. A plain Numba loop stores and reloads its accumulators, and reaches a fraction of
this speed: these few lines of LLVM IR are the part worth writing by hand.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from clearhead.kernels.cpu.machine import shape
from clearhead.kernels.cpu.rows import FLOAT16, FLOAT32, widen
from clearhead.kernels.cpu.vector import I64, WIDTH, _at, _fma, _spread, ask

ROWS = shape().tile_rows


def row_of(builder: Any, pointer: Any, index: Any, dtype: int) -> Any:
    """One register of numbers from pointer[index] on, 16-bit ones widened to float32."""
    if dtype != FLOAT32:
        half = builder.load(_at(builder, pointer, index, ir.VectorType(ir.IntType(16), WIDTH)), align=2)
        return widen(builder, half, dtype == FLOAT16)
    return builder.load(_at(builder, pointer, index, ir.VectorType(ir.FloatType(), WIDTH)), align=4)


def vectors_a_line(dtype: int) -> int:
    """How many registers a cache line of 64 bytes fills."""
    return 64 // (WIDTH * (4 if dtype == FLOAT32 else 2))


def product(
    vectors: int,
    *,
    rows: int = ROWS,
    row_step: int | None = None,
    step: int | None = None,
    add: bool = False,
    of_b: int = FLOAT32,
    ahead: int = 0,
) -> Any:
    """A micro-kernel for B and C of `vectors` registers a row.

    `row_step`, `step`: how far apart A's rows, and its steps along n, lie, where that is known now; else given on each call.
    `add`: C is added to rather than overwritten. `of_b`: the dtype of B's numbers. `ahead`: B's row this many steps on is asked
    for in each step, so that it is there when its turn comes; 0: nothing is.
    """

    @intrinsic
    def tile(typing, a, a_row, a_step, b, b_step, n, c, c_row):
        def emit(context, builder, sig, args):
            a, a_row, a_step, b, b_step, n, c, c_row = args
            a_row, a_step = (
                given if known is None else I64(known) for given, known in ((a_row, row_step), (a_step, step))
            )
            kind = ir.VectorType(ir.FloatType(), WIDTH)
            rows_of_a = [builder.gep(a, [builder.mul(a_row, I64(r))]) for r in range(rows)]
            cells = [
                _at(builder, c, builder.add(builder.mul(c_row, I64(r)), I64(v * WIDTH)), kind)
                for r in range(rows)
                for v in range(vectors)
            ]
            start = [ir.Constant(kind, [0.0] * WIDTH) for _ in cells]
            before, loop, done = builder.block, builder.append_basic_block("steps"), builder.append_basic_block("done")
            builder.cbranch(builder.icmp_signed(">", n, I64(0)), loop, done)
            builder.position_at_end(loop)
            index = builder.phi(I64)
            held = [builder.phi(kind) for _ in cells]
            b_at = builder.mul(index, b_step)
            row_of_b = [row_of(builder, b, builder.add(b_at, I64(v * WIDTH)), of_b) for v in range(vectors)]
            if ahead:
                later = builder.mul(builder.add(index, I64(ahead)), b_step)
                for v in range(0, vectors, vectors_a_line(of_b)):
                    ask(builder, builder.gep(b, [builder.add(later, I64(v * WIDTH))]))
            a_at = builder.mul(index, a_step)
            new = []
            for r in range(rows):
                x = _spread(builder, builder.load(builder.gep(rows_of_a[r], [a_at])), WIDTH)
                new += [_fma(builder, x, row_of_b[v], held[r * vectors + v]) for v in range(vectors)]
            following = builder.add(index, I64(1))
            builder.cbranch(builder.icmp_signed("<", following, n), loop, done)
            for phi, first, again in ((index, I64(0), following), *zip(held, start, new, strict=True)):
                phi.add_incoming(first, before)
                phi.add_incoming(again, loop)
            builder.position_at_end(done)
            results = []
            for first, last in zip(start, new, strict=True):
                out = builder.phi(kind)
                out.add_incoming(first, before)
                out.add_incoming(last, loop)
                results.append(out)
            for cell, out in zip(cells, results, strict=True):
                # Added at the end: rounding errors grow with the number of terms in a row, which is that of one call then.
                builder.store(builder.fadd(builder.load(cell, align=4), out) if add else out, cell, align=4)
            return context.get_dummy_value()

        i = types.int64
        return types.void(a, i, i, b, i, i, c, i), emit

    return tile
