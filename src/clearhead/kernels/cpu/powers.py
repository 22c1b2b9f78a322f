"""2^x, log2 x and tanh x of whole vectors, with their error bounds. `tests/cpu/test_powers.py` measures them.

Softmax is done with powers of two: scores are multiplied by log2(e) once, as the query is laid out, and 2^x needs no
multiplication to split x into an exponent and a rest.
"""

from numba import float32, int32

from clearhead.kernels.cpu.vector import bits, compiled, fma, larger, splat, splat_int, to_floats, where

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
ROUND = float32(12582912.0)  # 1.5 · 2^23: added to |x| < 2^22 it leaves x rounded to an integer in the low bits


@compiled
def exp2(x):
    """2^x for x < 127.5, within 1.3 units in the last place; 0 below −126 (−inf included), NaN for NaN.

    x = n + f with n an integer and |f| ≤ ½. 2^f is a polynomial, fitted so that the largest relative error is least
    (2e-9), and n is shifted into the exponent of the result.
    """
    shifted = x + splat(ROUND)
    f = x - (shifted - splat(ROUND))
    p = splat(float32(0.00015345795))
    p = fma(p, f, splat(float32(0.0013399931)))
    p = fma(p, f, splat(float32(0.009618489)))
    p = fma(p, f, splat(float32(0.05550329)))
    p = fma(p, f, splat(float32(0.24022647)))
    p = fma(p, f, splat(float32(0.6931472)))
    p = fma(p, f, splat(float32(1.0)))
    power = bits((bits(shifted) << splat_int(int32(23))) + splat_int(int32(0x3F800000)))
    return where(x < splat(float32(-126.0)), splat(float32(0.0)), p * power)


@compiled
def log2(x):
    """log2 of normal positive floats, within 2e-7 of the true value or 2 units in the last place; −inf for 0, NaN for NaN.

    x = 2^n · m with √½ ≤ m < √2, and ln m = 2 artanh t = 2 (t + t³/3 + t⁵/5 + …) with t = (m − 1)/(m + 1), |t| < 0.172.
    """
    raw = bits(x)
    n = (raw - splat_int(int32(0x3F3504F3))) >> splat_int(int32(23))
    m = bits(raw - (n << splat_int(int32(23))))
    one = splat(float32(1.0))
    t = (m - one) / (m + one)
    s = t * t
    p = splat(float32(2 * 1.4426950408889634 / 9))
    p = fma(p, s, splat(float32(2 * 1.4426950408889634 / 7)))
    p = fma(p, s, splat(float32(2 * 1.4426950408889634 / 5)))
    p = fma(p, s, splat(float32(2 * 1.4426950408889634 / 3)))
    p = fma(p, s, splat(float32(2 * 1.4426950408889634)))
    found = fma(p, t, to_floats(n))
    found = where(x < splat(float32(1.1754944e-38)), splat(float32(-float("inf"))), found)
    return where(x < splat(float32(float("inf"))), found, x)  # +inf and NaN stay what they are


@compiled
def tanh(x):
    """tanh x within 3 units in the last place, NaN for NaN.

    (1 − u)/(1 + u) with u = e^(−2|x|) where |x| ≥ 0.625; below, where that cancels, a polynomial in x².
    """
    zero = splat(float32(0.0))
    size = larger(x, zero - x)
    u = exp2(size * splat(float32(-2 * 1.4426950408889634)))
    one = splat(float32(1.0))
    far = (one - u) / (one + u)
    s = x * x
    p = splat(float32(-0.0057049999))
    p = fma(p, s, splat(float32(0.0206391)))
    p = fma(p, s, splat(float32(-0.05373972)))
    p = fma(p, s, splat(float32(0.13331442)))
    p = fma(p, s, splat(float32(-0.33333282)))
    near = fma(p * s, x, x)
    far = where(x < zero, zero - far, far)
    return where(size < splat(float32(0.625)), near, where(x == x, far, x))
