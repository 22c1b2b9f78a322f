from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

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
            else torch.multinomial(torch.softmax(logits.double() / temperature, -1), 1, generator=generator)
        )
        plain.append(int(token))
    assert model.generate(ids, 12, temperature=temperature, seed=3) == plain[len(ids) :]


def test_generation_beyond_the_context_is_refused_with_the_numbers(model):
    with pytest.raises(
        InputError, match=r"1000 tokens and 25 new ones: the context of builtin holds 1 to 1024.*at most 24"
    ):
        model.generate([1] * 1000, 25)


def test_drawing_is_repeatable_by_its_seed_and_cold_draws_are_the_likeliest(model):
    ids = model.encode("Enter")
    drawn = [model.generate(ids, 8, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert model.generate(ids, 8, temperature=1e-40) == model.generate(ids, 8)
    assert model.generate(ids, 0) == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: m.generate([0, 1024], 1), "ids: expected token ids from 0 to 1023, got 1024"),
        (lambda m: m.pieces([-1]), "ids: expected token ids from 0 to 1023, got -1"),
        (lambda m: m.decode([5000]), "ids: expected token ids from 0 to 1023, got 5000"),
        (lambda m: m.generate([0], -2), "n: expected a number from 0 on, got -2"),
        (lambda m: m.generate([0], 1, temperature=-0.5), r"temperature: expected a number from 0 on, got -0\.5"),
        (lambda m: m.generate([0], 1, temperature=float("nan")), "temperature: expected.*got nan"),
        (
            lambda m: m.encode("ab\ud800"),
            r"text: expected Unicode text, got half of a surrogate pair, U\+D800, at position 2",
        ),
    ],
)
def test_what_no_model_can_use_is_refused(model, call, text):
    with pytest.raises(InputError, match=text):
        call(model)


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000])
def test_a_name_that_is_no_path_is_refused_like_any_other(name):
    with pytest.raises(InputError, match="there is no such folder") as caught:
        load(name)
    assert len(str(caught.value)) < 400


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


def test_an_id_without_a_token_is_shown_as_its_number(model):
    bare = dataclasses.replace(model, tokenizer=Tokenizer(BPE({"a": 0}, [])))
    assert bare.pieces([0, 7, 0]) == ["a", "‹7›", "a"]


def test_the_byte_alphabet_is_complete():
    assert sorted(ALPHABET.values()) == list(range(256))


def test_a_model_that_is_not_there_is_named_with_what_would_do(tmp_path):
    with pytest.raises(InputError, match=r"model 'gpt9': expected \"builtin\", or a folder.*there is no such folder"):
        load("gpt9")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match=r"lacks model\.safetensors, tokenizer\.json"):
        load(str(tmp_path))


def edited(**changes):
    """An edit of config.json."""
    return lambda raw: json.dumps(json.loads(raw) | changes).encode()


@pytest.mark.parametrize(
    ("file", "edit", "text"),
    [
        ("model.safetensors", lambda raw: b"not a model", "SafetensorError|[Hh]eader|deserializ"),
        ("model.safetensors", lambda raw: raw[: len(raw) // 2], "[Hh]eader|deserializ|[Ff]ile"),
        ("tokenizer.json", lambda raw: b"{}", "Model missing"),
        (
            "tokenizer.json",
            lambda raw: raw.replace(b"<|start|>", b"<|tse|>", 1),
            "tokenizer.json has 1025 tokens, more than 1024",
        ),
        ("config.json", lambda raw: b"{", "Expecting"),
        ("config.json", lambda raw: b"[]", "config.json must hold vocabulary, layers"),
        ("config.json", edited(layers=5), "Missing key"),
        ("config.json", edited(vocabulary=10**12), "size mismatch"),
        ("config.json", edited(heads=5), "embed: expected a multiple of heads=5, got 192"),
        ("config.json", edited(context="long"), "context in config.json must be a number from 1 on, not 'long'"),
        ("config.json", edited(more=1), "and nothing else"),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path, file, edit, text):
    for part in BUILTIN.iterdir():
        (tmp_path / part.name).write_bytes(part.read_bytes())
    (tmp_path / file).write_bytes(edit((tmp_path / file).read_bytes()))
    with pytest.raises(InputError, match=f"its files do not make a model of this kind.*({text})") as caught:
        load(str(tmp_path))
    assert "\n" not in str(caught.value)
