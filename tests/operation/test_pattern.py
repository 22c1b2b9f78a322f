"""Any part of a pattern, at any zoom, against the whole one by definition in float64; what is kept; messages."""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise, product
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operation_cases import Case, cases
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from clearhead import ALiBi, Causal, Documents, Padding, Pattern, Prefix, Window, observe, pyramid, reference
from clearhead.errors import ArgumentError
from clearhead.kernels import rectangle
from clearhead.masks import Dense, Mask
from clearhead.testing import assert_within_tolerance

EVERYTHING = slice(None)


def made(case: Case, **more: Any) -> Pattern:
    return Pattern(case.query, case.key, value=case.value, **case.options, **more)


def whole(case: Case) -> reference.Pattern:
    """By definition, in the case's own dtype (16-bit ones in float32)."""
    wide = case if case.query.dtype == torch.float64 else case.to(torch.float32)
    D = case.query.shape[-1]
    options = {name: wide.options.get(name) for name in ("softcap", "sinks")}
    scale = wide.options.get("scale")
    return reference.pattern(
        wide.query,
        wide.key,
        visible=wide.visible,
        bias=wide.added,
        scale=D**-0.5 if scale is None else scale,
        **options,
    )


def lse_of(case: Case) -> Tensor:
    return whole(case).lse


def real_rows(pattern: Pattern) -> Tensor:
    B, _, Tq, _ = pattern.shape
    real = torch.ones(B, Tq, dtype=torch.bool) if pattern.padded is None else ~pattern.padded.expand(B, Tq)
    return real[:, None, :, None]


def cells(x: Tensor, side: int) -> Tensor:
    """(…, rows, columns) as (…, cells down, side, cells across, side), zeros at the ends."""
    rows, columns = x.shape[-2:]
    x = torch.nn.functional.pad(x, (0, -columns % side, 0, -rows % side))
    return x.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))


def pooled(truth: reference.Pattern, real: Tensor, side: int) -> dict[str, Tensor]:
    p = torch.where(real, truth.weights, 0.0)
    seen = cells((truth.visible & real).expand(p.shape).to(p.dtype), side).sum((-3, -1))
    return {"mean": cells(p, side).sum((-3, -1)) / seen.clamp(min=1), "max": cells(p, side).amax((-3, -1))}


def level_of(pattern: Pattern, level: int, pool: Any) -> Tensor:
    """All tiles of a level, side by side."""
    across, down = pattern.tiles(level)
    rows = [torch.cat([pattern.tile(level, x, y, pool=pool) for x in range(across)], -1) for y in range(down)]
    return torch.cat(rows, -2)


@contextmanager
def small_blocks() -> Iterator[None]:
    """Tiles of 8 × 8 cells and blocks to match, so that small patterns have many levels and meet every seam."""
    sizes = {rectangle: {"ROWS": 32, "KEYS": 16}, pyramid: {"ROWS": 32, "KEYS": 16, "TILE": 8, "DIRECT": 4}}
    with ExitStack() as stack:
        for module, numbers in sizes.items():
            for name, size in numbers.items():
                stack.enter_context(mock.patch.object(module, name, size))
        stack.enter_context(mock.patch("clearhead.pattern.TILE", 8))
        yield


def close(got: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(got, truth, rtol=1e-11, atol=1e-12)


# ------------------------------------------------------------------------------------------------------------- crops


@given(cases(longest=50), st.data())
def test_a_crop_is_that_part_of_the_whole_pattern(case: Case, data: st.DataObject) -> None:
    Tq, Tk = case.sizes[2:]
    ends = [sorted(data.draw(st.lists(st.integers(0, T), min_size=2, max_size=2))) for T in (Tq, Tk)]
    queries, keys = (slice(*pair) for pair in ends)
    truth = whole(case)
    norms = case.value.norm(dim=-1).repeat_interleave(case.query.shape[1] // max(1, case.key.shape[1]), 1)
    wanted = {"weight": truth.weights, "logit": truth.logits, "contribution": truth.weights * norms[:, :, None]}
    given_lse = data.draw(st.booleans())
    with small_blocks():
        pattern = made(case, lse=truth.lse if given_lse else None)
        assert pattern.shape == case.sizes
        assert pattern.offset == Tk - Tq
        for what, x in wanted.items():
            close(pattern.crop(queries, keys, what=what), x[:, :, queries, keys])
        close(pattern.lse, truth.lse)


MASKS: dict[str, Callable[[int], Mask | Tensor | None]] = {
    "everything": lambda T: None,
    "causal": lambda T: Causal(),
    "window": lambda T: Window(37, right=2),
    "prefix": lambda T: Prefix(T // 3),
    "documents": lambda T: Documents(torch.arange(T) // 50 % 3) & Causal(),
    "padding": lambda T: Causal() & Padding(torch.tensor([T - T // 4, T])),
    "tensor": lambda T: torch.rand(2, 1, T, T, generator=torch.Generator().manual_seed(1)) < 0.7,
}


def call(T: int, dtype: torch.dtype, mask: str, *, Tq: int | None = None, **options: Any) -> Case:
    """Two samples, four query heads that read two key heads, laid out as most models do: (B, T, H, D)."""
    q = torch.randn(2, Tq or T, 4, 16).to(dtype).transpose(1, 2)
    k, v = torch.randn(2, 2, T, 2, 16).to(dtype).transpose(2, 3)
    return Case(q, k, v, {"mask": MASKS[mask](T), **options})


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_crop_from_what_a_model_keeps_loses_no_more_than_the_definition(dtype: torch.dtype, mask: str) -> None:
    for T in (1, 2, 63, 64, 65, 300):
        case = call(T, dtype, mask)
        truth, baseline = whole(case.to(torch.float64)), whole(case)
        pattern = made(case, lse=observe(*case.args, **case.options).lse)
        part = (slice(T // 3, None), slice(0, 1 + T // 2))
        size = 1 + float(truth.lse[truth.lse.isfinite()].abs().max())
        for what, x, y in (("weight", truth.weights, baseline.weights), ("logit", truth.logits, baseline.logits)):
            got = pattern.crop(*part, what=what)
            assert got.dtype == torch.float32
            assert_within_tolerance(got, x[:, :, *part], y[:, :, *part], magnitude=size, what=f"{what} at T={T}")


@pytest.mark.tiny
def test_slices_are_pythons() -> None:
    case = call(20, torch.float64, "causal")
    pattern, p = made(case), whole(case).weights
    close(pattern.crop(EVERYTHING, EVERYTHING), p)
    close(pattern.crop(slice(-3, None), slice(None, -5)), p[:, :, -3:, :-5])
    close(pattern.crop(slice(4, 4), slice(0, 20)), p[:, :, 4:4])
    assert pattern.crop(slice(9, 2), EVERYTHING).shape == (2, 4, 0, 20)


@pytest.mark.parametrize("mask", MASKS)
def test_what_may_not_be_seen_weighs_nothing_whatever_stands_there(mask: str) -> None:
    case = call(40, torch.float32, mask)
    clean = made(case).crop(EVERYTHING, EVERYTHING)
    seen = case.visible.expand(2, 4, 40, 40)
    for spoiled in (math.nan, math.inf):
        case.key[:, :, 30] = spoiled
        case.value[:, :, 30] = spoiled
        pattern = made(case)
        untouched = ~seen[..., 30]
        for what in ("weight", "contribution"):
            got = pattern.crop(EVERYTHING, EVERYTHING, what=what)
            assert bool((got[~seen] == 0).all())
            assert bool(got[untouched].isfinite().all())
        assert bool((pattern.crop(EVERYTHING, EVERYTHING, what="logit")[~seen] == -math.inf).all())
        torch.testing.assert_close(pattern.crop(EVERYTHING, EVERYTHING)[untouched], clean[untouched])
        assert bool(pattern.crop(EVERYTHING, EVERYTHING)[~untouched].isnan().any(-1).all())


def test_rows_of_the_most_negative_number_share_their_weight() -> None:
    """As a mask that is written in numbers leaves them; L − z has no digits there."""
    for dtype in (torch.float32, torch.float64):
        bias = torch.zeros(6, 6, dtype=dtype)
        bias[2] = torch.finfo(dtype).min
        bias[4, 1:] = torch.finfo(dtype).min
        q = torch.randn(1, 1, 6, 4, dtype=dtype)
        for sinks in (None, torch.zeros(1, dtype=dtype)):
            pattern = Pattern(q, q, bias=bias, sinks=sinks)
            p = pattern.crop(EVERYTHING, EVERYTHING)[0, 0]
            torch.testing.assert_close(p[2], torch.full((6,), 1 / 6 if sinks is None else 0.0, dtype=dtype))
            if sinks is None:
                torch.testing.assert_close(p[4], torch.tensor([1.0, 0, 0, 0, 0, 0], dtype=dtype))
                torch.testing.assert_close(p.sum(-1), torch.ones(6, dtype=dtype))


def test_logits_as_large_as_digits_reach_still_give_weights_that_add_up() -> None:
    q = torch.randn(1, 1, 50, 8)
    bias = torch.linspace(-3e5, 3e5, 50)[:, None].expand(50, 50)
    p = Pattern(q, q, bias=bias, mask=Causal()).crop(EVERYTHING, EVERYTHING)
    torch.testing.assert_close(p.sum(-1), torch.ones(1, 1, 50), rtol=rectangle.FEW_DIGITS, atol=0)


def test_nothing_larger_than_a_block_is_ever_made() -> None:
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                largest = max(largest, out.untyped_storage().nbytes())
            return out

    T = 3000
    q, k = torch.randn(2, 1, 1, T, 8)
    lse = Pattern(q, k, mask=Causal()).lse
    with Watch():
        pattern = Pattern(q, k, mask=Causal(), lse=lse)
        pattern.tile(0, 0, 0)
        pattern.tile(pattern.levels - 1, 3, 5)
        pattern.received()
        pattern.crop(slice(0, 50), EVERYTHING)
    assert largest == 4 * rectangle.ROWS * rectangle.KEYS < T * T


# ------------------------------------------------------------------------------------------------------------- tiles


@given(cases(least=1, longest=40))
def test_every_level_is_the_pattern_pooled_and_pooling_a_level_gives_the_one_above(case: Case) -> None:
    truth = whole(case)
    with small_blocks():
        pattern = made(case)
        real = real_rows(pattern)
        below: Tensor | None = None
        for level in reversed(range(pattern.levels)):
            side = 2 ** (pattern.levels - 1 - level)
            wanted = pooled(truth, real, side)
            for pool, x in wanted.items():
                got = level_of(pattern, level, pool)
                close(got, x)
                if pool == "max":
                    assert below is None or torch.equal(got, cells(below, 2).amax((-3, -1)))
                below = got if pool == "max" else below
        assert pattern.tiles(0) == (1, 1)
        assert side == 2 ** (pattern.levels - 1)
        assert max(case.sizes[2:]) <= 8 * side < max(16, 2 * max(case.sizes[2:]))


@pytest.mark.parametrize("mask", ["causal", "documents", "padding"])
def test_levels_agree_to_the_last_bit_at_the_size_of_real_blocks(mask: str) -> None:
    """Cells of 16 × 16 pairs come from query and key and those of 32 from below: both sides of the seam are met."""
    T = 5000
    case = call(T, torch.float32, mask)
    pattern = made(case).head(3, 1)
    assert pattern.levels == 6
    largest = [level_of(pattern, level, "max") for level in range(5)]  # the last would be T×T
    for above, below in pairwise(largest):
        assert torch.equal(above, cells(below, 2).amax((-3, -1)))
    for x, y in ((0, 0), (7, 18), (19, 19), (18, 19)):  # the last level, a tile at a time
        deep = pattern.tile(5, x, y, pool="max")
        above = pattern.tile(4, x // 2, y // 2, pool="max")[..., y % 2 * 128 :, x % 2 * 128 :][..., :128, :128]
        assert torch.equal(above, cells(deep, 2).amax((-3, -1)))
        crop = pattern.crop(slice(256 * y, min(T, 256 * y + 256)), slice(256 * x, min(T, 256 * x + 256)))
        torch.testing.assert_close(deep, crop)


def test_every_level_computes_the_same_blocks() -> None:
    """A product of another shape may round in another order, so levels that agree to the last bit must not cut otherwise."""
    T, asked = 1300, set[rectangle.Rectangle]()
    weights = rectangle.Head.weights

    def noted(head: rectangle.Head, r: rectangle.Rectangle, *more: Any) -> Tensor:
        asked.add(r)
        return weights(head, r, *more)

    case = call(T, torch.float32, "causal")
    with mock.patch.object(rectangle.Head, "weights", noted):
        for level in range(4):
            pattern = made(case).head(0)
            for x, y in ((0, 0), tuple(n - 1 for n in pattern.tiles(level))):
                pattern.tile(level, x, y)
    edges = [(at, min(T, at + 512)) for at in range(0, T, 512)]
    assert asked == {rectangle.Rectangle(*down, *across) for down in edges for across in edges if across <= down}


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_padding_are_in_no_cell(side: Any) -> None:
    case = call(300, torch.float64, "everything")
    case.options["mask"] = Causal() & Padding(torch.tensor([200, 270]), side=side)
    clean = pooled(whole(case), real_rows(made(case)), 2)
    case.query[0, :, slice(0, 100) if side == "left" else slice(200, 300)] = math.nan
    pattern = made(case)
    for pool, x in clean.items():
        close(pattern.tile(0, 0, 0, pool=pool), x)
    rows = pattern.crop(EVERYTHING, EVERYTHING).isnan().any(-1)[0, 0]
    assert int(rows.sum()) == (0 if side == "left" else 100)  # a crop shows them as they are


def test_tiles_are_the_same_whichever_was_asked_for_first() -> None:
    case = call(2100, torch.float32, "causal")
    up, down = (made(case).head(1) for _ in range(2))
    places = [(level, *at) for level in range(up.levels) for at in ((0, 0), tuple(n - 1 for n in up.tiles(level)))]
    found = {at: up.tile(*at) for at in reversed(places)}
    for at in places:
        assert torch.equal(down.tile(*at), found[at])


def test_tiles_of_many_heads_are_those_of_each() -> None:
    case = call(300, torch.float32, "window")
    pattern = made(case)
    for level in range(pattern.levels):
        got = pattern.tile(level, 0, 0)
        for b in range(2):
            for h in range(4):
                assert torch.equal(got[b, h], pattern.head(h, b).tile(level, 0, 0)[0, 0])


def test_more_keys_than_queries_make_fewer_rows_of_tiles() -> None:
    q, k = torch.randn(1, 4), torch.randn(1000, 4)
    pattern = Pattern(q, k)
    assert (pattern.levels, pattern.tiles(0), pattern.tiles(2)) == (3, (1, 1), (4, 1))
    assert pattern.tile(0, 0, 0).shape == (1, 1, 1, 250)
    torch.testing.assert_close(pattern.tile(0, 0, 0).sum() * 4, torch.tensor(1.0))
    empty = Pattern(torch.zeros(0, 4), torch.zeros(3, 4))
    assert empty.tile(0, 0, 0).shape == (1, 1, 0, 3)
    assert Pattern(torch.zeros(3, 4), torch.zeros(0, 4)).tile(0, 0, 0).shape == (1, 1, 3, 0)


def test_uniform_attention_has_one_mean_in_every_row_of_cells() -> None:
    q = torch.zeros(512, 4, dtype=torch.float64)
    tile = Pattern(q, q).tile(0, 0, 0)
    close(tile, torch.full((1, 1, 256, 256), 1 / 512, dtype=torch.float64))


# ---------------------------------------------------------------------------------------------------------- received


@given(cases(longest=60), st.integers(0, 2**31))
def test_received_is_the_rows_weighted_and_added(case: Case, seed: int) -> None:
    B, Hq, Tq, _ = case.sizes
    truth = whole(case).weights
    draw = torch.Generator().manual_seed(seed)
    r = torch.randn(B, Hq, Tq, generator=draw, dtype=torch.float64) * (torch.rand(B, Hq, Tq, generator=draw) < 0.5)
    with small_blocks():
        pattern = made(case)
        real = real_rows(pattern)
        close(pattern.received(), torch.where(real, truth, 0.0).sum(-2))
        close(pattern.received(r), torch.where(real, truth * r[..., None], 0.0).sum(-2))
        for shape in ((Tq,), (B, 1, 1), (1, 1, Tq)):
            some = torch.rand(shape, generator=draw, dtype=torch.float64)
            close(pattern.received(some), torch.where(real, truth * some.expand(B, Hq, Tq)[..., None], 0.0).sum(-2))


def test_received_is_what_observing_measures() -> None:
    case = call(700, torch.bfloat16, "padding")
    seen = observe(*case.args, **case.options)
    torch.testing.assert_close(made(case, lse=seen.lse).received(), seen.received, rtol=1e-5, atol=1e-5)


def test_rows_of_weight_0_are_not_looked_at() -> None:
    q, k = torch.randn(2, 1, 1, 9, 4)
    wanted = Pattern(q, k).crop(slice(5, 6), EVERYTHING)[:, :, 0]
    q[:, :, :5] = math.nan
    torch.testing.assert_close(Pattern(q, k).received(torch.arange(9) == 5), wanted)
    assert bool(Pattern(q, k).received().isnan().all())


# ------------------------------------------------------------------------------------------------- views, what is kept


@given(cases(least=1, longest=20), st.data())
def test_a_head_is_that_head(case: Case, data: st.DataObject) -> None:
    B, Hq, Tq, Tk = case.sizes
    b, h = data.draw(st.integers(-B, B - 1)), data.draw(st.integers(-Hq, Hq - 1))
    pattern = made(case)
    view = pattern.head(h, b)
    assert view.shape == (1, 1, Tq, Tk)
    assert pattern.head(h % Hq, b % B) is view
    assert view.head(0) is view
    for what in ("weight", "logit", "contribution"):
        close(
            view.crop(EVERYTHING, EVERYTHING, what=what),
            pattern.crop(EVERYTHING, EVERYTHING, what=what)[b, h][None, None],
        )


def test_a_head_alone_computes_its_own_lse_alone_and_copies_nothing() -> None:
    case = call(30, torch.float32, "causal")
    pattern = made(case)
    view = pattern.head(2, 1)
    assert view.lse.shape == (1, 1, 30)
    assert pattern._lse is None
    torch.testing.assert_close(view.lse, whole(case).lse[1:, 2:3])
    assert view._problem.key.untyped_storage().data_ptr() == case.key.untyped_storage().data_ptr()


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), "headless"])
def test_leading_dimensions_are_flattened_into_the_batch(lead: Any) -> None:
    shape = (5, 4) if lead == "headless" else (*lead, 2, 5, 4)
    q, k, v = (torch.randn(shape) for _ in range(3))
    seen = observe(q, k, v, mask=Causal())
    for lse in (seen.lse, seen.lse.reshape(shape[:-1])):
        pattern = Pattern(q, k, mask=Causal(), lse=lse)
        assert pattern.shape == (*seen.lse.shape, 5)
        torch.testing.assert_close(pattern.crop(EVERYTHING, EVERYTHING).sum(-1), torch.ones(seen.lse.shape))


def test_no_graph_is_kept_and_autocast_changes_nothing_that_is_kept() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    sinks = torch.zeros(2, requires_grad=True)
    pattern = Pattern(q * 1, q * 1, value=q * 1, mask=Causal(), sinks=sinks, lse=observe(q, q, q, sinks=sinks).lse)
    assert not pattern.crop(EVERYTHING, EVERYTHING).requires_grad
    assert pattern._problem.query.grad_fn is None
    wanted = Pattern(q, q, mask=Causal()).crop(EVERYTHING, EVERYTHING)
    made_outside = Pattern(q, q, mask=Causal())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(made_outside.crop(EVERYTHING, EVERYTHING), wanted)
        assert made_outside.tile(0, 0, 0).dtype == torch.float32


def test_tiles_are_kept_within_a_number_of_bytes_and_go_with_their_pattern() -> None:
    with mock.patch.object(
        pyramid, "cache", pyramid.Cache(pyramid.CACHE_BYTES)
    ) as kept:  # which other tests do not use
        _tiles_are_kept(kept)


def _tiles_are_kept(kept: pyramid.Cache) -> None:
    before = 0
    pattern = made(call(600, torch.float32, "everything")).head(0)
    pattern.tile(2, 0, 0)
    # A block is kept whole: of each cell the weight, mean and largest in one, and how many pairs there are.
    assert kept.bytes - before == 512 * 512 * 8
    pattern.tile(2, 2, 2)
    assert kept.bytes - before == (512 * 512 + 88 * 88) * 8
    with mock.patch.object(kept, "limit", before + 2 * 256 * 256 * 4):
        pattern.tile(0, 0, 0)
        assert kept.bytes <= kept.limit
    got = pattern.tile(0, 0, 0)
    assert torch.equal(pattern.tile(0, 0, 0), got)
    del pattern
    gc.collect()
    assert kept.bytes == before


def test_what_is_seen_again_is_not_computed_again_and_cannot_be_spoiled() -> None:
    pattern = made(call(600, torch.float32, "causal")).head(0)
    first = pattern.tile(1, 0, 1).clone()
    with mock.patch.object(rectangle.Head, "weights", side_effect=AssertionError("computed again")):
        again = pattern.tile(1, 0, 1)
        assert torch.equal(again, first)
        again.zero_()
        assert torch.equal(pattern.tile(1, 0, 1), first)
        with pytest.raises(AssertionError, match="computed again"):
            pattern.tile(2, 0, 0)


def test_the_tiles_seen_last_stay() -> None:
    def tile() -> pyramid.Tile:
        x = torch.zeros(2, 2)
        return pyramid.Tile(x, x, torch.zeros(2, 2))  # 32 bytes

    kept = pyramid.Cache(limit=70)
    one, two, three = ((0, 0, n, 0) for n in range(3))
    kept.put(one, tile())
    kept.put(two, tile())
    kept.get(one)
    kept.put(three, tile())
    assert kept.bytes == 64
    kept.get(one)
    with pytest.raises(KeyError):
        kept.get(two)
    kept.put(one, None)
    assert kept.bytes == 32
    kept.forget(0)
    assert kept.bytes == 0


def test_many_threads_may_ask_at_once() -> None:
    case = call(520, torch.float32, "causal")
    pattern, alone = made(case), made(case)
    places = [(level, x, y) for level in range(3) for x, y in product(*map(range, alone.tiles(level)))]
    wanted = [alone.tile(*at) for at in places]
    with ThreadPoolExecutor(4) as pool:
        for got, x in zip(pool.map(lambda at: pattern.tile(*at), places), wanted, strict=True):
            assert torch.equal(got, x)


def test_a_pattern_says_what_it_is() -> None:
    pattern = Pattern(torch.zeros(1, 4, 300, 8).bfloat16(), torch.zeros(1, 2, 400, 8).bfloat16())
    assert repr(pattern) == "Pattern(B=1, Hq=4, Tq=300, Tk=400, from bfloat16 on cpu, 2 zoom levels)"


# ---------------------------------------------------------------------------------------------------------- messages

SMALL = {"query": torch.zeros(1, 4, 300, 8), "key": torch.zeros(1, 2, 400, 8)}
WRONG: dict[str, tuple[Callable[[Pattern], object], str]] = {
    "what": (
        lambda p: p.crop(EVERYTHING, EVERYTHING, what="score"),
        'what: expected "weight", "logit" or "contribution", got \'score\'. A weight is after the softmax',
    ),
    "contribution": (
        lambda p: p.crop(EVERYTHING, EVERYTHING, what="contribution"),
        'what: expected "weight" or "logit" of a pattern made without value, got "contribution". '
        "Make it with Pattern(query, key, value=value, ...).",
    ),
    "queries": (
        lambda p: p.crop(slice(0, 301), EVERYTHING),
        "queries: expected a slice without a step or one position, within Tq = 300, got slice(0, 301, None). "
        "Ends count from 0 to 300",
    ),
    "keys": (
        lambda p: p.crop(EVERYTHING, slice(-401, None)),
        "keys: expected a slice without a step or one position, within Tk = 400, got slice(-401, None, None). "
        "Ends count from 0 to 400",
    ),
    "step": (
        lambda p: p.crop(EVERYTHING, slice(0, 9, 2)),
        "keys: expected a slice without a step or one position, within Tk = 400, got slice(0, 9, 2).",
    ),
    "head": (
        lambda p: p.head(4),
        "head: expected an integer from 0 to Hq - 1 = 3 (or negative, from the end), got 4. There are 4, counted from 0.",
    ),
    "batch": (
        lambda p: p.head(0, batch=-2),
        "batch: expected an integer from 0 to B - 1 = 0 (or negative, from the end), got -2. There are 1",
    ),
    "level": (
        lambda p: p.tile(2, 0, 0),
        "level: expected an integer from 0 to levels - 1 = 1 (or negative, from the end), got 2. There are 2",
    ),
    "x": (
        lambda p: p.tile(1, 2, 0),
        "x: expected 0 <= x < 2, the tiles along the keys of level 1, got 2. Pattern.tiles(level) says how many there are.",
    ),
    "y": (
        lambda p: p.tile(0, 0, -1),
        "y: expected 0 <= y < 1, the tiles along the queries of level 0, got -1. Pattern.tiles(level) says",
    ),
    "pool": (
        lambda p: p.tile(0, 0, 0, pool="sum"),
        'pool: expected "mean" or "max", got \'sum\'. A cell holds both, one is shown.',
    ),
    "row_weights": (
        lambda p: p.received(torch.zeros(4)),
        "row_weights: expected a shape that broadcasts to (B=1, Hq=4, Tq=300), got (4,). Give every query of the call",
    ),
    "lse": (
        lambda p: Pattern(**SMALL, lse=torch.zeros(1, 4, 301)),
        "lse: expected floating-point numbers, one a query: (B=1, Hq=4, Tq=300), got torch.float32 of shape (1, 4, 301). "
        "Pass observe(...).lse of the same call, or leave it out.",
    ),
    "mask": (lambda p: Pattern(**SMALL, mask=torch.zeros(300, 400)), "mask: expected a mask object, or a bool tensor"),
    "alibi": (lambda p: Pattern(**SMALL, bias=ALiBi(3)), "ALiBi slopes: expected one number a query head"),
    "dense": (
        lambda p: Pattern(**SMALL, mask=Dense(torch.ones(2, 2).bool())),
        "mask: expected a shape that broadcasts",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_asked_for_is_refused_in_words(name: str) -> None:
    ask, text = WRONG[name]
    with pytest.raises(ArgumentError, match="^" + re.escape(text)):
        ask(Pattern(**SMALL))
