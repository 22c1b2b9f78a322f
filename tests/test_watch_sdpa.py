"""The door under any PyTorch model: what it returns is what PyTorch returns, what it saw is what was there."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from clearhead import watch
from clearhead.errors import ArgumentError, NothingSeenWarning
from watch_cases import Decoder, Overhear, check_seen

SDPA = functional.scaled_dot_product_attention


def run(model, *inputs, **named):
    """Output and weights of the unwatched model, then the trace and the output of the watched one."""
    with torch.no_grad():
        with Overhear() as heard:
            plain = model(*inputs, **named)
        with watch(model) as trace:
            seen = model(*inputs, **named)
    return plain, heard.weights, trace, seen


@pytest.mark.tiny
def test_a_model_that_never_heard_of_this_library_is_seen_whole():
    model, ids = Decoder().eval(), torch.randint(50, (2, 13))
    plain, heard, trace, seen = run(model, ids)
    torch.testing.assert_close(seen, plain)
    assert [(call.layer, call.name) for call in trace.calls] == [(n, f"h.{n}") for n in range(3)]
    for call, p in zip(trace.calls, heard, strict=True):
        check_seen(call.observation, p)
    assert trace.token_ids == ids[0].tolist()
    assert trace.calls[1].query_ids.tolist() == ids.tolist()
    assert trace.observation(0).same_token.shape == (2, 4, 13)  # by the tokens the model was given


def test_gradients_are_those_of_the_unwatched_model():
    model, ids = Decoder().train(), torch.randint(50, (2, 9))
    model(ids).logsumexp(-1).sum().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    with watch(model):
        model(ids).logsumexp(-1).sum().backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], msg=name)


def test_dropout_is_pytorchs_to_the_bit_and_weights_are_those_before_it():
    model, ids = Decoder(dropout=0.5).train(), torch.randint(50, (1, 9))
    torch.manual_seed(3)
    with torch.no_grad():
        plain = model(ids)
        torch.manual_seed(3)
        with watch(model) as trace:
            assert torch.equal(model(ids), plain)
    torch.testing.assert_close(trace.observation(0).received.sum(-1), torch.full((1, 4), 9.0))


MASKS = {
    "none": {},
    "is_causal": {"is_causal": True},
    "bool": {"attn_mask": torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) < 0.6},
    "bool per sample": {"attn_mask": torch.rand(2, 1, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.6},
    "hides by -inf": {"attn_mask": torch.full((7, 7), -torch.inf).triu(1)},
    "hides by the most negative number": {"attn_mask": torch.full((7, 7), torch.finfo(torch.float32).min).triu(1)},
    "a row of the most negative number": {"attn_mask": torch.full((7, 7), torch.finfo(torch.float32).min)},
    "both": {"is_causal": True, "attn_mask": torch.rand(7, 7, generator=torch.Generator().manual_seed(2)) < 0.6},
    "bias": {"attn_mask": torch.linspace(-3, 3, 4 * 49).view(4, 7, 7)},
    "scale": {"scale": 0.7, "is_causal": True},
    "last keys are padding": {"attn_mask": torch.tensor([1, 1, 1, 1, 1, 0, 0]).bool().view(1, 1, 1, 7).expand(2, 1, 7, 7)},
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_every_mask_is_pytorchs(name):
    query, key, value = torch.randn(3, 2, 4, 7, 16)
    with watch() as trace:
        out = SDPA(query, key, value, **MASKS[name])
    plain = SDPA(query, key, value, **MASKS[name])
    torch.testing.assert_close(out, plain)
    assert out.stride() == plain.stride()
    with Overhear() as heard:
        SDPA(query, key, value, **MASKS[name])
    check_seen(trace.observation(0), heard.weights[0])
    if name == "last keys are padding":
        assert trace.observation(0).padded.tolist() == [[False] * 5 + [True] * 2]


@pytest.mark.parametrize(("Tq", "Tk"), [(3, 8), (8, 3), (1, 5)])
def test_is_causal_is_aligned_at_the_start(Tq, Tk):
    query, key, value = torch.randn(1, 2, Tq, 8), torch.randn(1, 2, Tk, 8), torch.randn(1, 2, Tk, 8)
    with watch() as trace:
        out = SDPA(query, key, value, is_causal=True)
    torch.testing.assert_close(out, SDPA(query, key, value, is_causal=True))
    with Overhear() as heard:
        SDPA(query, key, value, is_causal=True)
    seen = trace.observation(0)
    torch.testing.assert_close(seen.self_weight[..., 0], torch.ones(1, 2))  # query 0 stands at key 0
    width = min(Tq, Tk)
    p = torch.zeros(1, 2, Tq, Tq, dtype=torch.float64)
    p[..., :width] = heard.weights[0][..., :width]
    check_seen(seen, p)


def test_grouped_and_broadcast_heads_and_another_value_width():
    query, key, value = torch.randn(2, 6, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 3)
    for given in ((query, key, value, {"enable_gqa": True}), (query, key[:, :1], value[:, :1], {})):
        with watch() as trace:
            out = SDPA(*given[:3], **given[3])
        torch.testing.assert_close(out, SDPA(*given[:3], **given[3]))
        assert trace.observation(0).lse.shape == (2, 6, 5)


def test_what_pytorch_refuses_is_refused_in_its_own_words():
    q = torch.randn(1, 4, 5, 8)
    bad = torch.zeros(3, 3).bool()
    with pytest.raises(RuntimeError) as plain:
        SDPA(q, q, q, attn_mask=bad)
    with watch() as trace, pytest.raises(RuntimeError) as watched:
        SDPA(q, q, q, attn_mask=bad)
    assert str(watched.value) == str(plain.value)
    assert trace.calls == []


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention_is_seen_with_its_fast_path(need_weights, batch_first):
    layer = nn.MultiheadAttention(32, 4, batch_first=batch_first).eval()
    x = torch.randn(2, 7, 32) if batch_first else torch.randn(7, 2, 32)
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])
    with torch.no_grad():
        plain, weights = layer(x, x, x, key_padding_mask=padding, need_weights=True, average_attn_weights=False)
        with watch(layer) as trace:
            out, also = layer(x, x, x, key_padding_mask=padding, need_weights=need_weights, average_attn_weights=False)
    torch.testing.assert_close(out, plain)
    assert (also is None) == (not need_weights)
    if need_weights:
        torch.testing.assert_close(also, weights)
    assert trace.observation(0).padded.tolist() == padding.tolist()
    check_seen(trace.observation(0), weights.double())


def test_cross_attention_is_told_from_self_attention():
    layer = nn.TransformerDecoderLayer(32, 4, batch_first=True).eval()
    with torch.no_grad(), watch(layer) as trace:
        layer(torch.randn(1, 5, 32), torch.randn(1, 5, 32))
    assert [(call.name, call.crosses) for call in trace.calls] == [("self_attn", False), ("multihead_attn", True)]


@pytest.mark.parametrize("padded", [False, True])
def test_a_transformer_encoder_is_seen_and_its_fast_path_is_back_afterwards(padded):
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2]) if padded else None
    plain, _, trace, seen = run(model, torch.randn(2, 7, 32), src_key_padding_mask=padding)
    real = torch.ones(2, 7).bool() if padding is None else ~padding
    torch.testing.assert_close(seen[real], plain[real])
    assert [call.name for call in trace.calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert torch.backends.mha.get_fastpath_enabled()
    with pytest.raises(KeyError), watch(model):
        raise KeyError
    assert torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with watch(model):
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_a_text_read_after_another_is_a_run_of_its_own():
    model = Decoder(layers=2).eval()
    first, second = torch.arange(6)[None], torch.arange(9)[None]
    with torch.no_grad(), watch(model) as trace:
        model(first)
        model(second)
    assert [(call.run, call.layer) for call in trace.calls] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [run.token_ids for run in trace.runs] == [first[0].tolist(), second[0].tolist()]
    assert trace.runs[1].observation(1).lse.shape == (1, 4, 9)


class Own(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x


def watched(model, x, times=1):
    with watch(model):
        for _ in range(times):
            model(x)


def test_a_model_that_attends_by_itself_is_said_to():
    with pytest.warns(
        NothingSeenWarning, match=r"no attention call was seen. The model has no attention, as state-.*or"
    ):
        watched(Own(), torch.randn(1, 3, 4))
    with pytest.raises(AttributeError):  # an error says enough
        watched(Own(), None)


class Asks(nn.Module):
    def forward(self, x):
        return SDPA(x, x, x)


def test_what_was_left_to_pytorch_is_said_with_its_reason():
    with pytest.warns(
        NothingSeenWarning, match=r"Not observed: .*meta tensors are not computed here and now \(2 calls\)"
    ):
        watched(Asks(), torch.zeros(1, 2, 3, 4, device="meta"), times=2)


def test_a_compiled_model_is_refused_before_it_runs():
    model, ids = Decoder(), torch.zeros(1, 3).long()
    with pytest.raises(ArgumentError, match=r"model: expected a model that runs as it was written"):
        watched(torch.compile(model, backend="eager"), ids)
    model.h[1].compile(backend="eager")
    with pytest.raises(ArgumentError, match=r"compiled its module 'h.1'"):
        watched(model, ids)
