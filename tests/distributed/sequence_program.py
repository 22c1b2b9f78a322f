"""One rank: every case over the ranks, compared with the same call in one process. Writes {case: what differed, or ""}."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import clearhead
from clearhead import ALiBi, Causal, Documents, Observables, Padding, Prefix, Window, distributed
from clearhead.distributed.layout import Layout
from clearhead.masks import Dense

EXACT = torch.float64


@dataclass
class Case:
    """What one process is called with, and how its sequence lies over ranks."""

    B: int = 2
    Hq: int = 4
    Hk: int = 4
    Tq: int = 13
    Tk: int = 13
    D: int = 8
    Dv: int = 5
    options: dict[str, Any] = field(default_factory=dict)
    want: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = EXACT
    impl: str = "tiled"
    uneven: bool = False  # lengths of no rule


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def random_pairs(*shape: int) -> Tensor:
    return torch.rand(shape, generator=generator()) > 0.4


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(), dtype=EXACT)


def ids(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=generator())


def everything(**more: Any) -> dict[str, Any]:
    return {
        "sum_squares": True, "distance_histogram": True, "contributions": True, "top_k": 3, "map": 4, "rows": (0, -1, 5),
        "token_ids": ids(0, 4, 13), "key_groups": ids(-1, 3, 2, 13), "group_top_k": 2, "row_weights": numbers(2, 1, 13),
    } | more  # fmt: skip


PADDED = Padding(torch.tensor([13, 6]))
CASES: dict[str, Case] = {
    "plain": Case(want=everything()),
    "causal": Case(options={"mask": Causal()}, want=everything()),
    "causal, start": Case(options={"mask": Causal(align="start")}, Tk=9, want={"rows": (-1,), "map": 5}),
    "causal, offsets of samples": Case(options={"mask": Causal(align=torch.tensor([-2, 4]))}, want=everything()),
    "window": Case(options={"mask": Window(4, right=1)}, want=everything()),
    "prefix": Case(options={"mask": Prefix(torch.tensor([2, 7]))}, want=everything()),
    "padding": Case(options={"mask": Causal() & PADDED}, want=everything()),
    "left padding": Case(options={"mask": Causal() & Padding(torch.tensor([13, 6]), side="left")}, want=everything()),
    "documents": Case(options={"mask": Causal() & Documents(torch.tensor([0] * 5 + [1] * 8))}, want=everything()),
    "scattered documents": Case(options={"mask": Documents(ids(0, 3, 2, 13))}, want=everything()),
    "dense": Case(options={"mask": Dense(random_pairs(2, 4, 13, 13))}, want=everything()),
    "a bool tensor": Case(options={"mask": random_pairs(13, 13)}, want=everything()),
    "bias": Case(options={"bias": numbers(2, 4, 13, 13)}, want=everything()),
    "a hiding bias": Case(
        options={"bias": numbers(13, 13).masked_fill(~random_pairs(13, 13), -torch.inf)}, want=everything()
    ),
    "a bias of heads": Case(options={"bias": numbers(1, 4, 1, 1), "mask": Causal()}, want={"map": 3}),
    "alibi": Case(options={"bias": ALiBi(4)}, want=everything()),
    "alibi, start": Case(options={"bias": ALiBi(4, align="start"), "mask": Causal()}, Tk=17),
    "sinks": Case(options={"sinks": numbers(4), "mask": Causal()}, want=everything()),
    "softcap and scale": Case(options={"softcap": 2.0, "scale": 0.7, "mask": Causal()}, want=everything()),
    "groups": Case(Hq=8, Hk=2, options={"mask": Causal(), "sinks": numbers(8)}, want=everything()),
    "groups that no number divides": Case(Hq=6, Hk=3, options={"mask": Causal(), "bias": ALiBi(6)}, want=everything()),
    "one sample": Case(B=1, Hq=8, Hk=4, options={"mask": Window(3)}, want={"map": 2}),
    "cross": Case(Tq=26, Tk=13, options={"mask": random_pairs(26, 13)}, want={"map": 5, "rows": (25, 1, 13)}),
    "decoding": Case(Tq=1, Tk=13, options={"mask": Causal()}, want={"map": 5, "rows": (0,)}),
    "fewer positions than ranks": Case(Tq=3, Tk=3, options={"mask": Causal()}, want={"map": 2}),
    "no keys": Case(Tq=3, Tk=0),
    "no queries": Case(Tq=0, Tk=5),
    "uneven": Case(uneven=True, options={"mask": Causal() & PADDED, "sinks": numbers(4)}, want=everything()),
    "uneven alibi": Case(uneven=True, Hk=1, options={"bias": ALiBi(4), "mask": Window(5)}, want=everything()),
    "weights of all samples and heads": Case(
        want=everything(row_weights=numbers(2, 4, 13), output_weight=numbers(6, 20), query_groups=ids(-1, 5, 13))
    ),
    "a piece of a text": Case(want=everything(first_key=2, first_query=4, token_ids=ids(0, 4, 20))),
    "compiled": Case(
        D=16, Dv=16, dtype=torch.float32, impl="auto", options={"mask": Causal(), "sinks": numbers(4)}, want=everything()
    ),
    "compiled, as long as the keys": Case(
        Tq=39, Tk=13, D=16, dtype=torch.float32, impl="auto", options={"mask": Window(9), "bias": ALiBi(4)}, want={"map": 7}
    ),
    "reference": Case(impl="reference", options={"mask": Causal() & PADDED, "bias": ALiBi(4)}, want=everything()),
    "bfloat16": Case(dtype=torch.bfloat16, impl="auto", D=16, options={"mask": Causal()}, want={}),
}  # fmt: skip


# With four ranks on few cores collectives are slow: what four ranks could get wrong that two get right.
FOUR = (
    "causal", "window", "padding", "scattered documents", "dense", "a hiding bias", "alibi", "sinks", "groups", "decoding",
    "fewer positions than ranks", "no queries", "uneven", "a piece of a text", "compiled",
)  # fmt: skip


def layout(case: Case, length: int, ranks: int, placement: str) -> Layout:
    if not case.uneven:
        return Layout.even(length, ranks, placement)  # type: ignore[arg-type]
    cuts = sorted(ids(0, length + 1, ranks - 1).tolist())
    return Layout(tuple(b - a for a, b in zip([0, *cuts], [*cuts, length], strict=True)))


class Differences(list[str]):
    """What differs. Nothing is raised: a rank that stopped in the middle of a case would leave the others alone."""

    def close(self, name: str, got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
        got, want = got.detach(), want.detach()
        bound = {torch.float64: 1e-11, torch.float32: 3e-6, torch.bfloat16: 2e-2}[dtype]
        if got.dtype != want.dtype or got.ndim != want.ndim:
            self.append(f"{name}: {got.dtype} {tuple(got.shape)}, not {want.dtype} {tuple(want.shape)}")
            return
        shape = torch.broadcast_shapes(got.shape[:2], want.shape[:2])  # counts may be one for all samples and heads
        got, want = got.expand(*shape, *got.shape[2:]), want.expand(*shape, *want.shape[2:])
        if not got.is_floating_point():
            same = torch.equal(got, want)
        else:
            size = max(1.0, float(want.nan_to_num(0, 0, 0).abs().max())) if want.numel() else 1.0
            same = got.shape == want.shape and torch.allclose(got, want, rtol=0, atol=bound * size, equal_nan=True)
        if not same:
            self.append(f"{name}: {got.shape} {got.tolist()}, not {want.shape} {want.tolist()}"[:600])

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.append(what)


def in_one_process(case: Case) -> Any:
    """The call, and its gradients, without ranks."""
    shapes = [
        (case.B, case.Hq, case.Tq, case.D),
        (case.B, case.Hk, case.Tk, case.D),
        (case.B, case.Hk, case.Tk, case.Dv),
    ]
    seed = generator()
    whole = [torch.randn(shape, generator=seed, dtype=EXACT).to(case.dtype).requires_grad_() for shape in shapes]
    push = torch.randn(case.B, case.Hq, case.Tq, case.Dv, generator=seed, dtype=EXACT).to(case.dtype)
    options = {
        name: x.to(case.dtype).requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in case.options.items()
    }
    want = Observables(**case.want)
    truth = clearhead.observe(*whole, observables=want, impl=case.impl, **options)
    leaves = [*whole, *(x for x in options.values() if isinstance(x, Tensor) and x.requires_grad)]
    truth_grads = torch.autograd.grad((truth.output * push).sum(), leaves, allow_unused=True, materialize_grads=True)

    return whole, push, options, want, truth, leaves, truth_grads


def compare(case: Case, alone: Any, mesh: Any, scheme: str, placement: str) -> Differences:
    """Output, gradients and every number observed, against one process."""
    differences = Differences()
    close, require = differences.close, differences.require
    rank, ranks = mesh.get_local_rank(), mesh.size()
    whole, push, options, want, truth, leaves, truth_grads = alone
    lays = [layout(case, n, ranks, placement) for n in (case.Tq, case.Tk, case.Tk)]
    at = [lay.positions(rank) for lay in lays]
    mine = [x.detach()[:, :, own].requires_grad_() for x, own in zip(whole, at, strict=True)]
    own = [*mine, *leaves[3:]]
    more: dict[str, Any] = {"placement": placement, "scheme": scheme, "impl": case.impl, **options}
    out = distributed.attention(*mine, mesh, **more)
    close("output", out, truth.output[:, :, at[0]], case.dtype)
    grads = torch.autograd.grad((out * push[:, :, at[0]]).sum(), own, allow_unused=True, materialize_grads=True)
    for name, got, right, where in zip(("query", "key", "value"), grads[:3], truth_grads[:3], at, strict=True):
        close(f"gradient of {name}", got, right[:, :, where], case.dtype)
    for n, (got, right) in enumerate(zip(grads[3:], truth_grads[3:], strict=True)):
        torch.distributed.all_reduce(got := got.contiguous())
        close(f"gradient of option {n}", got, right, case.dtype)

    seen = distributed.observe(*mine, mesh, observables=want, **more)
    close("observed output", seen.output, truth.output[:, :, at[0]], case.dtype)
    again = torch.autograd.grad(
        (seen.output * push[:, :, at[0]]).sum(), mine, allow_unused=True, materialize_grads=True
    )
    for name, got, right in zip(("query", "key", "value"), again, grads, strict=False):
        close(f"observed gradient of {name}", got, right, case.dtype)
    require(set(seen.values) == set(truth.values), f"{list(seen.values)}, not {list(truth.values)}")
    for name, got in seen.values.items():
        right = truth.values[name]
        if distributed.observing.per_query(name):
            right = right[:, :, at[0]]
        elif distributed.observing.per_key(name):
            right = right[..., at[1]]
        close(name, got, right, case.dtype)
    back = seen.whole()
    for name, right in truth.values.items():
        close(f"whole {name}", back.values[name], right, case.dtype)
    require(
        (back.offset, back.first_key) == (truth.offset, truth.first_key), f"offset {back.offset}, not {truth.offset}"
    )
    padded = [x if x is None else x.expand(case.B, case.Tq).tolist() for x in (back.padded, truth.padded)]
    require(padded[0] == padded[1], f"padded {padded}")
    require(seen.query_positions.tolist() == at[0].tolist(), "query positions")
    return differences


def main() -> None:
    mesh = distributed.start(timeout=240)
    torch.set_num_threads(1)
    found = {}
    for name in CASES if mesh.size() < 4 else FOUR:
        case = CASES[name]
        alone = in_one_process(case)
        for scheme in ("heads", "gather"):
            if scheme == "heads" and case.Hk % mesh.size():
                continue
            placements = ("contiguous",) if case.uneven else ("contiguous", "zigzag")
            if mesh.size() == 4 and not case.uneven:
                placements = ("contiguous",) if scheme == "heads" else ("zigzag",)
            for placement in placements:
                title = f"{name}, {scheme}, {placement}"
                try:
                    found[title] = "\n".join(compare(case, alone, mesh, scheme, placement))
                except BaseException:
                    Path(sys.argv[1]).write_text(json.dumps(found | {title: traceback.format_exc(limit=-4)}))
                    raise
    Path(sys.argv[1]).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
