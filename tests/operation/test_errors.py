"""Every error message of the operation: which argument, expected with the caller's numbers, got, remedy.

The last test compares the lines that raised with the lines that can raise, so that a message without a test is noticed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest
import torch

from clearhead import (
    ALiBi,
    Causal,
    Documents,
    Observables,
    Padding,
    Prefix,
    Window,
    attention,
    biases,
    explain,
    masks,
    measuring,
    observables,
    observe,
)
from clearhead.errors import ArgumentError, ImplementationError
from clearhead.kernels import select
from clearhead.kernels.problem import Problem
from clearhead.masks import Dense, Intervals
from clearhead.plans import Plan

q = torch.zeros(2, 4, 3, 8)
k = torch.zeros(2, 2, 5, 8)
ints = torch.tensor([1, 2, 3])


@pytest.fixture(autouse=True)
def as_a_user_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the type checker that only tests have: it would answer before our own messages can."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


# What is called, and the whole message.
MESSAGES: dict[str, tuple[Callable[[], object], str]] = {
    "combining a mask with a tensor": (
        lambda: Causal() & torch.ones(3, 3, dtype=torch.bool),
        "mask &: expected another mask object, got Tensor. Wrap a bool tensor first: Causal() & Dense(tensor).",
    ),
    "align that is a word of its own": (
        lambda: Causal(align="middle"),
        'align: expected "end", "start", an int offset, or an integer tensor of B offsets, got \'middle\'. '
        'Use "end" for decoding with a cache, "start" for what is_causal=True means in PyTorch.',
    ),
    "align that is a float tensor": (
        lambda: Window(2, align=torch.zeros(2)),
        'align: expected "end", "start", an int offset, or an integer tensor of B offsets, got a torch.float32 tensor. '
        'Use "end" for decoding with a cache, "start" for what is_causal=True means in PyTorch.',
    ),
    "align for another batch": (
        lambda: attention(q, k, k, mask=Causal(align=ints)),
        "align: expected one offset a sample, shape (B=2,), got (3,). Pass an int, or a 1-D integer tensor of B offsets.",
    ),
    "window without keys": (
        lambda: Window(0),
        "Window keys: expected an integer >= 1, got 0. A window counts the query itself: Window(1) sees only itself.",
    ),
    "window to the right of less than nothing": (
        lambda: Window(2, right=-1),
        "Window right: expected an integer >= 0, got -1. A window counts the query itself: Window(1) sees only itself.",
    ),
    "window of half a key": (
        lambda: Window(1.5),  # type: ignore[arg-type]
        "Window keys: expected an integer >= 1, got 1.5. A window counts the query itself: Window(1) sees only itself.",
    ),
    "prefix below zero": (
        lambda: Prefix(-2),
        "Prefix n: expected an integer >= 0, got -2. Use 0 for no prefix.",
    ),
    "prefix lengths that are not integers": (
        lambda: Prefix(torch.ones(2, 3)),
        "Prefix n: expected a 1-D integer tensor, one number a sample, shape (B,), got torch.float32 of shape (2, 3). "
        "Pass torch.tensor([...]) of lengths.",
    ),
    "prefix lengths for another batch": (
        lambda: attention(q, k, k, mask=Prefix(ints)),
        "Prefix n: expected one number a sample, shape (B=2,), got (3,). "
        "The batch of the mask and of query, key and value must agree.",
    ),
    "padding lengths given as a mask": (
        lambda: Padding(torch.ones(2, dtype=torch.bool)),
        "Padding lengths: expected a 1-D integer tensor, one number a sample, shape (B,), got torch.bool of shape (2,). "
        "Pass torch.tensor([...]) of lengths.",
    ),
    "padding queries given as floats": (
        lambda: Padding(torch.tensor([1]), queries=torch.ones(1)),
        "Padding queries: expected a 1-D integer tensor, one number a sample, shape (B,), got torch.float32 of shape (1,). "
        "Pass torch.tensor([...]) of lengths.",
    ),
    "padding on no side": (
        lambda: Padding(torch.tensor([1]), side="top"),  # type: ignore[arg-type]
        'Padding side: expected "right" or "left", got \'top\'. Say where the padding tokens stand.',
    ),
    "padding lengths for another batch": (
        lambda: attention(q, k, k, mask=Padding(ints)),
        "Padding lengths: expected one number a sample, shape (B=2,), got (3,). "
        "The batch of the mask and of query, key and value must agree.",
    ),
    "document ids that are floats": (
        lambda: Documents(torch.zeros(5)),
        "Documents ids: expected an integer tensor of shape (T,) or (B, T), got torch.float32 of shape (5,). "
        "Number the documents: torch.tensor([0, 0, 0, 1, 1]).",
    ),
    "document ids of three dimensions": (
        lambda: Documents(ints, query_ids=ints.view(1, 1, 3)),
        "Documents query_ids: expected an integer tensor of shape (T,) or (B, T), got torch.int64 of shape (1, 1, 3). "
        "Number the documents: torch.tensor([0, 0, 0, 1, 1]).",
    ),
    "document ids for other keys": (
        lambda: attention(q, k, k, mask=Documents(ints)),
        "Documents ids: expected shape (Tk=5,) or (B=2, Tk=5), got (1, 3). "
        "Give every key a document, and pass query_ids when there are more queries than keys.",
    ),
    "document ids for other queries": (
        lambda: attention(k.repeat(1, 2, 1, 1), q[:, :2], q[:, :2], mask=Documents(ints)),
        "Documents query_ids: expected shape (Tq=5,) or (B=2, Tq=5), got (1, 3). "
        "Give every key a document, and pass query_ids when there are more queries than keys.",
    ),
    "a float tensor as mask": (
        lambda: attention(q, k, k, mask=torch.zeros(3, 5)),
        "mask: expected a mask object, or a bool tensor in which True means may attend, got a float32 tensor of shape (3, 5). "
        "Numbers that are added to the scores go to bias=; for a 0/1 mask use mask.bool().",
    ),
    "an integer tensor as mask": (
        lambda: attention(q, k, k, mask=torch.ones(3, 5, dtype=torch.int64)),
        "mask: expected a mask object, or a bool tensor in which True means may attend, got a int64 tensor of shape (3, 5). "
        "Numbers that are added to the scores go to bias=; for a 0/1 mask use mask.bool().",
    ),
    "a wrapped mask of another shape": (
        lambda: attention(q, k, k, mask=Causal() & Dense(torch.ones(3, 4, dtype=torch.bool))),
        "mask: expected a shape that broadcasts to (B=2, Hq, Tq=3, Tk=5), got (3, 4). "
        "Insert dimensions of size 1 where the mask does not depend on them, e.g. mask[:, None].",
    ),
    "a batch of masks without a head dimension": (
        lambda: attention(q, k, k, mask=torch.ones(2, 3, 5, dtype=torch.bool)),
        "mask: expected (Tq, Tk) or (B, Hq, Tq, Tk) = (2, 4, 3, 5), sizes of 1 allowed, got (2, 3, 5). "
        "A batch of masks needs a head dimension of its own: mask[:, None].",
    ),
    "a mask for other keys, two leading dimensions": (
        lambda: attention(q[None], k, k, mask=torch.ones(3, 6, dtype=torch.bool)),
        "mask: expected (Tq, Tk) or (…, Hq, Tq, Tk) = (1, 2, 4, 3, 5), sizes of 1 allowed, got (3, 6). "
        "A batch of masks needs a head dimension of its own: mask[:, None].",
    ),
    "a mask class without parentheses": (
        lambda: attention(q, k, k, mask=Causal),  # type: ignore[arg-type]
        "mask: expected a mask object such as Causal(), or a bool tensor in which True means may attend, "
        "got the class Causal. Write Causal() with parentheses; combine with &.",
    ),
    "a mask that is a word": (
        lambda: attention(q, k, k, mask="causal"),  # type: ignore[arg-type]
        "mask: expected a mask object such as Causal(), or a bool tensor in which True means may attend, got str. "
        "Write Causal() with parentheses; combine with &.",
    ),
    "a bool tensor as bias": (
        lambda: attention(q, k, k, bias=torch.ones(3, 5, dtype=torch.bool)),
        "bias: expected a floating-point tensor, added to the scores, or ALiBi(heads), got a torch.bool tensor. "
        "A bool tensor that says who may attend goes to mask=.",
    ),
    "a number as bias": (
        lambda: attention(q, k, k, bias=1.0),  # type: ignore[arg-type]
        "bias: expected a floating-point tensor, added to the scores, or ALiBi(heads), got float. "
        "A bool tensor that says who may attend goes to mask=.",
    ),
    "a bias of another shape": (
        lambda: attention(q, k, k, bias=torch.zeros(2, 3, 3, 5)),
        "bias: expected (Tq, Tk) or (B, Hq, Tq, Tk) = (2, 4, 3, 5), sizes of 1 allowed, got (2, 3, 3, 5). "
        "A batch of masks needs a head dimension of its own: bias[:, None].",
    ),
    "no heads for ALiBi": (
        lambda: ALiBi(0),
        "ALiBi heads: expected a number of heads >= 1, or a 1-D tensor of Hq slopes, got 0. "
        "Pass the number of query heads: ALiBi(8).",
    ),
    "slopes of two dimensions": (
        lambda: ALiBi(torch.ones(1, 4)),
        "ALiBi heads: expected a number of heads >= 1, or a 1-D tensor of Hq slopes, got shape (1, 4). "
        "Pass the number of query heads: ALiBi(8).",
    ),
    "ALiBi aligned at nothing": (
        lambda: ALiBi(4, align="middle"),
        'ALiBi align: expected "end", "start" or the position of query 0, an integer, got \'middle\'. '
        'Use "end" for decoding with a cache.',
    ),
    "intervals of another call": (
        lambda: attention(q, k, k, mask=Intervals(torch.zeros(1, 9).long(), torch.ones(1, 9).long())),
        "Intervals lo: expected shape (B=2 or 1, Tq=3), got (1, 9). A mask belongs to the call it was made for.",
    ),
    "slopes for other heads": (
        lambda: attention(q, k, k, bias=ALiBi(3)),
        "ALiBi slopes: expected one number a query head, floating point, shape (Hq=4,), got torch.float32 of shape (3,). "
        "Each query head has its own; key heads have none.",
    ),
    "a sink a key head": (
        lambda: attention(q, k, k, sinks=torch.zeros(2)),
        "sinks: expected one number a query head, floating point, shape (Hq=4,), got torch.float32 of shape (2,). "
        "Each query head has its own; key heads have none.",
    ),
    "a scale without end": (
        lambda: attention(q, k, k, scale=float("inf")),
        "scale: expected a finite number, got inf. Leave it out for D ** -0.5.",
    ),
    "a cap of zero": (
        lambda: attention(q, k, k, softcap=0.0),
        "softcap: expected a finite number > 0, got 0.0. Leave it out for no cap.",
    ),
    "a query that is a list": (
        lambda: attention([[1.0]], k, k),  # type: ignore[arg-type]
        "query: expected a torch.Tensor, got list. Use torch.as_tensor(...).",
    ),
    "keys that are integers": (
        lambda: attention(q, k.long(), k),
        "key: expected dtype float32, bfloat16, float16 or float64, got int64. Convert it: key.float().",
    ),
    "a query without a width": (
        lambda: attention(ints.float(), k, k),
        "query: expected (…, H, T, D), or (T, D) for one head, got (3,). Attention needs a sequence and a width.",
    ),
    "values of another dtype": (
        lambda: attention(q, k, k.half()),
        "value: expected dtype and device of query (torch.float32, cpu), got torch.float16, cpu. Convert it: value.to(query).",
    ),
    "keys on another device": (
        lambda: attention(q, k.to("meta"), k),
        "key: expected dtype and device of query (torch.float32, cpu), got torch.float32, meta. Convert it: key.to(query).",
    ),
    "keys without a head dimension": (
        lambda: attention(q, k[0, 0], k[0, 0]),
        "key: expected a head dimension as query has it (query (2, 4, 3, 8)), got (5, 8). "
        "Give all three a head dimension, or none: x[None].",
    ),
    "keys of another width": (
        lambda: attention(q, k[..., :6], k),
        "key has width 6 but query has 8: they must have the same D "
        "(query (2, Hq=4, Tq=3, D=8), key (2, Hk=2, Tk=5, D=6), value (2, Hk=2, Tk=5, Dv=8))",
    ),
    "a value missing": (
        lambda: attention(q, k, k[:, :, :4]),
        "value has 4 positions but key has 5: one value a key, Tk "
        "(query (2, Hq=4, Tq=3, D=8), key (2, Hk=2, Tk=5, D=8), value (2, Hk=2, Tk=4, Dv=8))",
    ),
    "a value head missing": (
        lambda: attention(q, k, k[:, :1]),
        "value has 1 heads but key has 2: they must have the same Hk "
        "(query (2, Hq=4, Tq=3, D=8), key (2, Hk=2, Tk=5, D=8), value (2, Hk=1, Tk=5, Dv=8))",
    ),
    "heads that do not divide": (
        lambda: attention(q[:, :3], k, k),
        "key has 2 heads but query has 3: Hq must be a multiple of Hk "
        "(query (2, Hq=3, Tq=3, D=8), key (2, Hk=2, Tk=5, D=8), value (2, Hk=2, Tk=5, Dv=8))",
    ),
    "batches that do not fit": (
        lambda: attention(q, k.repeat(2, 1, 1, 1)[:3], k),
        "leading dimensions of query (2,), key (3,) and value (2,) do not broadcast: make each pair equal or 1 "
        "(query (2, Hq=4, Tq=3, D=8), key (3, Hk=2, Tk=5, D=8), value (2, Hk=2, Tk=5, Dv=8))",
    ),
    "a row that is not there": (
        lambda: observe(q, k, k, observables=Observables(rows=(0, 3))),
        "rows: expected queries from 0 to Tq - 1 = 2 (or negative, from the end), got 3. "
        "Name queries by their position in this call.",
    ),
    "token ids of the new tokens only": (
        lambda: observe(q, k, k, observables=Observables(token_ids=ints)),
        "token_ids: expected one for every key: (Tk=5,) or (B=2, Tk=5), got (3,). "
        "With a cache, give those of the whole text, not only of the new tokens.",
    ),
    "token ids of a piece only": (
        lambda: observe(q, k, k, observables=Observables(token_ids=ints, first_key=2)),
        "token_ids: expected one for every key: at least (Tk=7,) or (B=2, Tk=7), got (3,). "
        "With a cache, give those of the whole text, not only of the new tokens.",
    ),
    "groups of too few queries": (
        lambda: observe(q, k, k, observables=Observables(key_groups=torch.arange(5), query_groups=torch.arange(2))),
        "query_groups: expected one for every query: (Tq=3,) or (B=2, Tq=3), got (2,). "
        "Leave it out to take the keys' groups at the queries' positions.",
    ),
    "a group below −1": (
        lambda: Observables(key_groups=torch.tensor([0, -2])),
        "key_groups: expected groups from 0 on, or −1 for none, got -2. Number them anew.",
    ),
    "groups that are true or false": (
        lambda: Observables(key_groups=torch.tensor([True])),
        "key_groups: expected an integer tensor of shape (Tk,) or (B, Tk), got torch.bool of shape (1,). "
        "Pass group numbers from 0 on, −1 for none.",
    ),
    "the best of groups that are not there": (
        lambda: Observables(group_top_k=2),
        "key_groups: expected a group for every key, since group_top_k was given, got None. "
        "Give key_groups too, or leave group_top_k out.",
    ),
    "an output weight for nothing": (
        lambda: Observables(output_weight=torch.zeros(2, 2)),
        "contributions: expected True, which is what it changes, since output_weight was given, got False. "
        "Give contributions too, or leave output_weight out.",
    ),
    "an output weight with a bias's shape": (
        lambda: Observables(contributions=True, output_weight=torch.zeros(2)),
        "output_weight: expected a floating-point tensor of shape (E, Hq·Dv), got torch.float32 of shape (2,). "
        "Pass the weight of the output projection as nn.Linear stores it.",
    ),
    "an output weight of another layer": (
        lambda: observe(q, k, k, observables=Observables(contributions=True, output_weight=torch.zeros(2, 3))),
        "output_weight: expected shape (E, Hq·Dv=4·8=32), got (2, 3). "
        "Pass the weight of the output projection as nn.Linear stores it.",
    ),
    "row weights that are integers": (
        lambda: Observables(row_weights=ints),
        "row_weights: expected a floating-point tensor of shape (Tq,), (B, Tq) or (B, Hq, Tq), got torch.int64 of shape (3,). "
        "Give one number for every query.",
    ),
    "row weights of another length": (
        lambda: observe(q, k, k, observables=Observables(row_weights=torch.ones(2, 4, 2))),
        "row_weights: expected shape (Tq=3,), (B=2, Tq=3) or (B=2, Hq=4, Tq=3), got (2, 4, 2). "
        "Give one number for every query.",
    ),
    "a text that begins before its beginning": (
        lambda: Observables(first_key=-1),
        "first_key: expected an integer >= 0, got -1. Leave it out for a whole text.",
    ),
    "a head that is not there": (
        lambda: observe(q, k, k)[0, 4],
        "head: expected numbers from 0 to 3 (or negative, from the end), got 4. "
        "Choose with numbers, a slice or a list: observation[0, 2:4].",
    ),
    "fewer than no keys": (
        lambda: Observables(top_k=-1),
        "top_k: expected an integer >= 0, got -1. Use 0 to switch it off.",
    ),
    "a map switched on by a bool": (
        lambda: Observables(map=True),
        "map: expected an integer >= 0, got True. Use 0 to switch it off.",
    ),
    "token ids that are floats": (
        lambda: Observables(token_ids=torch.zeros(3)),
        "token_ids: expected an integer tensor of shape (T,) or (B, T), got torch.float32 of shape (3,). "
        "Pass what the tokenizer returned as input_ids.",
    ),
    "an implementation nobody wrote": (
        lambda: attention(q, k, k, impl="flash"),
        'impl: expected one of "auto", "cpu", "tiled", "reference", got \'flash\'. '
        'Use "auto" and read clearhead.explain(query, key, value) for what it chooses.',
    ),
}


@pytest.mark.tiny
@pytest.mark.parametrize("name", MESSAGES)
def test_the_message_names_the_argument_and_the_numbers(name: str) -> None:
    call, text = MESSAGES[name]
    with pytest.raises(ArgumentError, match=f"^{re.escape(text)}$"):
        call()


@pytest.mark.tiny
def test_an_unknown_implementation_in_the_environment_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEARHEAD_IMPL", "flash")
    with pytest.raises(
        ArgumentError, match=r'^CLEARHEAD_IMPL: expected one of "auto", "cpu", "tiled", "reference", got \'flash\''
    ):
        attention(q, k, k)
    assert attention(q, k, k, impl="tiled").shape == (2, 4, 3, 8)  # an explicit name does not ask the environment


@pytest.mark.tiny
def test_the_compiled_kernels_say_what_they_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    cannot = (
        'expected a call that the CPU kernels can do, got "cpu", but they have no float64. '
        'Use "auto", which takes "tiled" then.'
    )
    with pytest.raises(ImplementationError, match=f"^impl: {re.escape(cannot)}$"):
        attention(q.double(), k.double(), k.double(), impl="cpu")
    elsewhere = Problem(q.to("meta"), k.to("meta"), k.to("meta"), Plan(ints, ints), 1.0)
    assert select.why_not_cpu(elsewhere) == "the tensors are on meta"
    monkeypatch.setenv("CLEARHEAD_IMPL", "cpu")
    with pytest.raises(ImplementationError, match=f"^CLEARHEAD_IMPL: {re.escape(cannot)}$"):
        observe(q.double(), k.double(), k.double())
    monkeypatch.setattr(select, "_NUMBA", False)
    with pytest.raises(ImplementationError, match="but numba, which compiles them, is not installed"):
        attention(q, k, k)


def test_explain_and_observe_check_their_arguments_as_attention_does() -> None:
    for call in (explain, observe):
        with pytest.raises(ArgumentError, match=r"key has 2 heads but query has 3: Hq must be a multiple of Hk"):
            call(q[:, :3], k, k)


def test_argument_errors_are_value_errors() -> None:
    with pytest.raises(ValueError, match="Window keys"):
        Window(0)


def test_every_line_that_raises_an_argument_error_is_reached_by_these_messages() -> None:
    raised = set()
    for call, _ in MESSAGES.values():
        with pytest.raises(ArgumentError) as caught:
            call()
        raised.add((Path(caught.traceback[-1].path).name, caught.traceback[-1].lineno))
    operation = sys.modules["clearhead.attention"]  # as an attribute of the package that name is the function
    written = {}
    for path in [Path(str(m.__file__)) for m in (masks, biases, observables, measuring, select, operation)]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            called = isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.func
            if isinstance(called, ast.Name) and called.id == "ArgumentError":
                written[path.name, node.lineno] = node.end_lineno
    missed = [
        f"{name}:{first}"
        for (name, first), last in written.items()
        if not any(file == name and first - 1 <= line <= (last or first) for file, line in raised)
    ]
    assert len(written) > 20
    assert not missed, f"no message here comes from {missed}"
