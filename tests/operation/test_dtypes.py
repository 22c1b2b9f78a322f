"""The tolerance rule, for output and gradients of every dtype; and the rule itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from operation_cases import COUNTS, IMPLS, Case
from torch import Tensor

from clearhead import ALiBi, Causal, Documents, Padding, Window, attention, observe
from clearhead.errors import ArgumentError
from clearhead.testing import assert_within_tolerance, compare, math_path

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": Causal()},
    "window": {"mask": Window(50)},
    "documents": {"mask": Causal() & Documents(torch.arange(260) // 41)},
    "padding": {"mask": Padding(torch.tensor([100, 260]))},
    "dense": {"mask": torch.rand(4, 200, 260, generator=torch.Generator().manual_seed(3))[None] < 0.7},
    "bias": {"bias": torch.randn(4, 200, 260, generator=torch.Generator().manual_seed(4))[None], "mask": Causal()},
    "alibi": {"bias": ALiBi(4), "mask": Causal()},
    "softcap": {"softcap": 4.0, "mask": Causal()},
    "sinks": {"sinks": torch.tensor([0.0, 1.0, -2.0, 5.0]), "mask": Causal()},
    "scale": {"scale": 1.5},
}


def case(name: str, dtype: torch.dtype) -> Case:
    shapes = (2, 4, 200, 40), (2, 2, 260, 40), (2, 2, 260, 24)
    return Case(*map(torch.randn, shapes), OPTIONS[name]).to(dtype)


def output_and_gradients(call: Any, tensors: tuple[Tensor, ...], upstream: Tensor) -> list[Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = call(*leaves)
    return [out.detach(), *torch.autograd.grad(out, leaves, upstream.to(out.dtype))]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_output_and_gradients_lose_no_more_than_twice_or_thrice_what_pytorch_loses(
    name: str, dtype: torch.dtype, impl: str
) -> None:
    one = case(name, dtype)
    exact = one.to(torch.float64)
    upstream = torch.randn(2, 4, 200, 24).to(dtype)
    rest = {n: one.options.get(n) for n in ("scale", "softcap", "sinks")}
    found = output_and_gradients(lambda q, k, v: attention(q, k, v, **one.options, impl=impl), one.args, upstream)
    truth = output_and_gradients(
        lambda q, k, v: attention(q, k, v, **exact.options, impl="reference"), exact.args, upstream.double()
    )
    plain = output_and_gradients(
        lambda q, k, v: math_path(q, k, v, visible=one.visible, bias=one.added, **rest), one.args, upstream
    )
    for what, got, wanted, baseline in zip(("output", "query", "key", "value"), found, truth, plain, strict=True):
        assert got.dtype == dtype
        assert_within_tolerance(got, wanted, baseline, gradient=what != "output", what=what)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_half_precision_goes_in_and_out_and_measures_in_float32(dtype: torch.dtype, impl: str) -> None:
    seen = observe(*case("causal", dtype).args, mask=Causal(), impl=impl)
    assert seen.output.dtype == dtype
    assert {x.dtype for n, x in seen.values.items() if n not in ("output", "top_keys", *COUNTS)} == {torch.float32}


@pytest.mark.tiny
@pytest.mark.parametrize("impl", IMPLS)
def test_half_precision_accumulates_in_float32(impl: str) -> None:
    """4096 equal weights: added in float16 they would stop growing at 2048 summands of this size."""
    q, k, v = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 4096, 8), torch.ones(1, 1, 4096, 8)
    for dtype in (torch.float16, torch.bfloat16):
        out = attention(q.to(dtype), k.to(dtype), v.to(dtype), impl=impl)
        assert torch.equal(out, torch.ones(1, 1, 1, 8, dtype=dtype))
    seen = observe(q.half(), k.half(), v.half(), impl=impl)
    torch.testing.assert_close(seen.lse, torch.full((1, 1, 1), 4096.0).log())


def test_float64_stays_float64() -> None:
    one = case("causal", torch.float64)
    seen = observe(*one.args, **one.options)
    assert seen.output.dtype == seen.lse.dtype == torch.float64
    wanted = math_path(*one.args, visible=one.visible)
    torch.testing.assert_close(seen.output, wanted, rtol=1e-13, atol=1e-13)


# ---------------------------------------------------------------------------------------------- the rule itself


def test_the_rule_says_both_numbers_and_the_place() -> None:
    truth = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    with pytest.raises(
        AssertionError, match=r"dQ differs: error 5.000e-01 > allowed 3.000e-01 = 3 x 1.000e-01 .* \(1, 0\)"
    ):
        assert_within_tolerance(
            torch.tensor([[1.0, 2.0], [3.5, 4.0]]), truth, truth.float() + 0.1, gradient=True, what="dQ"
        )


def test_the_rule_takes_a_rounding_and_not_two() -> None:
    truth = torch.ones(1, dtype=torch.float64)
    eps = torch.finfo(torch.float32).eps
    assert compare(torch.tensor([1 + 2 * eps]), truth, torch.ones(1)).ok
    assert not compare(torch.tensor([1 + 3 * eps]), truth, torch.ones(1)).ok
    assert compare(torch.tensor([1 + 3 * eps]), truth, torch.ones(1), magnitude=2.0).ok


@pytest.mark.parametrize(
    ("got", "truth", "ok"),
    [
        ("nan", "nan", True),
        ("inf", "inf", True),
        ("-inf", "inf", False),
        ("0", "nan", False),
        ("nan", "0", False),
        ("inf", "0", False),
    ],
)
def test_the_rule_places_nan_and_infinity(got: str, truth: str, ok: bool) -> None:
    a, b = torch.tensor([float(got), 1.0]), torch.tensor([float(truth), 1.0], dtype=torch.float64)
    assert compare(a, b, b.float()).ok is ok


def test_a_broken_baseline_excuses_nothing() -> None:
    truth = torch.ones(2, dtype=torch.float64)
    assert not compare(torch.tensor([1.0, 2.0]), truth, torch.tensor([1.0, torch.nan])).ok
    assert compare(torch.ones(0), torch.ones(0).double(), torch.ones(0)).ok


def test_the_rule_compares_equal_shapes_only() -> None:
    with pytest.raises(ArgumentError, match=r"baseline: expected the shape of got, \(2,\), got \(3,\)"):
        compare(torch.ones(2), torch.ones(2), torch.ones(3))
