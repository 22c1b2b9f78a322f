"""The door into Hugging Face models: logits are those of "sdpa", observations those of "eager", and the model is as before."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

import watch_architectures as made
from clearhead import Observables, watch
from clearhead.errors import ArgumentError, NothingSeenWarning
from clearhead.tokens import patches
from clearhead.watch.transformers import attend, make_mask, register
from watch_cases import check_seen

lazymask = sys.modules["clearhead.watch.lazymask"]  # clearhead.watch is the function
T = 12


def batch(side: str) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, 64, (2, T))
    mask = torch.ones(2, T, dtype=torch.long)
    if side == "left":
        mask[1, :4] = 0
    elif side == "right":
        mask[1, -4:] = 0
    elif side == "holes":
        mask[1, 3:5] = 0
    return {"input_ids": ids, "attention_mask": mask}


def weights_of(model, inputs, *names):
    """Eager's weights, layer by layer, in float64 where the model allows."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
    return out, [p.double() for name in names for p in out[name]]


def plain_logits(model, inputs):
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # gpt-oss and others have no sdpa
        model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("side", ["none", "left", "right", "holes"])
@pytest.mark.parametrize("name", made.DECODERS)
def test_decoders(name, side):
    torch.manual_seed(1)
    model = made.DECODERS[name]().eval()
    inputs = batch(side)
    real = inputs["attention_mask"].bool()
    eager, weights = weights_of(model, inputs, "attentions")
    logits = plain_logits(model, inputs) if name != "gemma2" else eager.logits  # whose softcap sdpa ignores or refuses
    before = model.config._attn_implementation
    with torch.no_grad(), watch(model, observables=Observables(map=0)) as trace:
        seen = model(**inputs)
    assert model.config._attn_implementation == before
    torch.testing.assert_close(seen.logits[real], logits[real], atol=2e-5, rtol=1e-4)
    assert len(trace.calls) == 2
    for call, p in zip(trace.calls, weights, strict=True):
        check_seen(call.observation, p)
        if not real.all():
            assert torch.equal(call.observation.padded, ~real)
        assert call.key_ids.tolist() == inputs["input_ids"].tolist()
    if name == "mistral":
        assert trace.observation(0).visible[..., -1].max() == 5


@pytest.mark.parametrize("side", ["none", "right"])
def test_an_encoder(side):
    model, inputs = made.bert().eval(), batch(side)
    real = inputs["attention_mask"].bool()
    _, weights = weights_of(model, inputs, "attentions")
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        plain = model(**inputs).last_hidden_state
        with watch(model) as trace:
            seen = model(**inputs).last_hidden_state
    torch.testing.assert_close(seen[real], plain[real], atol=2e-5, rtol=1e-4)
    for call, p in zip(trace.calls, weights, strict=True):
        check_seen(call.observation, p)


def test_an_encoder_and_decoder_with_position_bias():
    model = made.t5().eval()
    inputs = batch("right") | {"decoder_input_ids": torch.randint(3, 64, (2, 5))}
    _, weights = weights_of(model, inputs, "encoder_attentions")
    eager, own = weights_of(model, inputs, "decoder_attentions")
    cross = [p.double() for p in eager.cross_attentions]
    logits = plain_logits(model, inputs)
    with torch.no_grad(), watch(model) as trace:
        seen = model(**inputs)
    torch.testing.assert_close(seen.logits, logits, atol=2e-5, rtol=1e-4)
    expected = weights + [p for pair in zip(own, cross, strict=True) for p in pair]
    assert [call.crosses for call in trace.calls] == [False, False, False, True, False, True]
    for call, p in zip(trace.calls, expected, strict=True):
        if call.crosses:
            torch.testing.assert_close(call.observation.received.double(), p.sum(2), atol=1e-5, rtol=1e-5)
            assert call.query_ids.tolist() == inputs["decoder_input_ids"].tolist()
            assert call.key_ids.tolist() == inputs["input_ids"].tolist()
        else:
            check_seen(call.observation, p)


def test_a_vision_model():
    model = made.vit().eval()
    pixels = {"pixel_values": torch.randn(2, 3, 24, 24)}
    _, weights = weights_of(model, pixels, "attentions")
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        plain = model(**pixels).last_hidden_state
        with watch(model) as trace:
            torch.testing.assert_close(model(**pixels).last_hidden_state, plain, atol=2e-5, rtol=1e-4)
    assert trace.observation(1).lse.shape == (2, 4, 10)  # one token for the picture, and 3 × 3 patches
    assert trace.token_ids is None
    trace.pieces = patches(3, 3)
    assert all(key.piece == trace.pieces[key.key] for keys in trace.top(0).values() for key in keys)
    for call, p in zip(trace.calls, weights, strict=True):
        check_seen(call.observation, p)


def test_another_thread_runs_its_model_unseen():
    model, other = made.DECODERS["llama"]().eval(), made.DECODERS["gpt2"]().eval()
    ids, found = torch.randint(3, 64, (1, 7)), []

    def run(which):
        with torch.no_grad():
            found.append(which(ids).logits)

    run(other)
    run(model)
    with watch(model) as trace:
        for which in (other, model):  # the same model too
            thread = threading.Thread(target=run, args=(which,))
            thread.start()
            thread.join()
    assert trace.calls == []
    assert torch.equal(found[2], found[0])
    torch.testing.assert_close(found[3], found[1], atol=2e-5, rtol=1e-4)


def test_a_model_that_hears():
    model = made.whisper().eval()
    inputs = {"input_features": torch.randn(2, 8, 40), "decoder_input_ids": torch.randint(3, 64, (2, 5))}
    eager, _ = weights_of(model, inputs)
    logits = plain_logits(model, inputs)
    with torch.no_grad(), watch(model) as trace:
        torch.testing.assert_close(model(**inputs).logits, logits, atol=2e-5, rtol=1e-4)
    expected = [*eager.encoder_attentions]
    for own, cross in zip(eager.decoder_attentions, eager.cross_attentions, strict=True):
        expected += [own, cross]
    for call, p in zip(trace.calls, expected, strict=True):
        torch.testing.assert_close(call.observation.received.double(), p.double().sum(2), atol=2e-5, rtol=1e-5)


def test_models_apart_from_the_registry_are_seen_or_said_not_to_be():
    inputs = batch("left")
    model = made.falcon().eval()
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        plain = model(**inputs).logits
        with watch(model) as trace:
            torch.testing.assert_close(model(**inputs).logits, plain, atol=2e-5, rtol=1e-4)
    assert len(trace.calls) == 2
    with (
        pytest.warns(NothingSeenWarning, match=r"no attention call of BloomForCausalLM was seen. It does not choose"),
        watch(m := made.bloom()),
    ):
        m(**inputs)


def test_the_registered_name_alone_gives_observations_where_weights_go():
    register()
    model, inputs = made.DECODERS["llama"]().eval(), batch("left")
    _, weights = weights_of(model, inputs, "attentions")
    model.set_attn_implementation("clearhead")
    with torch.no_grad():
        out = model(**inputs, output_attentions=True)
        assert model(**inputs).attentions is None
    assert len(out.attentions) == 2
    for seen, p in zip(out.attentions, weights, strict=True):
        check_seen(seen, p)


def test_an_argument_that_is_not_known_raises_with_its_name():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(
        ArgumentError, match=r"block_indices: expected one of the arguments that are honoured: sliding_window"
    ):
        attend(torch.nn.Identity(), q, q, q, None, block_indices=torch.zeros(1))
    attend(torch.nn.Identity(), q, q, q, None, block_indices=None, position_ids=torch.zeros(1))
    with pytest.raises(ArgumentError, match=r"sliding_window: expected a mask that says which way the window looks"):
        attend(torch.nn.Identity(), q, q, q, None, sliding_window=2, is_causal=False)


@pytest.mark.parametrize(
    ("is_causal", "Tq", "Tk"), [(True, 5, 5), (True, 3, 8), (True, 1, 8), (False, 3, 8), (None, 5, 5)]
)
def test_no_mask_means_what_it_means_to_sdpa(is_causal, Tq, Tk):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    q, k, v = torch.randn(2, 4, Tq, 8), torch.randn(2, 4, Tk, 8), torch.randn(2, 4, Tk, 8)
    given = {"is_causal": is_causal, "scaling": 0.3}
    plain, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](torch.nn.Identity(), q, k, v, None, **given)
    out, _ = attend(torch.nn.Identity(), q, k, v, None, **given)
    torch.testing.assert_close(out, plain)
    assert out.is_contiguous()


def rules():
    """Every kind of mask that transformers makes, by name: arguments of its mask function."""
    from transformers import masking_utils as hf

    left = torch.tensor([[1] * 9, [0] * 4 + [1] * 5]).bool()
    causal = hf.causal_mask_function
    packed = hf.packed_sequence_mask_function(torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2, 2]] * 2))
    blocks = torch.tensor([[-1, 0, 0, 0, -1, -1, 1, 1, -1]] * 2)
    return {
        "causal": {"mask_function": causal},
        "left padding": {"mask_function": causal, "attention_mask": left},
        "window": {"mask_function": hf.sliding_window_causal_mask_function(3), "attention_mask": left},
        "both ways": {"mask_function": hf.bidirectional_mask_function, "allow_is_bidirectional_skip": True},
        "window both ways": {"mask_function": hf.sliding_window_bidirectional_mask_function(2), "attention_mask": left},
        "chunks": {"mask_function": hf.chunked_causal_mask_function(4, torch.tensor([0, 4])), "attention_mask": left},
        "packed": {"mask_function": hf.and_masks(causal, packed)},
        "pictures": {"mask_function": hf.or_masks(causal, hf.blockwise_overlay(blocks)), "use_vmap": True},
        "holes": {"mask_function": causal, "attention_mask": torch.tensor([[1, 1, 0, 1, 1, 0, 1, 1, 1]] * 2).bool()},
        "separate": {"mask_function": lambda b, h, q, k: (q - k) % 3 == 0},
    }


@pytest.mark.parametrize("block", [1 << 22, 40])
@pytest.mark.parametrize("name", rules())
def test_a_lazy_mask_says_what_sdpas_mask_says(name, block, monkeypatch):
    from transformers.masking_utils import sdpa_mask

    monkeypatch.setattr(lazymask, "BLOCK", block)
    options = rules()[name]
    lazy = make_mask(2, 9, 9, **options)
    dense = lazy.mask(lazy.padding).dense(9, 9, B=2).expand(2, 1, 9, 9)
    whole = options | {"allow_is_bidirectional_skip": False}
    assert torch.equal(dense, sdpa_mask(2, 9, 9, allow_is_causal_skip=False, **whole))
    assert (lazy.spans[2] is None) == (name != "separate")
    assert make_mask(attention_mask=lazy) is lazy


def test_a_lazy_mask_of_a_static_cache_leaves_out_the_room_that_is_left():
    from transformers.masking_utils import causal_mask_function

    lazy = make_mask(1, 3, 20, torch.tensor(4), 0, causal_mask_function)
    assert lazy.keys == 7
    assert lazy.mask(None).dense(3, 7).int()[0, 0].tolist() == [[1] * 5 + [0] * 2, [1] * 6 + [0], [1] * 7]


def test_a_model_that_computes_with_its_mask_is_told():
    lazy = make_mask(1, 3, 3)
    with pytest.raises(
        ArgumentError,
        match=r"attention_mask: expected a model that only hands its mask on .* one that uses its masked_fill",
    ):
        lazy.masked_fill(0)
    assert not hasattr(lazy, "__torch_function__")


def test_a_mask_for_other_lengths_raises():
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(
        ArgumentError, match=r"a mask for Tq=3 queries and the Tk=3 keys of Identity, got one for Tq=3 and Tk=5"
    ):
        attend(torch.nn.Identity(), q, q, q, make_mask(1, 3, 5))


def test_masks_that_are_given_ready_are_honoured():
    model, inputs = made.DECODERS["llama"]().eval(), batch("none")
    allowed = torch.ones(T, T).bool().tril()[None, None].expand(2, 1, T, T).clone()
    allowed[1, :, :, 2] = False
    allowed[1, :, 2, 2] = True
    added = torch.zeros(2, 1, T, T).masked_fill(~allowed, torch.finfo(torch.float32).min)
    for mask in (allowed, added):
        given = {"input_ids": inputs["input_ids"], "attention_mask": mask}
        with torch.no_grad():
            plain = model(**given).logits
            with watch(model) as trace:
                torch.testing.assert_close(model(**given).logits, plain, atol=2e-5, rtol=1e-4)
        assert trace.observation(0).received[1, :, 2].max() <= 1


def test_packed_texts_do_not_see_each_other():
    model = made.DECODERS["llama"]().eval()
    given = {"input_ids": torch.randint(3, 64, (1, 9)), "position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])}
    with torch.no_grad():
        plain = model(**given, use_cache=False).logits
        with watch(model) as trace:
            torch.testing.assert_close(model(**given, use_cache=False).logits, plain, atol=2e-5, rtol=1e-4)
    assert trace.observation(0).visible[0, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 5]


def test_training_with_dropout_is_sdpas_to_the_bit():
    model = made.hf.LlamaForCausalLM(made.hf.LlamaConfig(**made.GROUPED, attention_dropout=0.4)).train()
    inputs = batch("left")
    torch.manual_seed(0)
    plain = model(**inputs).logits
    torch.manual_seed(0)
    with watch(model) as trace:
        assert torch.equal(model(**inputs).logits, plain)
    real = inputs["attention_mask"].sum(-1).float()
    torch.testing.assert_close(trace.observation(0).received.sum(-1), real[:, None].expand(2, 4))


def test_training_with_dropout_and_sinks_keeps_means():
    q, k, v = 2 * torch.randn(3, 1, 2, 40, 8)
    sinks = torch.tensor([4.0, 3.0])  # without them the result would be off by 0.35, without the softcap by 0.93
    exact, _ = attend(torch.nn.Identity(), q, k, v, None, s_aux=sinks, softcap=1.0)
    found = sum(
        attend(torch.nn.Identity(), q, k, v, None, dropout=0.5, s_aux=sinks, softcap=1.0)[0] for _ in range(400)
    )
    assert (found / 400 - exact).abs().mean() < 0.03
    assert (attend(torch.nn.Identity(), q, k, v, None, dropout=0.5, s_aux=sinks)[0] - exact).abs().mean() > 0.1


def test_an_exception_leaves_the_model_as_it_was():
    model = made.DECODERS["gemma3"]().eval()
    model.set_attn_implementation("sdpa")
    with pytest.raises(IndexError), watch(model):
        model(input_ids=torch.tensor([[1000]]))
    assert model.config._attn_implementation == "sdpa"
    assert not any(m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("order", ["import clearhead\nimport transformers", "import transformers\nimport clearhead"])
def test_importing_both_libraries_is_enough(order):
    code = (
        order
        + """
import inspect
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8,
    num_hidden_layers=1, num_attention_heads=2))
model.set_attn_implementation("clearhead")
import torch
print(type(model(torch.tensor([[1, 2, 3]]), output_attentions=True).attentions[0]).__name__)
print(len(inspect.getsource(transformers.modeling_utils)) > 1000)
"""
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["Observation", "True"], done.stderr
