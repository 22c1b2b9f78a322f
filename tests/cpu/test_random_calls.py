"""Random shapes and masks over several blocks and strips: output, gradients and observations against float64."""

from __future__ import annotations

import os

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operation.operation_cases import Case, asked, assert_observed_right, assert_right, cases

MANY = 1000 if os.environ.get("HYPOTHESIS_PROFILE") == "long" else 200
# Blocks are of 128 keys, strips of up to 32 queries, tasks of four strips; few queries are decoded.
DTYPES = st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16])


def decoding(case: Case) -> Case:
    """The last few queries of a call, as they are decoded."""
    few = max(1, case.query.shape[2] % 5)
    options = {}
    for name, x in case.options.items():
        by_query = name in ("mask", "bias") and isinstance(x, torch.Tensor) and x.shape[-2] > 1
        options[name] = x[..., -few:, :] if by_query else x
    mask = options.get("mask")
    if mask is not None and not isinstance(mask, torch.Tensor):
        B, _, Tq, Tk = case.sizes
        options["mask"] = mask.dense(Tq, Tk, B=B)[:, :, -few:]
    return Case(case.query[:, :, -few:], case.key, case.value, options)


@settings(max_examples=MANY)
@given(case=cases(least=1, longest=300), dtype=DTYPES)
def test_random_calls_are_right(case: Case, dtype: torch.dtype) -> None:
    assert_right(case.to(dtype), "cpu")


@settings(max_examples=MANY // 2)
@given(case=cases(least=1, longest=300), dtype=DTYPES)
def test_random_calls_of_few_queries_are_right(case: Case, dtype: torch.dtype) -> None:
    assert_right(decoding(case).to(dtype), "cpu", backward=False)


@settings(max_examples=MANY // 2)
@given(case=cases(least=1, longest=300), data=st.data())
def test_random_calls_are_observed_right(case: Case, data: st.DataObject) -> None:
    case = case.to(torch.float32)
    assert_observed_right(case, asked(case, data.draw), "cpu")
