"""Answers to what a page asks: facts as JSON, numbers as they are in memory, in one piece of bytes.

Layout, little-endian: the length of the JSON as uint32, the JSON in UTF-8, then every array, each beginning at a multiple of
8 bytes. The JSON is the facts and, under `arrays`, a list of `{name, dtype, shape, offset}`, offsets counted from the first
multiple of 8 behind the JSON.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Shaped
from torch import Tensor

from clearhead.inline import inert

KINDS = {"float32": "<f4", "float64": "<f8", "uint16": "<u2", "uint8": "|u1", "int32": "<i4"}


@dataclass(frozen=True)
class Answer:
    """Facts that JSON can hold, and arrays by name, of the dtypes in `KINDS`."""

    facts: dict[str, Any]
    arrays: dict[str, Shaped[np.ndarray, "..."]] = field(default_factory=dict)

    def json(self) -> str:
        """The facts alone. Nothing in it can end an element that it may stand in."""
        return inert(json.dumps(self.facts, ensure_ascii=True, allow_nan=False, separators=(",", ":")))

    def packed(self) -> bytes:
        """Everything, as the module says."""
        listed: list[dict[str, Any]] = []
        bodies: list[tuple[int, bytes]] = []
        at = 0
        for name, array in self.arrays.items():
            body = np.ascontiguousarray(array).astype(KINDS[str(array.dtype)], copy=False).tobytes()
            listed.append({"name": name, "dtype": str(array.dtype), "shape": list(array.shape), "offset": at})
            bodies.append((at, body))
            at += -(-len(body) // 8) * 8
        head = Answer({**self.facts, "arrays": listed}).json().encode("utf-8")
        start = -(-(4 + len(head)) // 8) * 8
        out = bytearray(start + at)
        out[:4] = len(head).to_bytes(4, "little")
        out[4 : 4 + len(head)] = head
        for offset, body in bodies:
            out[start + offset : start + offset + len(body)] = body
        return bytes(out)


def unpack(data: bytes) -> Answer:
    """The answer that `packed` made these bytes of.

    >>> unpack(Answer({"a": 1}, {"x": np.zeros(3, np.float32)}).packed()).arrays["x"].shape
    (3,)
    """
    length = int.from_bytes(data[:4], "little")
    facts = json.loads(data[4 : 4 + length])
    start = -(-(4 + length) // 8) * 8
    arrays = {}
    for each in facts.pop("arrays"):
        count = math.prod(each["shape"])
        array = np.frombuffer(data, KINDS[each["dtype"]], count, start + each["offset"])
        arrays[each["name"]] = array.reshape(each["shape"])
    return Answer(facts, arrays)


def numbers(tensor: Tensor) -> Shaped[np.ndarray, "..."]:
    """A tensor as an array of a kind that can be packed."""
    array: Shaped[np.ndarray, "..."] = tensor.detach().cpu().numpy()
    return array if str(array.dtype) in KINDS else array.astype(np.int32)


def number(x: float) -> float | None:
    """JSON has no NaN and no infinity: what is not finite is null."""
    return x if math.isfinite(x) else None


def roots(values: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
    """Shares between 0 and 1 in 16 bits, as square roots: finer near 0, where maps live, than anyone can see."""
    packed: Shaped[np.ndarray, "..."] = np.rint(np.sqrt(np.clip(values, 0, 1)) * 0xFFFF).astype(np.uint16)
    return packed
