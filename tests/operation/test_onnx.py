"""The ONNX Attention conformance cases (opsets 23 to 25), under their own names, through every implementation.

What ONNX says differently is translated here and only here: heads folded into the width, a cache as separate inputs,
`j <= i + offset` with an offset that depends on which cache there is, windows that count their ends, one tensor for masks
of any kind and rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx.backend.test.case.node.attention
import pytest
import torch
from onnx.backend.test.case.node import _NodeTestCases
from torch import Tensor

from clearhead import All, Causal, Padding, attention, observe, reference
from clearhead.masks import Dense, Mask, Window

CASES = {
    case.name: case
    for case in _NodeTestCases
    if case.name.startswith("test_attention") and not case.name.endswith("_expanded")
}
UNBOUNDED = 1 << 30  # a window so wide that it has no edge
RAW, CAPPED, BIASED, WEIGHTS = range(4)  # qk_matmul_output_mode


class Call(NamedTuple):
    """One ONNX case in our terms."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask
    bias: Tensor | None
    scale: float | None
    softcap: float | None

    def options(self) -> dict[str, Any]:
        return {"mask": self.mask, "bias": self.bias, "scale": self.scale, "softcap": self.softcap}


def tensor(array: np.ndarray) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def split_heads(x: Tensor, heads: int | None) -> Tensor:
    """(B, T, H·D) -> (B, H, T, D); four dimensions stay."""
    return x if x.ndim == 4 else x.unflatten(-1, (heads, -1)).transpose(1, 2)


def translated(inputs: Mapping[str, Tensor], attributes: Mapping[str, Any]) -> Call:
    query = split_heads(inputs["Q"], attributes.get("q_num_heads"))
    key, value = (split_heads(inputs[name], attributes.get("kv_num_heads")) for name in "KV")
    offset: int | Tensor = 0
    mask: Mask = All()
    if "past_key" in inputs:
        offset = inputs["past_key"].shape[2]
        key = torch.cat([inputs["past_key"], key], dim=2)
        value = torch.cat([inputs["past_value"], value], dim=2)
    if "nonpad_kv_seqlen" in inputs:
        offset = inputs["nonpad_kv_seqlen"] - query.shape[2]
        mask = mask & Padding(inputs["nonpad_kv_seqlen"])
    if attributes.get("is_causal"):
        mask = mask & Causal(align=offset)
    left, right = attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)
    if left >= 0 or right >= 0:
        ends = (UNBOUNDED if n < 0 else n for n in (left, right))
        mask = mask & Window(next(ends) + 1, right=next(ends), align=offset)
    given, bias = inputs.get("attn_mask"), None
    if given is not None:
        # The mask may be shorter than the keys, and of rank 1 to 4, aligned at the right.
        fill = False if given.dtype == torch.bool else -torch.inf
        given = torch.nn.functional.pad(given, (0, key.shape[2] - given.shape[-1]), value=fill)
        given = given[(None,) * (4 - given.ndim)]
        if given.dtype == torch.bool:
            mask = mask & Dense(given)
        else:
            bias = given
    return Call(query, key, value, mask, bias, attributes.get("scale"), attributes.get("softcap") or None)


def score_output(call: Call, mode: int) -> Tensor:
    """The fourth output of the ONNX operator, from the reference's full pattern."""
    B, _, Tq, _ = call.query.shape
    Tk = call.key.shape[2]
    everything = torch.ones(1, 1, Tq, Tk, dtype=torch.bool)
    scale = call.query.shape[-1] ** -0.5 if call.scale is None else call.scale
    options: dict[str, Any] = {"visible": everything, "scale": scale}
    if mode >= CAPPED:
        options["softcap"] = call.softcap
    if mode >= BIASED:
        options |= {"visible": call.mask.dense(Tq, Tk, B=B).expand(B, -1, -1, -1)}
        options["bias"] = None if call.bias is None else call.bias.float()
    found = reference.pattern(call.query.float(), call.key.float(), **options)
    return (found.weights if mode == WEIGHTS else found.logits).to(call.query.dtype)


def close(got: Tensor, expected: np.ndarray, case: Any, what: str) -> None:
    wanted = tensor(expected)
    assert got.dtype == wanted.dtype
    # Half-precision expectations were made in half precision throughout: their own error is a few of its roundings.
    slack = {torch.float16: 4e-3, torch.bfloat16: 3e-2}.get(got.dtype, 1e-5)
    torch.testing.assert_close(
        got, wanted, rtol=max(case.rtol, slack), atol=max(case.atol, slack), msg=what_differs(what)
    )


def what_differs(what: str):  # type: ignore[no-untyped-def]
    return lambda text: f"{what}: {text}"


def test_the_installed_onnx_has_the_93_cases_this_file_was_written_for() -> None:
    assert onnx.__version__ == "1.23.2"
    assert len(CASES) == 93


@pytest.mark.parametrize("impl", ["reference", "tiled", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_onnx(name: str, impl: str) -> None:
    case = CASES[name]
    (node,) = case.model.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    arrays, expected = case.data_sets[0]
    inputs = dict(zip((n for n in node.input if n), map(tensor, arrays), strict=True))
    outputs = dict(zip(("Y", "present_key", "present_value", "scores"), node.output, strict=False))
    wanted = dict(zip((k for k, n in outputs.items() if n), expected, strict=True))

    call = translated(inputs, attributes)
    out = attention(call.query, call.key, call.value, **call.options(), impl=impl)
    assert torch.equal(observe(call.query, call.key, call.value, **call.options(), impl=impl).output, out)
    if inputs["Q"].ndim == 3:
        out = out.transpose(1, 2).flatten(2)
    close(out, wanted.pop("Y"), case, "Y")
    for side, x in (("present_key", call.key), ("present_value", call.value)):
        if side in wanted:
            close(x, wanted.pop(side), case, side)
    if "scores" in wanted:
        mode = attributes.get("qk_matmul_output_mode", RAW)
        close(score_output(call, mode), wanted.pop("scores"), case, f"scores (mode {mode})")
    assert not wanted, f"outputs nobody compared: {list(wanted)}"
