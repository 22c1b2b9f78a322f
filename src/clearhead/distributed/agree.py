"""Ranks meet before anything is computed: what each was called with is compared, and all of them go on or none does."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

import clearhead
from clearhead.errors import ArgumentError, RanksError, dtype_name, message

DIGEST = 4  # int64 words
WHOLE = (
    1 << 20
)  # tensors of up to so many numbers are compared by content, larger ones by their sum and some of their numbers
FAULT = "fault"
Facts = dict[str, str]


def meet(facts: Facts, numbers: tuple[int, ...], mesh: DeviceMesh, timeout: float) -> list[list[int]]:
    """Give every rank's `numbers` to every rank, if all came with the same facts. One small all-gather; a second to explain.

    Raises, on every rank alike, `ArgumentError` for the first fact that differs or the first rank's fault, and `RanksError`
    on those that are there when others fail or do not come within `timeout` seconds.
    """
    content = json.dumps(facts, ensure_ascii=False).encode()
    digest = hashlib.blake2b(content, digest_size=8 * DIGEST).digest()
    words = [int.from_bytes(digest[8 * n : 8 * n + 8], "little", signed=True) for n in range(DIGEST)]
    heads = _gathered(torch.tensor([*words, len(content), *numbers]), mesh, timeout, facts)
    same = all(torch.equal(head[:DIGEST], heads[0][:DIGEST]) for head in heads)
    if same and FAULT not in facts:
        return [head[DIGEST + 1 :].tolist() for head in heads]
    lengths = [int(head[DIGEST]) for head in heads]
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    told = _gathered(padded, mesh, timeout, facts)
    _explain([json.loads(bytes(x[:n].tolist())) for x, n in zip(told, lengths, strict=True)])
    raise RuntimeError("ranks that said different things agree")


def _explain(told: list[Facts]) -> None:
    """Raise what every rank raises."""
    for rank, facts in enumerate(told):
        if FAULT in facts:
            raise ArgumentError(f"rank {rank}: {facts[FAULT]}")
    for name in dict.fromkeys(name for facts in told for name in facts):
        answers = [facts.get(name, "nothing") for facts in told]
        for rank, answer in enumerate(answers):
            if answer != answers[0]:
                raise ArgumentError(
                    message(
                        name,
                        expected="the same on every rank",
                        got=f"{answers[0]} on rank 0 and {answer} on rank {rank}",
                        remedy="Make the same call on every rank, each with its own part of the sequence.",
                    )
                )


def _gathered(mine: Tensor, mesh: DeviceMesh, timeout: float, facts: Facts) -> list[Tensor]:
    """Every rank's tensor, all of one shape, on the CPU."""
    group = mesh.get_group()
    here = mine.to(mesh.device_type)
    found = [torch.empty_like(here) for _ in range(mesh.size())]
    try:
        work = dist.all_gather(found, here, group=group, async_op=True)
        if work is None or work.wait(timedelta(seconds=timeout)) is False:
            raise RuntimeError("no answer")
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RanksError(
            message(
                facts.get("call", "ranks"),
                expected=f"all {mesh.size()} ranks of the mesh to meet within {timeout:g} s",
                got=f"no answer from some on rank {mesh.get_local_rank()} ({reason})",
                remedy="Look for the first error of the other ranks; every rank must make every call.",
            )
        ) from error
    return [x.cpu() for x in found]


def told(x: object) -> str:
    """An argument as a fact: readable, and different wherever the argument would make a difference."""
    if isinstance(x, Tensor):
        return f"{dtype_name(x.dtype)} {tuple(x.shape)} #{_digest(x)}"
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        fields = [(field.name, getattr(x, field.name), field.default) for field in dataclasses.fields(x)]
        given = [f"{n}={told(v)}" for n, v, default in fields if isinstance(v, Tensor) or v != default]
        return f"{type(x).__name__}({', '.join(given)})"
    if isinstance(x, Mapping):
        return "{" + ", ".join(f"{n}: {told(v)}" for n, v in x.items()) + "}"
    return repr(x)


def _digest(x: Tensor) -> str:
    """A few letters of a tensor's content."""
    flat: Any = x.detach().flatten()
    if flat.numel() > WHOLE:
        exact = torch.float64 if flat.is_floating_point() else torch.int64
        some = flat[:: flat.numel() // WHOLE].to(exact)
        flat = torch.cat([some, flat.sum(dtype=exact)[None]])
    content = flat.contiguous().cpu().view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(content, digest_size=4).hexdigest()


def versions() -> Facts:
    """What must be the same program on every rank."""
    return {"clearhead": clearhead.__version__, "torch": str(torch.__version__)}
