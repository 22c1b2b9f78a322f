"""Properties over random calls: three oracles written by three different hands agree, in output, gradients and observables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from operation_cases import (
    COUNTS,
    IMPLS,
    PER_QUERY,
    PRECISE,
    RANKED,
    Case,
    asked,
    assert_observed_right,
    assert_right,
    cases,
    gradients,
    listed_numbers,
    math_baseline,
    observed_terms,
    onnx_reference,
    output_terms,
    sdpa,
    small_tiles,
    weights_of,
)
from torch import Tensor

from clearhead import ALiBi, attention, observe
from clearhead.testing import assert_within_tolerance

PRECISELY = ["reference", "tiled"]  # in float64
FAST = ["cpu", "tiled"]


def close(got: Tensor, wanted: Tensor, what: str, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-10, atol=atol, msg=lambda text: f"{what}: {text}")


@pytest.mark.parametrize("impl", PRECISELY)
@given(case=cases(least=1))
def test_output_equals_onnx_reference(impl: str, case: Case) -> None:
    with small_tiles():
        close(attention(*case.args, **case.options, impl=impl), onnx_reference(case), "output")


@pytest.mark.parametrize("impl", PRECISELY)
@given(case=cases(least=1, plain=True))
def test_output_equals_sdpa(impl: str, case: Case) -> None:
    with small_tiles():
        close(attention(*case.args, **case.options, impl=impl), sdpa(case), "output")


@pytest.mark.parametrize("oracle", [onnx_reference, sdpa])
@given(case=cases(least=1), data=st.data())
def test_output_of_the_compiled_kernels_is_what_others_compute_in_float64(
    oracle: Callable[[Case], Tensor], case: Case, data: st.DataObject
) -> None:
    case = (case if oracle is onnx_reference else data.draw(cases(least=1, plain=True))).to(torch.float32)
    got = attention(*case.args, **case.options, impl="cpu")
    truth = oracle(case.to(torch.float64))
    assert_within_tolerance(got, truth, math_baseline(case), magnitude=output_terms(case), what=oracle.__name__)


@given(case=cases())
def test_tiled_equals_reference_in_float64_at_every_size_down_to_zero(case: Case) -> None:
    with small_tiles():
        close(
            attention(*case.args, **case.options, impl="tiled"),
            attention(*case.args, **case.options, impl="reference"),
            "output",
        )


@given(case=cases())
def test_gradients_of_tiled_equal_those_of_reference(case: Case) -> None:
    B, Hq, Tq, _ = case.sizes
    upstream = (
        torch.arange(B * Hq * Tq * case.value.shape[-1], dtype=torch.float64)
        .sin()
        .view(B, Hq, Tq, case.value.shape[-1])
    )

    def found(impl: str) -> dict[str, Tensor]:
        with small_tiles():
            return gradients(case, upstream, lambda c: attention(*c.args, **c.options, impl=impl))

    wanted = found("reference")
    for name, got in found("tiled").items():
        close(got, wanted[name], f"gradient of {name}", atol=1e-11)


@given(case=cases(), data=st.data())
def test_observables_of_tiled_equal_those_of_reference_in_float64(case: Case, data: st.DataObject) -> None:
    observables = asked(case, data.draw)
    wanted = observe(*case.args, **case.options, observables=observables, impl="reference")
    with small_tiles():
        seen = observe(*case.args, **case.options, observables=observables, impl="tiled")
    assert set(seen.values) == set(wanted.values)
    for name in wanted.values:
        if name in COUNTS:
            assert torch.equal(*torch.broadcast_tensors(seen.values[name], wanted.values[name])), name
        elif name not in RANKED:
            close(seen.values[name], wanted.values[name], name, atol=1e-11)
    for keys, numbers in RANKED.items():
        if keys in seen.values:
            listed = listed_numbers(keys, seen, wanted, weights_of(case))
            torch.testing.assert_close(
                listed, seen.values[numbers].float(), msg=lambda text, keys=keys: f"{keys}: {text}"
            )


@pytest.mark.parametrize("impl", IMPLS)
@given(case=cases(least=1))
def test_output_and_gradients_stay_within_the_tolerance_of_float32(impl: str, case: Case) -> None:
    with small_tiles():
        assert_right(case.to(torch.float32), impl)


@pytest.mark.parametrize("impl", FAST)
@given(case=cases(least=1), data=st.data())
def test_observables_in_float32_lose_no_more_than_the_definition_in_float32(
    impl: str, case: Case, data: st.DataObject
) -> None:
    with small_tiles():
        assert_observed_right(case.to(torch.float32), asked(case, data.draw), impl)


@given(case=cases())
def test_the_compiled_kernels_take_every_size_down_to_zero(case: Case) -> None:
    case = case.to(torch.float32)
    wanted = attention(*case.args, **case.options, impl="reference")
    got = attention(*case.args, **case.options, impl="cpu")
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    seen = observe(*case.args, **case.options, impl="cpu")
    for name, x in observe(*case.args, **case.options, impl="reference").values.items():
        assert torch.broadcast_shapes(seen.values[name].shape, x.shape) == x.shape, name
    for name, x in gradients(case, torch.ones_like(got), lambda c: attention(*c.args, **c.options, impl="cpu")).items():
        leaf = getattr(case, name, case.options.get(name))
        assert x.shape == leaf.shape, name


@pytest.mark.parametrize("impl", FAST)
@given(case=cases(least=1))
def test_looking_changes_neither_the_output_nor_the_gradients(impl: str, case: Case) -> None:
    case = case.to(PRECISE[impl])

    def run(call: Any) -> list[Tensor]:
        leaves = [x.clone().requires_grad_() for x in case.args]
        out = call(*leaves)
        return [out, *torch.autograd.grad(out.sin().sum(), leaves)]

    with small_tiles():
        plain = run(lambda q, k, v: attention(q, k, v, **case.options, impl=impl))
        watched = run(lambda q, k, v: observe(q, k, v, **case.options, impl=impl).output)
    for got, wanted, name in zip(watched, plain, ("output", "query", "key", "value"), strict=True):
        if impl == "cpu":
            assert torch.equal(got, wanted), name
        else:
            close(got, wanted, name)


@pytest.mark.parametrize("impl", FAST)
@given(case=cases(least=1))
def test_every_measured_number_is_finite_or_says_that_nothing_was_seen(impl: str, case: Case) -> None:
    case = case.to(PRECISE[impl])
    with small_tiles():
        seen = observe(*case.args, **case.options, impl=impl)
    sees = torch.isfinite(seen.lse)
    for name in PER_QUERY:
        if name in seen.values and name not in ("lse", "max_logit"):
            assert bool(torch.isfinite(seen.values[name]).all()), name
    assert bool((seen.lse[~sees] == -torch.inf).all())
    assert bool((seen.output[~sees] == 0).all())
    rounding = 1e-12 if impl == "tiled" else observed_terms("entropy", case, seen.lse) * torch.finfo(torch.float32).eps
    assert bool((seen.entropy >= -rounding).all())
    assert bool((seen.entropy_share <= 1 + 1e3 * rounding).all())


@pytest.mark.parametrize("impl", FAST)
@given(case=cases(least=1, plain=True), draw=st.data())
def test_alibi_equals_its_own_numbers_given_as_a_bias(impl: str, case: Case, draw: st.DataObject) -> None:
    case = case.to(PRECISE[impl])
    alibi = Case(
        *case.args,
        {**case.options, "bias": ALiBi(case.sizes[1], align=draw.draw(st.sampled_from(["end", "start", -2, 7])))},
    )
    spelt = Case(*case.args, {**case.options, "bias": alibi.added})
    if impl == "cpu":
        assert_right(alibi, impl)
        assert_right(spelt, impl)
        return
    with small_tiles():
        got = attention(*alibi.args, **alibi.options, impl=impl)
        close(got, attention(*spelt.args, **spelt.options, impl=impl), "output")
