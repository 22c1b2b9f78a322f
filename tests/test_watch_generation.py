"""Generated tokens share the prompt's grid, whichever cache they come from; what is kept gives any part of any pattern."""

from __future__ import annotations

import pytest
import torch

import watch_architectures as made
from clearhead import Observables, watch
from clearhead.addresses import Head
from clearhead.errors import ArgumentError, InputError
from clearhead.trace import Trace
from watch_cases import Decoder, Overhear, check_seen

QUANTITIES = ("lse", "entropy", "received", "top_weights", "distance", "self_weight", "previous_weight", "first_weight",
              "same_token", "after_same_token", "visible")  # fmt: skip
NEW = 7


def generated(model, inputs, **options):
    with torch.no_grad():
        return model.generate(
            **inputs, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0, **options
        )


def same_as_one_forward(trace, model, ids, mask=None, **options):
    """What was seen of a text step by step is what one forward over it sees."""
    with torch.no_grad(), watch(model, **options) as whole:
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    assert [(c.layer, c.name, c.run) for c in trace.calls] == [(c.layer, c.name, 0) for c in whole.calls]
    for a, b in zip(trace.calls, whole.calls, strict=True):
        real = slice(None) if mask is None else mask.bool()[:, None].expand(a.observation.lse.shape)
        for name in QUANTITIES:
            x, y = a.observation.values[name], b.observation.values[name]
            if name == "received" or mask is None:
                x, y = torch.broadcast_tensors(x, y)
                torch.testing.assert_close(x, y, atol=3e-5, rtol=1e-4, msg=f"{a.name} {name}")
            elif name != "visible":
                torch.testing.assert_close(x[real], y[real], atol=3e-5, rtol=1e-4, msg=f"{a.name} {name}")
        assert torch.equal(a.query_ids, ids)
    return whole


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "gemma3", "gpt_oss", "deepseek_v3"])
def test_a_generated_text_is_seen_as_if_read_in_one_forward(name, cache):
    torch.manual_seed(3)
    model = made.DECODERS[name]().eval()
    options = {"cache_implementation": "static", "max_length": None} if cache == "static" else {}
    inputs = {"input_ids": torch.randint(3, 64, (2, 9)), "attention_mask": torch.ones(2, 9).long()}
    plain = generated(model, inputs, **options)
    with watch(model) as trace:
        out = generated(model, inputs, **options)
    assert torch.equal(out, plain)
    assert trace.token_ids == out[0, :-1].tolist()  # the last token was never read
    same_as_one_forward(trace, model, out[:, :-1])
    with pytest.raises(AttributeError, match="cells are those of a shorter text"):
        _ = trace[0].map_mean


def test_padded_prompts_of_a_batch():
    model = made.DECODERS["llama"]().eval()
    mask = torch.ones(2, 9).long()
    mask[1, :4] = 0
    inputs = {"input_ids": torch.randint(3, 64, (2, 9)), "attention_mask": mask}
    with watch(model) as trace:
        out = generated(model, inputs)
    whole = torch.cat([mask, torch.ones(2, NEW - 1).long()], 1)
    assert torch.equal(trace[0].padded, ~whole.bool())
    positions = (whole.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad(), watch(model) as once:
        model(input_ids=out[:, :-1], attention_mask=whole, position_ids=positions, use_cache=False)
    torch.testing.assert_close(trace[1].received, once[1].received, atol=3e-5, rtol=1e-4)


def test_the_official_channel_holds_an_observation_a_step_and_layer():
    model = made.DECODERS["llama"]().eval()
    model.set_attn_implementation("clearhead")
    inputs = {"input_ids": torch.randint(3, 64, (1, 9)), "attention_mask": torch.ones(1, 9).long()}
    out = generated(model, inputs, output_attentions=True, return_dict_in_generate=True)
    assert len(out.attentions) == NEW
    assert [seen.lse.shape[2] for step in out.attentions for seen in step] == [9, 9] + [1, 1] * (NEW - 1)
    assert out.attentions[-1][0].received.shape[-1] == 9 + NEW - 1


def test_beam_search_is_refused_and_the_cache_left_as_it_was():
    model = made.DECODERS["llama"]().eval()
    inputs = {"input_ids": torch.randint(3, 64, (1, 5)), "attention_mask": torch.ones(1, 5).long()}
    cache = made.hf.DynamicCache(config=model.config)
    with pytest.raises(ArgumentError, match=r"num_beams: expected 1 while watching.*as beam search does"), watch(model):
        generated(model, inputs, num_beams=2, cache=cache)
    assert "reorder_cache" not in vars(cache)
    assert generated(model, inputs, num_beams=2).shape == (1, 5 + NEW)


@pytest.mark.parametrize("helper", ["another model", "the model itself", "its prompt"])
def test_assisted_decoding_is_refused_and_the_cache_left_as_it_was(helper):
    model = made.DECODERS["llama"]().eval()
    other = model if helper == "the model itself" else made.DECODERS["llama"]().eval()
    options = {"prompt_lookup_num_tokens": 2} if helper == "its prompt" else {"assistant_model": other}
    inputs = {"input_ids": torch.tensor([[5, 6, 5, 6, 5]]), "attention_mask": torch.ones(1, 5).long()}
    cache = made.hf.DynamicCache(config=model.config)
    told = (
        r"assistant_model: expected none while watching, and no prompt_lookup_num_tokens, got a cache that is cut back"
    )
    with pytest.raises(ArgumentError, match=told), watch(model):
        generated(model, inputs, cache=cache, **options)
    assert not {"crop", "reorder_cache"} & set(vars(cache))
    assert generated(model, inputs, **options).shape == (1, 5 + NEW)


def test_an_encoder_is_seen_once_and_its_decoder_token_by_token():
    model = made.t5().eval()
    inputs = {"input_ids": torch.randint(3, 64, (1, 8))}
    with watch(model) as trace:
        out = generated(model, inputs)
    assert {(c.crosses, c.observation.lse.shape[2]) for c in trace.calls} == {(False, 8), (False, NEW), (True, NEW)}
    decoder = trace.calls[2]
    assert decoder.query_ids.tolist() == out[:, :-1].tolist()
    assert trace.calls[3].key_ids.tolist() == inputs["input_ids"].tolist()
    with torch.no_grad(), watch(model) as once:
        model(**inputs, decoder_input_ids=out[:, :-1], use_cache=False)
    for a, b in zip(trace.calls, once.calls, strict=True):
        torch.testing.assert_close(a.observation.received, b.observation.received, atol=3e-5, rtol=1e-4)


def test_a_text_after_a_generated_one_is_another_run():
    model = made.DECODERS["llama"]().eval()
    first, second = (
        {"input_ids": torch.randint(3, 64, (1, n)), "attention_mask": torch.ones(1, n).long()} for n in (5, 4)
    )
    with watch(model) as trace:
        generated(model, first)
        generated(model, second)
    assert [run.calls[0].rows for run in trace.runs] == [5 + NEW - 1, 4 + NEW - 1]
    assert trace.runs[1].token_ids[:4] == second["input_ids"][0].tolist()


def test_caches_that_hold_different_numbers_of_tokens_are_refused():
    model = made.DECODERS["llama"]().eval()
    cache = made.hf.DynamicCache(config=model.config)
    told = r"attention_mask: expected a mask for Tq=1 queries and the Tk=4 keys.*caches differ"
    with torch.no_grad(), watch(model):
        model(input_ids=torch.randint(3, 64, (1, 5)), cache=cache)
        cache.layers[1].crop(-2)
        with pytest.raises(ArgumentError, match=told):
            model(input_ids=torch.randint(3, 64, (1, 1)), cache=cache)


@pytest.mark.parametrize("of_queries", [None, torch.tensor([1, 1, 1, 0, 0, 0])], ids=["the keys'", "their own"])
def test_groups_of_a_prompt_hold_for_what_is_generated(of_queries):
    model = made.DECODERS["llama"]().eval()
    inputs = {"input_ids": torch.randint(3, 64, (1, 6)), "attention_mask": torch.ones(1, 6).long()}
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    with watch(model, observables=Observables(key_groups=groups, query_groups=of_queries, rows=(2,))) as trace:
        generated(model, inputs)
    share = trace[0].group_weight
    assert share.shape == (1, 4, 6 + NEW - 1, 2)
    assert (share[:, :, -1].sum(-1) < 1).all()  # tokens that were generated are in no group
    torch.testing.assert_close(share[:, :, :6].sum(-1), torch.ones(1, 4, 6))
    torch.testing.assert_close(trace[0].rows.sum(-1), torch.ones(1, 4, 1))


def test_some_heads_of_some_layers():
    model, ids = Decoder().eval(), torch.randint(50, (1, 9))
    with torch.no_grad(), watch(model) as every:
        model(ids)
    with torch.no_grad(), watch(model, heads=["L1H3", Head(1, 0), 2], keep="qk") as some:
        model(ids)
    assert [str(h) for h in some.heads()] == ["L0H2", "L1H0", "L1H2", "L1H3", "L2H2"]
    call = some.call(1)
    assert call.index(Head(1, 3)) == 2
    assert torch.equal(call.observation.entropy[:, 2], every[1].entropy[:, 3])
    with Overhear() as heard, torch.no_grad():
        model(ids)
    torch.testing.assert_close(
        some.crop("L1H3", slice(2, 5), slice(0, 6)).double(), heard.weights[1][0, 3, 2:5, :6], atol=1e-6, rtol=1e-5
    )
    with pytest.raises(InputError, match="no such head"):
        some.crop("L1H1", slice(0, 1), slice(0, 1))
    told = r"heads: expected a list|expected an address"
    for bad in ("L1H3", ["x"], [-1]):
        with pytest.raises((ArgumentError, InputError), match=told), watch(model, heads=bad):
            pass


def test_grouped_heads_can_be_kept_apart():
    model = made.DECODERS["qwen3"]().eval()
    ids = torch.randint(3, 64, (1, 9))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        p = model(ids, output_attentions=True).attentions[1]
        with watch(model, heads=[3], keep="qk") as trace:
            model(ids)
    torch.testing.assert_close(trace.crop("L1H3", slice(None), slice(None)), p[0, 3], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_kept_gives_the_whole_pattern_also_of_a_generated_text(name, on_disk, tmp_path):
    torch.manual_seed(0)
    model = made.DECODERS[name]().eval()
    mask = torch.ones(2, 9).long()
    mask[1, :3] = 0
    inputs = {"input_ids": torch.randint(3, 64, (2, 9)), "attention_mask": mask}
    with watch(model, keep="qkv", keep_in=tmp_path if on_disk else None) as trace:
        out = generated(model, inputs)
    assert list(tmp_path.iterdir()) == []  # files without names
    whole = torch.cat([mask, torch.ones(2, NEW - 1).long()], 1)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        positions = (whole.cumsum(-1) - 1).clamp(min=0)
        eager = model(
            input_ids=out[:, :-1], attention_mask=whole, position_ids=positions, use_cache=False, output_attentions=True
        )
    for layer, p in enumerate(eager.attentions):
        for batch in range(2):
            real = whole[batch].bool()
            found = trace.crop(Head(layer, 2), slice(None), slice(None), batch=batch)
            torch.testing.assert_close(found[real], p[batch, 2][real], atol=2e-5, rtol=1e-3)
            assert trace.pattern(Head(layer, 2), batch=batch).shape == (1, 1, 15, 15)
    assert trace.tile("L1H0", 0, 0, 0).shape == (15, 15)
    contribution = trace.crop("L1H0", slice(14, 15), slice(None), what="contribution")
    assert contribution.shape == (1, 15)
    rolled = trace.rollout(14)
    assert rolled.layers.shape == (2, 15)


def test_keys_that_were_gone_before_watching_began_leave_no_pattern():
    model = made.DECODERS["mistral"]().eval()
    cache = made.hf.DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.randint(3, 64, (1, 9)), cache=cache)
        with watch(model, keep="qk") as trace:
            model(input_ids=torch.randint(3, 64, (1, 1)), cache=cache)
    with pytest.raises(InputError, match="its first keys were in a cache already when watching began"):
        trace.crop("L0H1", slice(0, 1), slice(0, 1))


def test_looking_closer_without_having_kept_says_what_to_do():
    model = Decoder().eval()
    with torch.no_grad(), watch(model) as trace:
        model(torch.randint(50, (1, 5)))
    with pytest.raises(InputError, match=r'head L0H1: queries and keys were not kept; watch with keep="qk"'):
        trace.crop("L0H1", slice(0, 1), slice(0, 1))
    with pytest.raises(InputError, match="rollout: queries and keys were not kept"):
        trace.rollout(2)
    with pytest.raises(ArgumentError, match='keep: expected "qk", "qkv" or None, got'), watch(model, keep="all"):
        pass
    nowhere = {"keep": "qk", "keep_in": "/no/such"}
    with (
        pytest.raises(ArgumentError, match="keep_in: expected a folder that can be written to"),
        watch(model, **nowhere),
    ):
        pass


def test_kept_queries_and_keys_are_saved_with_the_trace(tmp_path):
    model = made.DECODERS["gemma2"]().eval()
    inputs = {"input_ids": torch.randint(3, 64, (1, 9)), "attention_mask": torch.ones(1, 9).long()}
    with watch(model, keep="qk") as trace:
        generated(model, inputs)
    trace.save(tmp_path / "trace")
    back = Trace.load(tmp_path / "trace")
    for head in trace.heads():
        every = slice(None), slice(None)
        torch.testing.assert_close(back.crop(head, *every), trace.crop(head, *every), atol=1e-6, rtol=1e-6)
    assert back.rollout(5).input.allclose(trace.rollout(5).input)


def test_a_model_in_half_precision_is_kept_in_it():
    model = made.DECODERS["llama"]().eval().to(torch.float16)
    with torch.no_grad():
        plain = model(torch.arange(3, 12)[None]).logits
        with watch(model, keep="qk") as trace:
            seen = model(torch.arange(3, 12)[None]).logits
    torch.testing.assert_close(seen, plain, atol=2e-2, rtol=2e-2)
    assert trace.calls[0].kept.queries[0].dtype == torch.float16
    check_seen(trace[0], trace.calls[0].pattern.crop(slice(None), slice(None)).double(), atol=2e-5)
