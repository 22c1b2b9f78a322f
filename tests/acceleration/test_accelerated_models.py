"""Whole models under acceleration: their logits, their training, what they write, PyTorch's own layers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.utils.checkpoint
from accelerate_models import MODELS, WORDS, logits, losses
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead import accelerate
from clearhead.testing.tolerance import assert_within_tolerance


def test_the_fast_path_of_torch_layers_goes_by_and_can_be_switched_off() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 128, 64)
    with torch.no_grad(), accelerate() as handle:
        past = model(x)
        assert handle.calls == 0
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            ours = model(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
        assert handle.calls == 2
    torch.testing.assert_close(ours, past, atol=1e-5, rtol=1e-5)


def twin(name: str) -> nn.Module:
    """The same weights every time."""
    torch.manual_seed(0)
    return MODELS[name]()


PADDED = torch.tensor([[1] * 20, [1] * 13 + [0] * 7, [0] * 5 + [1] * 15])


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_models_give_the_logits_they_gave(name: str, training: bool, padded: bool, ran: Counter[str]) -> None:
    ids, mask = torch.randint(2, WORDS, (3, 20)), PADDED if padded else None
    model = twin(name).train(training)
    with torch.no_grad():
        with sdpa_kernel(SDPBackend.MATH):
            baseline = logits(model, ids, mask)
        with accelerate():
            got = logits(model, ids, mask)
        truth = logits(model.double(), ids, mask)
    # In eval PyTorch's own layers have a path of their own that knows no scaled_dot_product_attention.
    assert ran["forward"] == (0 if name == "torch" and not training else 2)
    real = slice(None) if mask is None else mask.bool()  # what stands at padding is nobody's
    assert_within_tolerance(got[real], truth[real], baseline[real], what=name)


@pytest.mark.parametrize("name", MODELS)
def test_models_learn_as_they_did(name: str, ran: Counter[str]) -> None:
    """Fifty steps of training: the loss curve is PyTorch's."""
    ids = torch.randint(2, WORDS, (2, 16))
    truth = losses(twin(name).double(), ids)
    with sdpa_kernel(SDPBackend.MATH):
        baseline = losses(twin(name), ids)
    with accelerate():
        got = losses(twin(name), ids)
    assert ran == {"forward": 100, "backward": 100}
    assert truth[-1] < 0.9 * truth[0]
    assert_within_tolerance(got, truth, baseline, gradient=True, what=f"{name}'s losses")


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_models_write_what_they_wrote(name: str, ran: Counter[str]) -> None:
    """`generate` of a padded batch: a prompt, then one query at a time against the cache."""
    ids, mask = torch.randint(2, WORDS, (3, 20)), PADDED.sort(dim=1).values

    def write(model: nn.Module) -> tuple[Tensor, Tensor]:
        done = model.generate(  # type: ignore[operator]
            input_ids=ids, attention_mask=mask, max_new_tokens=8, min_new_tokens=8, do_sample=False,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
        return done.sequences, torch.stack(done.logits)

    model = twin(name).eval()
    with sdpa_kernel(SDPBackend.MATH):
        _, baseline = write(model)
    with accelerate():
        tokens, got = write(model)
    assert ran["forward"] == 2 * 8
    wanted, truth = write(model.double())
    assert torch.equal(tokens, wanted)
    assert_within_tolerance(got, truth, baseline, what=f"{name}'s logits")


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["plain", "causal", "padding", "numbers"])
def test_multihead_attention(kind: str, batch_first: bool, ran: Counter[str]) -> None:
    layer, x = nn.MultiheadAttention(32, 4, batch_first=batch_first), torch.randn(6, 9, 32, requires_grad=True)
    T, B = (9, 6) if batch_first else (6, 9)
    past = torch.ones(T, T, dtype=torch.bool).triu(1)
    options: dict[str, Any] = {
        "plain": {},
        "causal": {"attn_mask": past, "is_causal": True},
        "padding": {"key_padding_mask": torch.arange(T) >= torch.randint(1, T, (B, 1))},
        "numbers": {"attn_mask": torch.randn(B * 4, T, T)},
    }[kind]

    def both_ways() -> tuple[Tensor, ...]:
        out, _ = layer(x, x, x, need_weights=False, **options)
        return out, *torch.autograd.grad(out.square().sum(), [x, *layer.parameters()])

    wanted = both_ways()
    with accelerate():
        got = both_ways()
    assert ran == {"forward": 1, "backward": 1}
    torch.testing.assert_close(got, wanted)
