"""One rank: a model watched on its part of a sequence, compared with the same watched whole. Writes {case: what differed}."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from clearhead import ALiBi, Causal, Observables, Padding, Window, attention, distributed, watch
from clearhead.errors import ArgumentError
from clearhead.models import load
from clearhead.roles import label, roles

T = 26


class Biased(torch.nn.Module):
    """Attention with a bias of its own."""

    def forward(self, x: Tensor) -> Tensor:
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return attention(q, q, q, mask=Causal(), bias=ALiBi(2))


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval().double()


def compare(network: LlamaForCausalLM, ids: Tensor, mesh, placement: str, mask, implementation: str, **more) -> str:
    network.set_attn_implementation(implementation)
    mine = distributed.positions(T, mesh, placement=placement)
    where = torch.arange(T)[None]
    with torch.no_grad():
        with watch(network, mask=mask, **more) as whole:
            logits = network(ids, position_ids=where, use_cache=False).logits
        with watch(network, mesh=mesh, placement=placement, mask=mask, **more) as trace:
            for _ in range(2):  # a pass is a text of its own
                part = network(ids[:, mine], position_ids=where[:, mine], use_cache=False).logits
    torch.testing.assert_close(part, logits[:, mine])
    assert [(c.layer, c.name, c.run) for c in trace.calls] == [
        (c.layer, c.name, run) for run in (0, 1) for c in whole.calls
    ]
    for a, b in zip(trace.calls, [*whole.calls, *whole.calls], strict=True):
        assert set(a.observation.values) == set(b.observation.values)
        for name, x in b.observation.values.items():
            torch.testing.assert_close(a.observation.values[name], x, msg=lambda text, name=name: f"{name}: {text}")
    assert trace.token_ids == whole.token_ids == ids[0].tolist()
    if not more:
        found, known = ({str(h): label(s) for h, s in roles(t).items()} for t in (trace, whole))
        assert {h: s and s.role for h, s in found.items()} == {h: s and s.role for h, s in known.items()}
    return ""


def compare_builtin(mesh, placement: str) -> str:
    """A model of this library's own layers, told where its part stands."""
    network = load("builtin").network.double()
    ids = torch.randint(0, 50, (1, T), generator=torch.Generator().manual_seed(3))
    mine = distributed.positions(T, mesh, placement=placement)
    with torch.no_grad():
        with watch(network) as whole:
            logits = network(ids)
        with watch(network, mesh=mesh, placement=placement, mask=Causal()) as trace:
            part = network(ids[:, mine], positions=mine)
    torch.testing.assert_close(part, logits[:, mine])
    assert trace.token_ids == whole.token_ids == ids[0].tolist()
    for a, b in zip(trace.calls, whole.calls, strict=True):
        for name, x in b.observation.values.items():
            torch.testing.assert_close(a.observation.values[name], x, msg=lambda text, name=name: f"{name}: {text}")
    return ""


def refused(run) -> str:
    try:
        run()
    except ArgumentError as error:
        return str(error)
    return "nothing was raised"


def main(target: str) -> None:
    mesh = distributed.start()
    network, ids = model(), torch.randint(0, 50, (1, T), generator=torch.Generator().manual_seed(3))
    found = {}
    for placement in ("contiguous", "zigzag"):
        for implementation in ("sdpa", "eager"):
            name = f"{placement}, {implementation}"
            found[name] = compare(network, ids, mesh, placement, Causal(), implementation)
    some = {"heads": ["L0H1", "L1H3"], "observables": Observables(top_k=3, rows=(0, -1), map=5)}
    found["window, heads"] = compare(network, ids, mesh, "zigzag", Causal() & Window(7), "sdpa", **some)
    found["built-in, zigzag"] = compare_builtin(mesh, "zigzag")
    found["layers"] = compare(
        network, ids, mesh, "contiguous", Causal() & Padding(torch.tensor([21])), "sdpa", layers=[1]
    )

    def watched(what, **given):
        with watch(None, mesh=mesh, **given):
            what()

    def cached() -> None:
        with torch.no_grad():
            state = network(ids[:, :4]).past_key_values
            with watch(network, mesh=mesh, mask=Causal()):
                network(ids[:, 4:6], past_key_values=state)

    def nothing() -> None:
        return

    told = {
        "a bias": lambda: watched(lambda: Biased()(torch.randn(1, 3, 8)), mask=Causal()),
        "a cache": cached,
        "no mask": lambda: watched(nothing),
        "keep": lambda: watched(nothing, mask=Causal(), keep="qk"),
    }
    Path(target).write_text(json.dumps({"same": found, "refused": {name: refused(run) for name, run in told.items()}}))
    torch.distributed.destroy_process_group()  # its threads would still run while the process ends


main(sys.argv[1])
