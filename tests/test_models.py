from __future__ import annotations

import json

import pytest
import torch

from clearhead.errors import InputError
from clearhead.models import load
from clearhead.models.loading import BUILTIN
from clearhead.models.tokens import ALPHABET, pieces, visible
from clearhead.roles import calibrate


@pytest.fixture(scope="module")
def model():
    return load("builtin")


@pytest.mark.tiny
def test_the_builtin_model_fits_in_five_megabytes_and_says_what_it_is(model):
    assert sum(f.stat().st_size for f in BUILTIN.iterdir()) <= 5_000_000
    assert "Held-out bits per byte" in (BUILTIN / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert model.config.context == 1024


def test_it_has_a_previous_token_head_and_an_induction_head(model):
    found = calibrate(model.network, model.config.vocabulary, period=25, seeds=4, bos=0)
    for role in ("previous-token", "induction"):
        assert max(scores[role].mean for scores in found.values()) >= 0.6


def test_the_card_tells_the_scores_that_are_measured(model):
    found = calibrate(model.network, model.config.vocabulary, period=25, seeds=8, bos=0)
    card = (BUILTIN / "MODEL_CARD.md").read_text(encoding="utf-8")
    for head, scores in found.items():
        for role, score in scores.items():
            if score.mean >= 0.31:
                assert f"| {head} | {role} | {score.mean:.2f} ±" in card


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generation_with_the_cache_equals_generation_without(model, temperature):
    ids = model.encode("Enter the King, and")
    generator = torch.Generator().manual_seed(3)
    plain = list(ids)
    for _ in range(12):
        logits = model.network(torch.tensor([plain]))[0, -1]
        token = (
            logits.argmax()
            if temperature == 0
            else torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
        )
        plain.append(int(token))
    assert model.generate(ids, 12, temperature=temperature, seed=3) == plain[len(ids) :]


def test_generation_beyond_the_context_is_refused_with_the_numbers(model):
    with pytest.raises(
        InputError, match=r"1000 tokens and 25 new ones: the context of builtin holds 1 to 1024.*at most 24"
    ):
        model.generate([1] * 1000, 25)


@pytest.mark.parametrize("text", ["", "To be, or not to be", "naïve café ☕ 日本語\n\ttab", "<|start|> is only text"])
def test_what_is_encoded_decodes_to_itself(model, text):
    ids = model.encode(text)
    assert ids[0] == 0
    assert 0 not in ids[1:]
    assert model.decode(ids) == text
    assert len(model.pieces(ids)) == len(ids)


def test_pieces_show_whole_characters_and_nothing_invisible(model):
    shown = model.pieces(model.encode("a\n é日\u202e<b>"))
    assert shown[0] == "<|start|>"
    text = "".join(shown[1:]).replace("…", "")
    assert text == "a↵·é日‹U+202E›<b>"


def test_split_characters_are_joined_and_broken_ones_shown_as_such():
    smile = "☺".encode()
    assert pieces([smile[:1], smile[1:2], smile[2:], b"!"]) == ["☺", "…", "…", "!"]
    assert pieces([b"\xff", b"ok"]) == ["\N{REPLACEMENT CHARACTER}", "ok"]
    assert pieces([smile[:2]]) == ["\N{REPLACEMENT CHARACTER}"]
    assert pieces([smile[:2], "<|start|>", b"x"]) == ["\N{REPLACEMENT CHARACTER}", "<|start|>", "x"]
    assert visible(" \t\r\n\x00") == "·⇥␍↵‹U+0000›"


def test_the_byte_alphabet_is_complete():
    assert sorted(ALPHABET.values()) == list(range(256))


def test_a_model_that_is_not_there_is_named_with_what_would_do(tmp_path):
    with pytest.raises(InputError, match=r"model 'gpt9': expected \"builtin\", or a folder.*there is no such folder"):
        load("gpt9")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"lacks model\.safetensors, tokenizer\.json"):
        load(str(tmp_path))


def test_a_damaged_model_is_refused_in_one_line(tmp_path):
    for file in BUILTIN.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"not a model")
    with pytest.raises(InputError, match="does not hold a model of this kind"):
        load(str(tmp_path))
    config = json.loads((BUILTIN / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "model.safetensors").write_bytes((BUILTIN / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layers": 5}), encoding="utf-8")
    with pytest.raises(InputError, match="does not hold a model of this kind"):
        load(str(tmp_path))
