"""What people write by habit leads to the right place: addresses as they are printed, names of other tools, wrong arguments."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import watch_architectures as made
from clearhead import Observables, Trace, watch
from clearhead.addresses import ByHead, Head
from clearhead.errors import ArgumentError, InputError, NothingSeenWarning
from clearhead.models import load
from clearhead.roles import calibrate, label, looked_up, retrieval, roles
from clearhead.viewer.data import Shown
from test_hub_models import bytewise
from watch_cases import Decoder

hf = made.hf
IDS = torch.tensor([[5, 6, 7, 5, 6, 7, 5]])


def watched(**options) -> Trace:
    torch.manual_seed(0)
    model = Decoder(layers=2).eval()
    with torch.no_grad(), watch(model, **options) as trace:
        model(IDS)
    return trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return watched(keep="qk", observables=Observables(key_groups=torch.tensor([0, 0, 0, 1, 1, 1, 1])))


@pytest.mark.parametrize(
    "found",
    [
        lambda t: t.top(3),
        lambda t: t.groups(),
        roles,
        lambda t: looked_up(t, range(4, 7)),
        lambda t: retrieval(t, range(3), range(4, 7)),
    ],
)
def test_what_is_known_of_every_head_is_asked_by_the_printed_address(trace, found):
    of = found(trace)
    head = trace.heads()[-1]
    assert of[str(head)] == of[head] == of.get(str(head).lower())
    assert str(head) in of
    assert head in of
    assert "L9H0" not in of
    assert "9.0" not in of
    assert of.get("L9H0", "none") == "none"
    assert repr(of).startswith("{L0H0: ")
    told = f"head L9H0: no such head; there are {len(of)}, from L0H0 to {head}"
    with pytest.raises(InputError, match=re.escape(told)):
        of["L9H0"]
    with pytest.raises(InputError, match=r"expected an address such as L2H3"):
        of["king"]


def test_calibrated_heads_are_asked_in_the_same_way():
    found = calibrate(Decoder(layers=1).eval(), 50, period=5, seeds=2)
    assert found["L0H0"] is found[Head(0, 0)]
    with pytest.raises(InputError, match=r"head L0H0: nothing was observed"):
        ByHead()["L0H0"]


def test_a_trace_is_asked_by_layer_head_or_module_and_gone_through_layer_by_layer(trace):
    assert len(trace) == 2
    assert [seen.entropy.shape for seen in trace] == [trace[0].entropy.shape] * 2
    assert torch.equal(trace["L1H1"].entropy, trace[1].entropy[:, 1:2])
    assert torch.equal(trace[Head(1, 1)].entropy, trace["l1h1"].entropy)
    assert trace[trace.calls[1].name] is trace[1]
    assert bool(Trace())
    with pytest.raises(InputError, match=r"head 'h.7': expected an address"):
        trace["h.7"]
    assert repr(trace.calls[1]) == f"Call({trace.calls[1].name!r}, layer 1, {trace.calls[1].heads} heads, 7 queries)"


def test_roles_are_those_of_the_table(trace):
    assert trace.roles() == {h: r.role for h, scores in roles(trace).items() if (r := label(scores))}
    model = load("builtin")
    with watch(model) as read:
        model.read(model.encode("The king is dead. Long live the king."))
    assert read.roles()["L1H3"] == "previous-token"


def test_a_crop_without_numbers_is_the_whole_pattern_and_a_number_is_one_row(trace):
    whole = trace.crop("L1H1")
    assert whole.shape == (7, 7)
    torch.testing.assert_close(whole.sum(1), torch.ones(7))
    torch.testing.assert_close(trace.crop("L1H1", -1), whole[-1:])
    torch.testing.assert_close(trace.crop("L1H1", 3, 2), whole[3:4, 2:3])
    torch.testing.assert_close(trace.pattern("L1H1").crop(keys=0)[0, 0], whole[:, :1])
    told = "queries: expected a slice without a step or one position, within Tq = 7, got 7."
    with pytest.raises(ArgumentError, match=re.escape(told)):
        trace.crop("L1H1", 7)
    torch.testing.assert_close(trace.crop((1, 1)), whole)
    assert trace.top()["L1H1"] == trace.top(6)["L1H1"]


@pytest.mark.parametrize("name", ["attentions", "weights", "patterns", "cache"])
def test_names_of_other_tools_say_where_the_weights_are(trace, name):
    with pytest.raises(AttributeError, match=rf"a trace has no '{name}': weights are computed .*trace\.crop"):
        getattr(trace, name)
    with pytest.raises(AttributeError, match=rf"an Observation has no '{name}': .* trace\.crop"):
        getattr(trace[0], name)


def test_other_wrong_names_are_plain_and_what_was_not_measured_still_says_so(trace):
    with pytest.raises(AttributeError, match=r"^a trace has no 'colour'$"):
        _ = trace.colour
    with pytest.raises(
        AttributeError, match=r"a trace has no 'entropy': it is measured layer by layer: trace\[layer\]"
    ):
        _ = trace.entropy
    with pytest.raises(AttributeError, match=r"sum_squares was not measured .*Observables\(sum_squares=True\)"):
        _ = trace[0].sum_squares
    light = watched(observables=Observables.light())
    with pytest.raises(AttributeError, match=r"entropy was not measured"):
        _ = light[0].entropy_share


def test_pieces_are_one_a_token(trace):
    with pytest.raises(InputError, match=r"pieces: expected 7, one a token, got 2"):
        trace.pieces = ["a", "b"]
    assert trace.pieces is None


def test_a_tokenizer_names_the_tokens_of_every_sample_and_of_what_is_written(tmp_path):
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**made.GROUPED, "vocab_size": 300, "pad_token_id": 0})).eval()
    tokenizer = bytewise()
    tokenizer.pad_token, tokenizer.padding_side = "<pad>", "left"
    batch = tokenizer(["the cat", "a\u202e"], return_tensors="pt", padding=True)
    with torch.no_grad(), watch(model, tokenizer=tokenizer) as trace:
        model(input_ids=batch.input_ids, attention_mask=batch.attention_mask)
    assert "".join(trace.tokens) == "<s>the·cat"
    assert trace.model == "LlamaForCausalLM"
    shown = trace.top(-1, k=9, batch=1)["L0H0"]
    assert {look.piece for look in shown} == {"<s>", "a", "‹U+202E›", "…"}
    trace.save(tmp_path / "batch.trace")
    again = Trace.load(tmp_path / "batch.trace")
    assert again.top(-1, k=9, batch=1)["L0H0"][0].piece in {"<s>", "a", "‹U+202E›", "…"}
    assert Shown(again, name="batch", sample=1).pieces == Shown(trace, name="batch", sample=1).pieces
    assert again.spell([299, 7]) == ["‹299›", "‹7›"]  # no text that was saved
    assert Shown(trace, name="batch", sample=1).pieces[-4:] == ["a", "‹U+202E›", "…", "…"]
    prompt = tokenizer("the", return_tensors="pt").input_ids
    with watch(model, tokenizer=tokenizer) as trace:
        out = model.generate(prompt, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert len(trace.tokens) == out.shape[1] - 1
    assert trace.prompt == prompt.shape[1]  # what the model wrote is told from what it was given
    trace.save(tmp_path / "run.trace")
    again = Trace.load(tmp_path / "run.trace")
    assert (again.tokens, again.prompt) == (trace.tokens, trace.prompt)


def test_a_prompt_is_where_tokens_begin_to_come_one_by_one():
    assert watched().prompt is None
    model = load("builtin")
    with watch(model) as trace:
        model.read(model.encode("two"))
        model.read([5])
    assert trace.prompt is None  # another text


def test_a_model_of_clearhead_is_watched_as_its_network_and_names_its_tokens():
    model = load("builtin")
    with watch(model, keep="qk") as trace:
        model.read(model.encode("To be"))
    assert trace.tokens == model.pieces(model.encode("To be"))
    assert trace.model == "builtin"
    assert len(trace) == model.config.layers
    found = calibrate(model, period=10, seeds=2)
    given = calibrate(
        model.network, model.vocabulary, period=10, seeds=2, around=(model.before, model.after), avoid=model.special
    )
    assert found["L1H3"] == given["L1H3"]


def test_a_hugging_face_model_says_its_own_vocabulary_and_others_are_asked():
    config = hf.LlamaConfig(**{**made.GROUPED, "vocab_size": 41})
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(config).eval()
    assert calibrate(model, period=5, seeds=2)["L0H0"] == calibrate(model, 41, period=5, seeds=2)["L0H0"]
    with pytest.raises(
        ArgumentError, match=r"vocabulary: expected how many tokens the model knows, got nothing, and Decoder"
    ):
        calibrate(Decoder(layers=1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"model": "gpt2"}, r"model: expected an nn.Module, or what clearhead.models.load gives, got 'gpt2'\."),
        ({"tokenizer": "gpt2"}, r"tokenizer: expected a tokenizer of transformers, .* got str\."),
        ({"layers": [-1]}, r"layers: expected numbers of layers, counted from 0 .* got -1\."),
    ],
)
def test_arguments_that_mean_nothing_are_refused_before_anything_runs(options, told):
    model = options.pop("model", Decoder(layers=1))
    with pytest.raises(ArgumentError, match=told), watch(model, **options):
        pytest.fail("the block ran")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"layers": [0, 7]}, "watch: layers 7 were not met; the model made 2 attention calls, layers 0 to 1"),
        (
            {"heads": ["L0H9"]},
            "watch: heads L0H9 were not met; the model made 2 attention calls, layers 0 to 1, with 4 heads",
        ),
        (
            {"heads": [1, 9]},
            "watch: heads 9 were not met; the model made 2 attention calls, layers 0 to 1, with 4 heads",
        ),
    ],
)
def test_layers_and_heads_that_are_not_there_are_said(options, told):
    with pytest.warns(NothingSeenWarning, match=re.escape(told)):
        watched(**options)


def test_one_layer_may_be_a_number():
    assert [call.layer for call in watched(layers=1).calls] == [1]


def test_nothing_that_was_seen_is_said_in_every_table():
    empty = Trace()
    assert len(empty.to_pandas()) == 0
    assert empty.roles() == {}
    with pytest.raises(InputError, match=r"batch 1: nothing was observed, the model made no attention call"):
        empty.top(0, batch=1)


WRONG = """
from clearhead import watch
import torch
for given in ({"observables": "entropy"}, {"layers": ["0"]}):
    try:
        with watch(torch.nn.Linear(2, 2), **given): ...
    except Exception as error: print(error)
from clearhead.nn import SelfAttention
layer = SelfAttention(8, 2)
with watch(layer) as trace: layer(torch.randn(1, 3, 8))
try: trace.top("king")
except Exception as error: print(error)
"""


def test_what_has_the_wrong_type_is_told_too():
    """In a fresh interpreter, where no test checks the types first."""
    done = subprocess.run([sys.executable, "-c", WRONG], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "observables: expected an Observables, got 'entropy'. Write observables=Observables(entropy=True), or leave it out.",
        "layers: expected numbers of layers, counted from 0 in the order they are met, got '0'. Write layers=[0, 5].",
        "token 'king': expected a position, counted from 0, or -1 for the last and so on",
    ]
