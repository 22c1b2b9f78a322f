"""Attention of few queries to many keys: each number of K and V is read once, and reading is what takes the time.

A strip would leave most lanes empty here, so lanes run along the width of a head instead. The rows of a task are the queries of
all heads that share a key head; together they meet a tile of keys:

    s[row][key]  = Q · Kᵀ          dot products, WIDTH of them at once, each in a register until it is summed up
    s            = 2^(logits − m)  a row at a time
    o[row][:]    = o · 2^(m_old − m) + s · V

16-bit keys and values are widened in registers. What is read next is asked for while arithmetic goes on. Where there are few
heads, keys are cut into chunks, one task each, and merged by their log-sum-exps in the order of the keys.
"""

from typing import Any

from llvmlite import ir
from numba import float32, int64, types
from numba.extending import intrinsic

from clearhead.kernels.cpu import call as at
from clearhead.kernels.cpu.logits import HIDDEN
from clearhead.kernels.cpu.machine import BLOCK
from clearhead.kernels.cpu.powers import LN_2, LOG2_E, exp2, log2, tanh
from clearhead.kernels.cpu.rows import BFLOAT16, FLOAT16, FLOAT32, number, read_row, write_row
from clearhead.kernels.cpu.tasks import handed_out, was_last
from clearhead.kernels.cpu.tile import product, row_of, vectors_a_line
from clearhead.kernels.cpu.vector import (
    I64,
    LANES,
    WIDTH,
    _at,
    _fma,
    after,
    ask,
    bytes_at,
    compiled,
    fetch,
    first_of,
    float_from_bits,
    floats_at,
    halves_at,
    ints_at,
    larger,
    load,
    load_short,
    max_of,
    row_sums,
    splat,
    splat_short,
    store,
    sum_of,
)

AHEAD = 32  # keys from now, whose numbers are asked for already
PAD = WIDTH  # the last tile may begin before its block


def dots(rows: int, dtype: int) -> Any:
    """A micro-kernel: s[r · s_row + n] = Σ_d q[r][d] · k[n][d] for r < rows and n < WIDTH / rows; D is whole registers."""
    keys = WIDTH // rows

    @intrinsic
    def tile(typing, q, k, k_row, width, s, s_row):
        def emit(context, builder, sig, args):
            q, k, k_row, width, s, s_row = args
            kind = ir.VectorType(ir.FloatType(), WIDTH)
            rows_of_k = [builder.gep(k, [builder.mul(k_row, I64(n))]) for n in range(keys)]
            before, loop, done = builder.block, builder.append_basic_block("chunks"), builder.append_basic_block("done")
            builder.branch(loop)
            builder.position_at_end(loop)
            d = builder.phi(I64)
            held = [builder.phi(kind) for _ in range(WIDTH)]
            of_q = [
                builder.load(_at(builder, q, builder.add(d, builder.mul(width, I64(r))), kind), align=4)
                for r in range(rows)
            ]
            of_k = [row_of(builder, row, d, dtype) for row in rows_of_k]
            if rows > 1:
                ask_ahead(builder, k, keys, d, k_row, dtype)
            new = [_fma(builder, of_q[r], of_k[n], held[r * keys + n]) for r in range(rows) for n in range(keys)]
            following = builder.add(d, I64(WIDTH))
            builder.cbranch(builder.icmp_signed("<", following, width), loop, done)
            for phi, first, again in (
                (d, I64(0), following),
                *((phi, ir.Constant(kind, [0.0] * WIDTH), x) for phi, x in zip(held, new, strict=True)),
            ):
                phi.add_incoming(first, before)
                phi.add_incoming(again, loop)
            builder.position_at_end(done)
            sums = row_sums(builder, new)
            for r in range(rows):
                order = ir.Constant(ir.VectorType(ir.IntType(32), keys), list(range(r * keys, (r + 1) * keys)))
                part = builder.shuffle_vector(sums, sums, order)
                builder.store(part, _at(builder, s, builder.mul(s_row, I64(r)), part.type), align=4)
            return context.get_dummy_value()

        i = types.int64
        return types.void(q, k, i, i, s, i), emit

    return tile


def ask_ahead(builder: Any, k: Any, keys: int, d: Any, k_row: Any, dtype: int) -> None:
    """Ask for the cache lines at d of the keys AHEAD from now, each once: chunks that share a line take turns at the keys."""
    chunks = vectors_a_line(dtype)
    turn = builder.and_(builder.lshr(d, I64(WIDTH.bit_length() - 1)), I64(chunks - 1))
    for first in range(0, keys, chunks):
        key = builder.add(turn, I64(first + AHEAD))
        ask(builder, builder.gep(k, [builder.add(d, builder.mul(key, k_row))]))


def _tiles(dtype: int) -> tuple[Any, Any]:
    """All of a block's scores, and its weights times values, for one dtype of keys and values."""
    one, two, four = (dots(rows, dtype) for rows in (1, 2, 4))
    wide_one, wide_two, wide_four, narrow_one, narrow_two, narrow_four = (
        product(vectors, rows=rows, step=1, add=True, of_b=dtype, ahead=AHEAD if rows > 1 else 0)
        for vectors in (4, 1)
        for rows in (1, 2, 4)
    )

    @compiled
    def scores(q, rows, k, k_row, width, s, s_row):
        """For `WIDTH // together` keys from k on, `together` rows at a time: 1, 2 or 4 as there are."""
        if rows == 1:
            one(q, k, k_row, width, s, s_row)
        elif rows == 2:
            two(q, k, k_row, width, s, s_row)
        else:
            for r in range(0, rows, 4):
                four(after(q, r * width), k, k_row, width, after(s, r * s_row), s_row)

    @compiled
    def add_values(p, p_row, rows, v, v_row, keys, width, o):
        """o[row][:] += Σ_n p[row][n] · v[n][:]."""
        for d in range(0, width // (4 * WIDTH) * (4 * WIDTH), 4 * WIDTH):
            if rows == 1:
                wide_one(p, p_row, 1, after(v, d), v_row, keys, after(o, d), width)
            elif rows == 2:
                wide_two(p, p_row, 1, after(v, d), v_row, keys, after(o, d), width)
            else:
                for r in range(0, rows, 4):
                    wide_four(after(p, r * p_row), p_row, 1, after(v, d), v_row, keys, after(o, r * width + d), width)
        for d in range(width // (4 * WIDTH) * (4 * WIDTH), width, WIDTH):
            if rows == 1:
                narrow_one(p, p_row, 1, after(v, d), v_row, keys, after(o, d), width)
            elif rows == 2:
                narrow_two(p, p_row, 1, after(v, d), v_row, keys, after(o, d), width)
            else:
                for r in range(0, rows, 4):
                    narrow_four(after(p, r * p_row), p_row, 1, after(v, d), v_row, keys, after(o, r * width + d), width)

    return scores, add_values


scores_float32, add_float32 = _tiles(FLOAT32)
scores_bfloat16, add_bfloat16 = _tiles(BFLOAT16)
scores_float16, add_float16 = _tiles(FLOAT16)


@compiled
def rows_together(rows):
    """1, 2, or a multiple of 4: how many rows are worked on, the last ones being 0."""
    return rows if rows <= 2 else (rows + 3) // 4 * 4


@compiled
def finish_row(c, s, b, h, i, j0, count):
    """Products to logits for one query and keys j0 + [0, count)."""
    if c[at.SOFTCAP] != 0:
        limit = float_from_bits(c[at.SOFTCAP]) * float32(LOG2_E)
        for n in range(0, count, LANES):
            store(s, n, splat(limit) * tanh(load(s, n) * splat(float32(1.0) / limit)))
    if c[at.BIAS] != 0:
        start = b * c[at.BIAS_B] + h * c[at.BIAS_H] + i * c[at.BIAS_I] + j0 * c[at.BIAS_J]
        for n in range(count):
            x = number(c[at.BIAS], c[at.BIAS_DTYPE], start + n * c[at.BIAS_J])
            s[n] = HIDDEN if x == HIDDEN else s[n] + x * float32(LOG2_E)
    if c[at.SLOPES] != 0:
        slope = number(c[at.SLOPES], FLOAT32, h) * float32(LOG2_E)
        a = i + c[at.OFFSET]
        for n in range(count):
            s[n] -= slope * float32(abs(a - j0 - n))
    if c[at.DENSE] != 0:
        mask = bytes_at(c[at.DENSE] + b * c[at.DENSE_B] + h * c[at.DENSE_H] + i * c[at.DENSE_I] + j0 * c[at.DENSE_J])
        for n in range(count):
            if mask[n * c[at.DENSE_J]] == 0:
                s[n] = HIDDEN
    for label in range(c[at.LABELS]):
        own = ints_at(c[at.QUERY_LABELS])[label * c[at.QUERY_LABELS_N] + b * c[at.QUERY_LABELS_B] + i]
        keys = after(ints_at(c[at.KEY_LABELS]), label * c[at.KEY_LABELS_N] + b * c[at.KEY_LABELS_B] + j0)
        for n in range(count):
            if keys[n] != own:
                s[n] = HIDDEN
    row = b * c[at.INTERVAL_B] + i
    low, high = int64(ints_at(c[at.LO])[row]) - j0, int64(ints_at(c[at.HI])[row]) - j0
    for n in range(min(max(low, int64(0)), count)):
        s[n] = HIDDEN
    for n in range(max(int64(0), high), count):
        s[n] = HIDDEN
    for n in range(count, (count + LANES - 1) // LANES * LANES):
        s[n] = HIDDEN


@compiled
def softmax_row(s, count, state):
    """s becomes 2^(s − m); state = (m, Σ) of the row is carried on. Returns 2^(m_old − m)."""
    high = splat(state[0])
    for n in range(0, count, LANES):
        high = larger(load(s, n), high)
    m = max_of(high)
    anchor = float32(0.0) if m == HIDDEN else m
    total = splat(float32(0.0))
    for n in range(0, count, LANES):
        p = exp2(load(s, n) - splat(anchor))
        store(s, n, p)
        total = total + p
    shrink = exp2_of(state[0] - anchor)
    state[0], state[1] = m, state[1] * shrink + sum_of(total)
    return shrink


@compiled
def exp2_of(x):
    """2^x of one number."""
    return first_of(exp2(splat(x)))


@compiled
def log2_of(x):
    """log2 of one number."""
    return first_of(log2(splat(x)))


@compiled
def fetch_rows(address, step, rows, bytes_):
    """Ask for some rows, in the order in which they lie: that is what memory answers fastest.

    It is for one query a key head, which is done with a key as soon as it is there. With more, arithmetic takes long enough
    for the micro-kernels to ask a line at a time between their products.
    """
    for n in range(rows):
        for line in range(0, bytes_, 64):
            fetch(address + n * step + line)


@compiled
def attend_chunk(c, head, chunk, scratch):
    """One chunk of the keys of one key head, for all rows that read them; leaves m, Σ and o of every row behind."""
    b, kv = head // c[at.HK], head % c[at.HK]
    D, DV, TQ, TK = c[at.D], c[at.DV], c[at.TQ], c[at.TK]
    rows = c[at.GROUPS] * TQ
    together = rows_together(rows)
    tile = WIDTH // min(together, int64(4))
    s_row = BLOCK + PAD + LANES
    q, s = scratch, after(scratch, together * D + PAD)
    out = after(floats_at(c[at.DECODED]), (head * c[at.PARTS] + chunk) * together * (DV + 2))
    states, o = out, after(out, 2 * together)
    factor = float_from_bits(c[at.SCALE]) * float32(LOG2_E)
    for n in range(together * D):
        q[n] = float32(0.0)
    for n in range(together * (DV + 2)):
        out[n] = float32(0.0)
    first, end = TK, int64(0)
    for r in range(rows):
        h, i = kv * c[at.GROUPS] + r // TQ, r % TQ
        place = b * c[at.QUERY_B] + h * c[at.QUERY_H] + i * c[at.QUERY_T]
        read_row(c[at.QUERY], c[at.DTYPE], place, c[at.QUERY_D], D, after(q, r * D))
        for d in range(D):
            q[r * D + d] *= factor
        interval = b * c[at.INTERVAL_B] + i
        first = min(first, int64(ints_at(c[at.LO])[interval]))
        end = max(end, int64(ints_at(c[at.HI])[interval]))
    for r in range(together):
        states[2 * r] = HIDDEN
    key = b * c[at.KEY_B] + kv * c[at.KEY_H]
    value = b * c[at.VALUE_B] + kv * c[at.VALUE_H]
    dtype = c[at.DTYPE]
    size = 4 if dtype == FLOAT32 else 2
    first = max(first, chunk * c[at.CHUNK])
    end = min(end, (chunk + 1) * c[at.CHUNK])
    for j0 in range(first, end, BLOCK):
        count = min(int64(BLOCK), end - j0)
        for n in range(0, count, tile):
            j = min(j0 + n, TK - tile)  # the last tile repeats keys rather than reach past the last
            to, place = after(s, j - j0), key + j * c[at.KEY_T]
            if together == 1:
                fetch_rows(c[at.KEY] + (place + AHEAD * c[at.KEY_T]) * size, c[at.KEY_T] * size, tile, D * size)
            if dtype == FLOAT32:
                scores_float32(q, together, after(floats_at(c[at.KEY]), place), c[at.KEY_T], D, to, s_row)
            elif dtype == BFLOAT16:
                scores_bfloat16(q, together, after(halves_at(c[at.KEY]), place), c[at.KEY_T], D, to, s_row)
            else:
                scores_float16(q, together, after(halves_at(c[at.KEY]), place), c[at.KEY_T], D, to, s_row)
        for r in range(rows):
            h, i = kv * c[at.GROUPS] + r // TQ, r % TQ
            row = after(s, r * s_row)
            finish_row(c, row, b, h, i, j0, count)
            shrink = softmax_row(row, count, after(states, 2 * r))
            if shrink != float32(1.0):
                for d in range(0, DV, WIDTH):
                    store(o, r * DV + d, load_short(o, r * DV + d) * splat_short(shrink))
        for n in range(0, count, 16):
            some = min(int64(16), count - n)
            place, p = value + (j0 + n) * c[at.VALUE_T], after(s, n)
            if together == 1:
                fetch_rows(c[at.VALUE] + (place + AHEAD * c[at.VALUE_T]) * size, c[at.VALUE_T] * size, some, DV * size)
            if dtype == FLOAT32:
                add_float32(p, s_row, together, after(floats_at(c[at.VALUE]), place), c[at.VALUE_T], some, DV, o)
            elif dtype == BFLOAT16:
                add_bfloat16(p, s_row, together, after(halves_at(c[at.VALUE]), place), c[at.VALUE_T], some, DV, o)
            else:
                add_float16(p, s_row, together, after(halves_at(c[at.VALUE]), place), c[at.VALUE_T], some, DV, o)


@compiled
def merge_chunks(c, head, scratch):
    """Chunks of all rows of a key head into their output; says so in the call where it holds a NaN."""
    b, kv = head // c[at.HK], head % c[at.HK]
    DV, TQ, parts = c[at.DV], c[at.TQ], c[at.PARTS]
    rows = c[at.GROUPS] * TQ
    together = rows_together(rows)
    for r in range(rows):
        h, i = kv * c[at.GROUPS] + r // TQ, r % TQ
        m = HIDDEN
        if c[at.SINKS] != 0:
            m = number(c[at.SINKS], FLOAT32, h) * float32(LOG2_E)
        sink = m
        for chunk in range(parts):
            part = after(floats_at(c[at.DECODED]), (head * parts + chunk) * together * (DV + 2))
            m = max(m, part[2 * r])
        anchor = float32(0.0) if m == HIDDEN else m
        total = float32(0.0) if c[at.SINKS] == 0 else exp2_of(sink - anchor)
        for d in range(DV):
            scratch[d] = float32(0.0)
        for chunk in range(parts):
            part = after(floats_at(c[at.DECODED]), (head * parts + chunk) * together * (DV + 2))
            share = exp2_of(part[2 * r] - anchor)
            total += part[2 * r + 1] * share
            values = after(part, 2 * together + r * DV)
            for d in range(DV):
                scratch[d] += values[d] * share
        clean = total == total
        for d in range(DV):
            scratch[d] = float32(0.0) if total == float32(0.0) else scratch[d] / total
            clean = clean and scratch[d] == scratch[d]
        if not clean:
            c[at.DIRTY] = 1
        lse = HIDDEN if total == float32(0.0) else (anchor + log2_of(total)) * float32(LN_2)
        floats_at(c[at.LSE])[(b * c[at.HQ] + h) * TQ + i] = lse
        place = b * c[at.OUT_B] + h * c[at.OUT_H] + i * c[at.OUT_T]
        write_row(c[at.OUT], c[at.DTYPE], place, DV, scratch)


@compiled
def task(c, ticket, scratch):
    """A chunk of the keys of a head; after the last of them, their merger."""
    head = ticket // c[at.PARTS]
    attend_chunk(c, head, ticket % c[at.PARTS], scratch)
    if was_last(c, head):
        merge_chunks(c, head, scratch)


work = handed_out(task)
