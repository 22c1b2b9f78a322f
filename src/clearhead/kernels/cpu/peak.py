"""The most fused multiply-adds this machine does, on registers alone: the limit that stands beside measurements."""

from llvmlite import ir
from numba import float32, int64, types
from numba.extending import intrinsic

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.machine import CHAINS
from clearhead.kernels.cpu.vector import I64, WIDTH, _fma, _spread, after, floats_at


@intrinsic
def multiply_add(typing, times, x):
    """`times` rounds of CHAINS vector multiply-adds a → a · x + x; returns a number that depends on all of them."""

    def emit(context, builder, sig, args):
        times, x = args
        kind = ir.VectorType(ir.FloatType(), WIDTH)
        factor = _spread(builder, x, WIDTH)
        before, loop, done = builder.block, builder.append_basic_block("rounds"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        n, held = builder.phi(I64), [builder.phi(kind) for _ in range(CHAINS)]
        new = [_fma(builder, a, factor, factor) for a in held]
        following = builder.add(n, I64(1))
        builder.cbranch(builder.icmp_signed("<", following, times), loop, done)
        for chain, (phi, again) in enumerate(zip(held, new, strict=True)):
            phi.add_incoming(ir.Constant(kind, [float(chain)] * WIDTH), before)
            phi.add_incoming(again, loop)
        n.add_incoming(I64(0), before)
        n.add_incoming(following, loop)
        builder.position_at_end(done)
        total = new[0]
        for a in new[1:]:
            total = builder.fadd(total, a)
        return builder.extract_element(total, ir.IntType(32)(0))

    return types.float32(types.int64, types.float32), emit


def work(first, last, c):
    """Each worker does c[TICKETS] rounds and leaves a number behind, so that none of it can be left out."""
    for worker in range(first, last):
        out = after(floats_at(c[at.SCRATCH]), worker * c[at.SCRATCH_SIZE])
        out[0] = multiply_add(int64(c[at.TICKETS]), float32(0.5))
