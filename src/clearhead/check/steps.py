"""The single steps of a formula, each with its right and its wrong ways, in float64 NumPy."""

from __future__ import annotations

import itertools
import math
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Some = TypeVar("Some")


def no_type_check(thing: Some) -> Some:
    """For steps that a search takes a hundred thousand times: tests that check types on every call leave these alone.

    Jaxtyping's import hook goes by the name. Unlike `typing.no_type_check` it hides nothing from a static checker.
    """
    return thing


class Refused(Exception):  # noqa: N818
    """A formula has no meaning on a case (there are no sinks, widths do not fit, ...)."""


@no_type_check
def scale_of(name: str, s: dict[str, Any]) -> float:
    """The scale of that name for these sizes."""
    c, d, h = float(s["C"]), float(s["D"]), float(s["H"])
    root = d**-0.5
    table = {
        "1/sqrt(D)": root, "1": 1.0, "1/sqrt(C)": c**-0.5, "1/D": 1 / d, "sqrt(D)": 1 / root, "D": d, "1/C": 1 / c,
        "sqrt(C)": c**0.5, "1/sqrt(T)": s["T"] ** -0.5, "1/T": 1 / s["T"], "1/sqrt(Tq)": s["Tq"] ** -0.5,
        "1/Tq": 1 / s["Tq"], "1/sqrt(H)": h**-0.5, "1/H": 1 / h, "1/sqrt(Hk)": s["Hk"] ** -0.5, "1/sqrt(B)": s["B"] ** -0.5,
        "1/B": 1 / s["B"], "1/sqrt(Dv)": s["Dv"] ** -0.5, "D**-0.25": d**-0.25, "1/sqrt(2D)": (2 * d) ** -0.5,
        "sqrt(2/D)": (2 / d) ** 0.5, "2/D": 2 / d, "sqrt(H/D)": (h / d) ** 0.5, "H/D": h / d, "D**-1.5": d**-1.5,
        "D**-2": d**-2, "1/sqrt(C*D)": (c * d) ** -0.5, "1/sqrt(D*T)": (d * s["T"]) ** -0.5, "1/sqrt(D*H)": (d * h) ** -0.5,
        "1/sqrt(D-1)": (d - 1) ** -0.5 if d > 1 else 0.0, "1/sqrt(D+1)": (d + 1) ** -0.5, "-1/sqrt(D)": -root, "-1": -1.0,
        "log(2)/sqrt(D)": math.log(2) * root, "log2(e)/sqrt(D)": root / math.log(2), "log(10)/sqrt(D)": math.log(10) * root,
        "0": 0.0, "1/int(sqrt(D))": 1 / int(d**0.5), "1/(D//2)": 1 / (d // 2) if d > 1 else 0.0,
    }  # fmt: skip
    return float(table[name])


@no_type_check
def relation(sees: str, tq: int, tk: int, offset: int, window: int | None) -> Array | None:
    """Who may see whom, (Tq, Tk), for an option of `sees`; None: everyone everything."""
    if sees == "all":
        return None
    i, j = np.arange(tq)[:, None] + offset, np.arange(tk)[None, :]
    if sees.startswith("window="):
        return (j <= i) & (j > i - int(sees[7:]))
    past: Array = j <= i
    if window is not None and sees in ("past", "strict", "ahead"):
        past = past & (j > i - window)
    if sees == "past":
        return past
    if sees == "window, future too":
        if window is None:
            raise Refused
        return np.asarray(j > i - window)
    if sees in ("window+1", "window-1"):
        return past if window is None else past & (j > i - window - (1 if sees == "window+1" else -1))
    if sees == "around":
        return np.asarray(np.abs(i - j) < (window or tk + tq))
    found: dict[str, Array] = {
        "strict": (j < i) & (j > i - (window or tk + tq)),
        "ahead": (j <= i + 1) & (j > i - (window or tk + tq)),
        "future": j >= i,
        "strict future": j > i,
        "diagonal": j == i,
        "not itself": j != i,
        "not last": (j < tk - 1) & (i >= -tq),
        "not first": (j > 0) & (i >= -tq),
        "two late": j <= i - 2,
        "two ahead": j <= i + 2,
        "anti": i + j <= tk - 1,
    }
    return found[sees]


@no_type_check
def softmax(z: Array, axis: int | tuple[int, ...]) -> Array:
    """e^z over its sum along an axis."""
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


@no_type_check
def products(q: Array, k: Array, unit: str) -> Array:
    """q · k of every pair, or what is used in its place."""
    if unit.startswith("negated"):
        square = (q**2).sum(-1)[..., :, None] + (k**2).sum(-1)[..., None, :] - 2 * q @ np.swapaxes(k, -1, -2)
        return np.asarray(-square if "squared" in unit else -np.sqrt(np.maximum(square, 0.0)))
    if unit == "reshaped key":
        return np.asarray(q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2]))
    return np.asarray(q @ np.swapaxes(k, -1, -2))


@no_type_check
def unit_length(unit: str, x: Array, epsilon: float) -> Array:
    """Queries or keys (B, H, T, D) after a norm: of every head, or `wide`, over all heads at once."""
    axis: tuple[int, ...] = (1, 3) if unit.endswith("wide") else (3,)
    if len(axis) == 2 and x.shape[1] == 1:
        raise Refused
    if unit.startswith("layer"):
        x = x - x.mean(axis, keepdims=True)
    if unit == "l2":
        return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))
    return np.asarray(x / np.sqrt((x**2).mean(axis, keepdims=True) + epsilon))


@no_type_check
def alibi(option: str, z: Array, offset: int) -> Array:
    """What ALiBi adds to scores (B, H, Tq, Tk): −slope · distance, with the slopes of `slopes`."""
    h, tq, tk = z.shape[1:]
    found = slopes(h, option)
    if option == "alibi same":
        found = np.full(h, found[0])
    distance = np.abs(np.arange(tq)[:, None] + offset - np.arange(tk)[None, :])
    return np.asarray((1 if option == "alibi turned" else -1) * found[:, None, None] * distance)


@no_type_check
def slopes(heads: int, option: str) -> Array:
    """ALiBi's slopes, 2^(−8 (h + 1) / H); `woven`: those of the next lower power of two n, then every second of 2n."""
    if option == "alibi halves":
        return 2.0 ** -np.arange(1, heads + 1)
    if option != "alibi woven":
        return 2.0 ** (-8.0 * np.arange(1, heads + 1) / heads)
    n = 1 << (heads.bit_length() - 1)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * n + 1, 2) / n)
    return np.concatenate([2.0 ** (-8.0 * np.arange(1, n + 1) / n), between[: heads - n]])


@no_type_check
def capped(cap: str, z: Array, softcap: float, scale: float) -> Array:
    """Scores after the softcap of an option."""
    if cap == "before":
        return softcap * np.tanh(z / softcap)
    if cap == "none":
        return z
    if cap == "no-divide":
        return softcap * np.tanh(z)
    if cap == "no-multiply":
        return np.tanh(z / softcap)
    if cap == "clamp":
        return np.clip(z, -softcap, softcap)
    return softcap * np.tanh(z / scale / softcap) * scale  # unscaled


@no_type_check
def hidden(hide: str, z: Array, visible: Array) -> tuple[Array, Array | None]:
    """Scores with what is hidden hidden, and what is still to be hidden after the softmax."""
    if hide.startswith("after"):
        return z, visible
    if hide == "added":
        return z + visible, None
    if hide == "subtracted":
        return z - ~visible, None
    if hide.startswith("add="):
        return z + ~visible * float(hide[4:]), None
    fills = {"minus-inf": -np.inf, "large": -1e9, "zero": 0.0, "plus-inf": np.inf, "plus": 1e9}
    return np.where(visible, z, fills[hide] if hide in fills else float(hide[1:])), None


@no_type_check
def normalised(axis: str, z: Array) -> Array:
    """Weights from scores, by an option of `axis`."""
    if axis == "keys":
        return softmax(z, -1)
    if axis in ("queries", "heads", "batch"):
        return softmax(z, {"queries": -2, "heads": 1, "batch": 0}[axis])
    if axis == "columns" or axis.startswith("turned"):
        return _turned_round(axis, z)
    if axis == "both":
        return softmax(z, (-2, -1))
    if axis.startswith("tiles"):
        return _by_tiles(axis, z)
    finite = np.where(z == -np.inf, 0.0, z)
    if axis == "none":
        return finite
    if axis == "divided":
        return np.asarray(finite / finite.sum(-1, keepdims=True))
    if axis == "exp":
        return np.asarray(np.exp(z))
    if axis == "sigmoid":
        return np.asarray(1 / (1 + np.exp(-z)))
    if axis == "relu":
        return np.maximum(finite, 0.0)
    if axis == "relu normalised":
        e = np.maximum(finite, 0.0)
        return np.asarray(e / (e.sum(-1, keepdims=True) + 1e-30))
    if axis == "plus one":
        top = np.maximum(z.max(-1, keepdims=True), 0.0)
        e = np.exp(z - top)
        return np.asarray(e / (np.exp(-top) + e.sum(-1, keepdims=True)))
    if axis == "twice":
        return softmax(softmax(z, -1), -1)
    if axis == "log":
        return np.log(softmax(z, -1))
    if axis == "hard":
        return np.asarray((z == z.max(-1, keepdims=True)).astype(float))
    if axis == "mean":
        return np.asarray(softmax(z, -1) / z.shape[-1])
    if axis == "squares":
        return np.asarray(finite**2 / (finite**2).sum(-1, keepdims=True))
    raise KeyError(axis)


@no_type_check
def _by_tiles(axis: str, z: Array) -> Array:
    """A softmax over tiles of keys whose sums so far (of values, or both) are not rescaled when a larger score comes."""
    wide = int(axis.rpartition("=")[2])
    if wide >= z.shape[-1]:
        raise Refused
    top = np.maximum.accumulate(z, axis=-1)
    ends = np.minimum((np.arange(z.shape[-1]) // wide + 1) * wide, z.shape[-1]) - 1
    e = np.exp(z - top[..., ends])  # against the largest score of the tiles so far
    if axis.startswith("tiles both"):
        return np.asarray(e / e.sum(-1, keepdims=True))
    return np.asarray(e / np.exp(z - top[..., -1:]).sum(-1, keepdims=True))


@no_type_check
def _turned_round(axis: str, z: Array) -> Array:
    """A softmax whose sums, or maxima, are one number a row and are used as if they were one a column."""
    top = z.max(-1, keepdims=True)
    if axis == "columns":
        e = np.exp(z - top)
        return np.asarray(e / e.sum(-2, keepdims=True))
    if z.shape[-1] != z.shape[-2]:  # the two do not fit together
        raise Refused
    if axis == "turned raw sums":  # as if nothing were subtracted: e^(score − m) / (sum · e^(m of the column − m))
        top = z.max(axis=(-2, -1), keepdims=True)
    e = np.exp(z - (np.swapaxes(top, -1, -2) if axis in ("turned maxima", "turned both") else top))
    sums = e.sum(-1, keepdims=True)
    return np.asarray(e / (sums if axis == "turned maxima" else np.swapaxes(sums, -1, -2)))


@no_type_check
def unfused(x: Array, hq: int, hk: int, fused: str) -> dict[str, Array]:
    """What a fused layer gives, (B, T, width), as q, k and v; raises `Refused` where that reading does not fit."""
    b, t, width = x.shape
    if fused == "chunks":
        d = width // (hq + 2 * hk)
        at = (hq * d, (hq + hk) * d)
        return dict(zip("qkv", np.split(x, at, axis=-1), strict=True))
    if hq != hk or width % (3 * hq):
        raise Refused
    d = width // (3 * hq)
    if fused == "three heads first":
        if hq == 1:
            raise Refused
        parts = x.reshape(b, t, 3, d, hq).transpose(2, 0, 1, 4, 3)
    elif fused == "per head":
        if hq == 1:
            raise Refused
        parts = x.reshape(b, t, hq, 3, d).transpose(3, 0, 1, 2, 4)
    else:
        parts = x.reshape(b, t, hq, d, 3).transpose(4, 0, 1, 2, 3)
    return {name: parts[n].reshape(b, t, hq * d) for n, name in enumerate("qkv")}


@no_type_check
def grouped(grouping: str, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Queries, and the keys and values that they read, (B, Hq, T, ·) each, by an option of `heads`."""
    group = q.shape[1] // k.shape[1]
    which, _, how = SHORT.get(grouping, grouping).rpartition("-")
    if which and all(t.shape[1] == 1 for t, letter in ((q, "q"), (k, "k"), (v, "v")) if letter in which):
        raise Refused  # one head is the first, the last and the mean

    def read(t: Array, letter: str) -> Array:
        times = 1 if letter == "q" else group
        if letter in which:
            if how == "tiled":
                return np.tile(t, (1, times, 1, 1))
            t = _of_heads(how, t)
        return np.repeat(t, times, axis=1) if times > 1 else t

    return read(q, "q"), read(k, "k"), read(v, "v")


SHORT = {name: f"kv-{name}" for name in ("tiled", "first", "last", "next", "reversed", "averaged", "summed")}


@no_type_check
def _of_heads(how: str, t: Array) -> Array:
    """Heads (B, H, T, ·) with the wrong one in the place of each."""
    if how == "reversed":
        return t[:, ::-1]
    if how == "next":
        return np.roll(t, -1, axis=1)
    one = {
        "first": lambda: t[:, :1], "last": lambda: t[:, -1:], "averaged": lambda: t.mean(1, keepdims=True),
        "summed": lambda: t.sum(1, keepdims=True),
    }[how]()  # fmt: skip
    return np.broadcast_to(one, t.shape)


@no_type_check
def joined(cache: str, k: Array, v: Array, chunks: list[int]) -> tuple[Array, Array]:
    """Keys and values, in their order, as an option of `cache` joins them; `chunks`: how many were cached each time."""
    if not 0 < sum(chunks) < k.shape[2] or k.shape[2] != v.shape[2]:
        raise Refused
    ends = np.cumsum([0, *chunks, k.shape[2] - sum(chunks)])
    parts = [np.arange(a, b) for a, b in itertools.pairwise(ends)]
    straight = np.arange(k.shape[2])
    at = {
        "new first": np.concatenate(parts[::-1]),
        "new twice": np.concatenate([parts[0], *(part for part in parts[1:] for _ in range(2))]),
        "new twice now": np.concatenate([straight, parts[-1]]),
        "last chunk": np.concatenate(parts[-2:]),
        "last token": straight[sum(chunks) - 1 :],
    }[cache.removeprefix("k-").removeprefix("v-").removesuffix(" by place")]
    return k[:, :, straight if cache.startswith("v-") else at], v[:, :, straight if cache.startswith("k-") else at]


@no_type_check
def rotated(rope: str, q: Array, k: Array, v: Array, past: int, chunks: list[int]) -> tuple[Array, Array, Array]:
    """Query, key and value after the rotary positions of an option, `layout[-fault] base`."""
    word, _, base = rope.rpartition(" ")
    layout, _, fault = word.partition("-")
    if q.shape[-1] % 2 or k.shape[-1] != q.shape[-1]:
        raise Refused
    if fault in ("q-from-0", "chunk-from-0", "again") and not past:
        raise Refused
    if fault.startswith("first-"):
        turned = q.shape[-1] // (2 if fault == "first-half" else 4)
        if turned < 2 or turned % 2:
            raise Refused
        parts = rotated(f"{layout} {base}", q[..., :turned], k[..., :turned], v, past, chunks)
        left, right = (np.concatenate([part, t[..., turned:]], -1) for part, t in zip(parts[:2], (q, k), strict=True))
        return left, right, v
    behind = past
    at_q, at_k = np.arange(q.shape[2]) + behind, np.arange(k.shape[2])
    if fault == "q-from-0":
        at_q = at_q - behind
    elif fault == "chunk-from-0":
        at_q = at_q - behind
        at_k = np.concatenate([_positions(chunks), np.arange(k.shape[2] - behind)])
    elif fault == "again":  # a place is turned as often as it went through
        at_k = at_k * np.repeat(np.arange(len(chunks) + 1, 0, -1), [*chunks, k.shape[2] - behind])
    elif fault == "q-one-late":
        at_q = at_q + 1
    elif fault == "q-backwards":
        at_q = -at_q
    elif fault == "k-backwards":
        at_k = -at_k
    elif fault == "backwards":
        at_q, at_k = -at_q, -at_k
    if fault == "over-heads":
        return _turned(layout, fault, q, float(base), None), _turned(layout, fault, k, float(base), None), v
    return (
        q if fault == "k-only" else _turned(layout, fault, q, float(base), at_q),
        k if fault == "q-only" else _turned(layout, fault, k, float(base), at_k),
        _turned(layout, fault, v, float(base), at_k) if fault == "v-too" else v,
    )


@no_type_check
def _positions(chunks: list[int]) -> Array:
    return np.concatenate([np.arange(n) for n in chunks]) if chunks else np.arange(0)


@no_type_check
def _turned(layout: str, fault: str, x: Array, base: float, at: Array | None) -> Array:
    d = x.shape[-1]
    rates = base ** (-np.arange(d // 2) * 2 / d)
    along_heads = (np.arange(x.shape[1])[:, None] * rates)[:, None, :]  # (H, 1, D/2)
    angles = along_heads if at is None else at[:, None] * rates  # or (T, D/2)
    doubled, repeated = np.concatenate([angles, angles], -1), np.repeat(angles, 2, axis=-1)
    if layout == "half":
        other = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], -1)
        full = repeated if fault == "with-pair-angles" else doubled
    else:
        other = np.stack([-x[..., 1::2], x[..., 0::2]], -1).reshape(x.shape)
        full = doubled if fault == "with-half-angles" else repeated
    if fault == "no-minus":
        other = x[..., _partners(layout, d)]
    return np.asarray(x * np.cos(full) + other * np.sin(full))


@no_type_check
def _partners(layout: str, d: int) -> Array:
    """The place that each place is turned together with."""
    places = np.arange(d)
    return np.roll(places, d // 2) if layout == "half" else places ^ 1
