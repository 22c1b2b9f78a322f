"""One rank of two: calls on which the ranks disagree, and what each raises; DTensors; a rank that does not come."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import clearhead
from clearhead import Causal, Documents, Observables, Window, distributed
from clearhead.errors import ClearheadError

RANK = int(os.environ["RANK"])
mesh = distributed.start(timeout=240)


def heads(t: int = 3, **more: Any) -> list[torch.Tensor]:
    return [torch.ones(1, 4, t, 8, **more) for _ in range(3)]


def either(first: Any, second: Any) -> Any:
    return (first, second)[RANK]


def versions() -> Any:
    before = clearhead.__version__
    try:
        if RANK == 1:
            clearhead.__version__ = "9.9"
        return distributed.attention(*heads(), mesh)
    finally:
        clearhead.__version__ = before


def some(axis: int, given: Any) -> list[Any]:
    tensors: list[Any] = heads(6)
    return [distribute_tensor(x, mesh, [given(axis)]) for x in tensors]


CALLS: dict[str, Callable[[], Any]] = {
    "mask": lambda: distributed.attention(*heads(), mesh, mask=either(Causal(), Window(4))),
    "documents": lambda: distributed.attention(*heads(), mesh, mask=Documents(torch.tensor([0] * 5 + [RANK]))),
    "softcap": lambda: distributed.attention(*heads(), mesh, softcap=either(None, 3.0)),
    "scheme": lambda: distributed.attention(*heads(), mesh, scheme=either("heads", "gather")),
    "dtype": lambda: distributed.attention(*heads(dtype=either(torch.float32, torch.float64)), mesh),
    "heads": lambda: distributed.attention(*[x[:, : either(4, 2)] for x in heads()], mesh),
    "gradient": lambda: distributed.attention(*heads(requires_grad=bool(RANK)), mesh),
    "observables": lambda: distributed.observe(*heads(), mesh, observables=Observables(top_k=2 + RANK)),
    "call": lambda: either(distributed.attention, distributed.observe)(*heads(), mesh),
    "versions": versions,
    "a fault here": lambda: distributed.attention(
        heads()[0], either(heads()[1], heads()[1][..., :5]), heads()[2], mesh
    ),
    "a fault of all": lambda: distributed.attention(*heads(), mesh, mask=Documents(torch.zeros(5, dtype=torch.int64))),
    "rows": lambda: distributed.observe(*heads(), mesh, observables=Observables(rows=(6,))),
    "zigzag": lambda: distributed.attention(*heads(either(1, 5)), mesh, placement="zigzag"),
    "heads that ranks do not divide": lambda: distributed.attention(*[x[:, :3] for x in heads()], mesh, scheme="heads"),
    "a scheme of no name": lambda: distributed.attention(*heads(), mesh, scheme="ring"),  # type: ignore[arg-type]
    "a DTensor by heads": lambda: distributed.attention(*some(1, Shard), mesh),
    "a DTensor that is whole": lambda: distributed.attention(*some(1, lambda _: Replicate()), mesh),
    "a dimension of no name": lambda: distributed.attention(
        *heads(), init_device_mesh("cpu", (1, 2), mesh_dim_names=("batch", "tokens"))
    ),
    "parts of another length": lambda: distributed.join(torch.zeros(1, 2, 4, 3), mesh, 10),
}


def dtensors() -> str:
    """DTensors in, a DTensor out, with gradients; a mesh of two dimensions."""
    torch.manual_seed(0)
    whole = [torch.randn(2, 4, 7, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    truth = clearhead.attention(*whole, mask=Causal())
    right = torch.autograd.grad(truth.square().sum(), whole)
    square = init_device_mesh("cpu", (1, 2), mesh_dim_names=("batch", "sequence"))
    places = ((mesh, [Shard(2)]), (square, [Replicate(), Shard(2)]))
    for where, placements in places:
        mine = [distribute_tensor(x.detach(), where, placements).requires_grad_() for x in whole]
        out = distributed.attention(*mine, where, mask=Causal())
        if tuple(out.shape) != (2, 4, 7, 8) or not torch.allclose(out.full_tensor(), truth):
            return f"output {out.shape}"
        out.square().sum().backward()
        for x, grad in zip(mine, right, strict=True):
            if x.grad is None or not torch.allclose(x.grad.full_tensor(), grad):
                return "gradient"
        seen = distributed.observe(*mine, where, mask=Causal())
        if not torch.allclose(seen.whole().output, truth):
            return "observed output"
    parts = [distributed.split(x, mesh, placement="zigzag") for x in whole]
    back = distributed.join(parts[0], mesh, 7, placement="zigzag")
    if not torch.equal(back, whole[0]):
        return "split and join"
    if distributed.positions(7, mesh).tolist() != either([0, 1, 2, 3], [4, 5, 6]):
        return "positions"
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = distributed.attention(*(x.detach().float() for x in parts), mesh, placement="zigzag")
    return "" if half.dtype == torch.bfloat16 else f"autocast {half.dtype}"


def gradients() -> str:
    """What was measured raises where a loss flows back into it, and nowhere else."""
    torch.manual_seed(0)
    parts = [distributed.split(torch.randn(1, 4, 6, 8), mesh).requires_grad_() for _ in range(3)]
    for scheme in ("heads", "gather"):
        seen = distributed.observe(*parts, mesh, mask=Causal(), scheme=scheme)
        for observation in (seen, seen.whole()):
            for name in ("entropy", "received", "entropy_share"):
                try:
                    (observation.output.sum() + getattr(observation, name).sum()).backward(retain_graph=True)
                    return f"{name} raised nothing"
                except ClearheadError as error:
                    text = str(error)
        parts[0].grad = None
        seen.output.sum().backward()  # the output's are there
        if parts[0].grad is None or seen.top_keys.requires_grad or seen.detach().entropy.requires_grad:
            return "other gradients"
    with torch.no_grad():
        if distributed.observe(*parts, mesh).entropy.requires_grad:
            return "without gradients"
    if distributed.observe(*(x.detach() for x in parts), mesh).entropy.requires_grad:
        return "of nothing that requires them"
    return text


def main() -> None:
    found = {"dtensors": dtensors(), "gradients": gradients()}
    for name, call in CALLS.items():
        try:
            call()
            found[name] = "nothing was raised"
        except ClearheadError as error:
            found[name] = f"{type(error).__name__}: {error}"
    # Every error left the ranks in step:
    found["after"] = str(tuple(distributed.attention(*heads(), mesh).shape))
    begun = time.monotonic()
    if RANK == 0:
        try:
            distributed.attention(*heads(), mesh, timeout=0.5)
        except ClearheadError as error:
            found["late"] = f"{type(error).__name__}: {error}"
        found["waited"] = str(time.monotonic() - begun < 120)
    else:
        time.sleep(2.0)
    Path(sys.argv[1]).write_text(json.dumps(found))
    os._exit(0)  # rank 1 would wait for a group that rank 0 has given up


if __name__ == "__main__":
    main()
