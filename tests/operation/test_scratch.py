"""Scratch memory of `tiled`, kept between calls: no call may see what another left, or be kept from writing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from clearhead import Causal, attention, observe
from clearhead.kernels import tiled


def call(seed: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(1, 2, 40 + 30 * seed, 8, generator=generator).to(dtype) for _ in range(3))
    seen = observe(q, k, v, mask=Causal(), impl="tiled")
    return attention(q, k, v, mask=Causal(), impl="tiled"), seen.entropy


def test_after_a_call_under_inference_mode_an_ordinary_one_may_write() -> None:
    with torch.inference_mode():
        expected = [x.clone() for x in call(3)]
    assert all(torch.equal(a, b) for a, b in zip(call(3), expected, strict=True))


def test_longer_and_shorter_calls_and_other_dtypes_leave_nothing_behind() -> None:
    tiled._idle.clear()
    alone = [call(seed) for seed in range(4)]
    for dtype in (torch.float64, torch.float32):
        for seed in (3, 0, 2, 1, 3):
            found = call(seed, dtype)
            for a, b in zip(found, alone[seed], strict=True):
                torch.testing.assert_close(a.float(), b, atol=1e-5, rtol=1e-5)
                assert a.dtype == dtype


def test_threads_at_once_have_scratch_memory_of_their_own() -> None:
    alone = [call(seed) for seed in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for seed, found in zip([n % 4 for n in range(80)], pool.map(call, [n % 4 for n in range(80)]), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(found, alone[seed], strict=True))
    assert 0 < len(tiled._idle) <= tiled.KEPT_WORKSPACES


def test_a_call_inside_another_has_its_own() -> None:
    like = torch.empty(0)
    with tiled.workspace(like) as outer:
        mine = outer.take("logits", 100).fill_(7.0)
        call(2)
        with tiled.workspace(like) as inner:
            assert inner is not outer
        assert bool((mine == 7.0).all())
