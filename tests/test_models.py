from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import sys
import unicodedata

import hypothesis
import pytest
import torch
from hypothesis import strategies
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from clearhead.addresses import Head
from clearhead.errors import InputError
from clearhead.models import Model, load
from clearhead.models.loading import BUILTIN
from clearhead.nn import SelfAttention
from clearhead.roles import calibrate
from clearhead.tokens import ALPHABET, pieces, token_bytes, visible


@functools.cache
def builtin() -> Model:
    return load("builtin")


@pytest.fixture
def model() -> Model:
    return builtin()


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
    rows = re.findall(r"\| (L\d+H\d+) \| ([a-z-]+) \| (\d\.\d\d) ±", card)
    for head, role, told in rows:
        # One more in the last digit: another processor may round the other way.
        assert found[Head.parse(head)][role].mean == pytest.approx(float(told), abs=0.011)
    told_of = ("previous-token", "induction", "first-token")
    strong = {(str(head), role) for head, scores in found.items() for role in told_of if scores[role].mean >= 0.31}
    assert strong <= {(head, role) for head, role, _ in rows}
    assert {role for _, role in strong} >= {"previous-token", "induction"}


def test_weights_are_stored_in_sixteen_bits_and_computed_in_float32(model):
    stored = load_file(BUILTIN / "model.safetensors")
    assert {t.element_size() for t in stored.values()} == {2}
    assert {(p.dtype, p.requires_grad) for p in model.network.parameters()} == {(torch.float32, False)}
    assert model.network(torch.tensor([[0, 5]])).dtype == torch.float32
    assert not model.network.training


def test_loading_and_generating_leave_the_callers_random_numbers_alone():
    before = torch.get_rng_state()
    load("builtin").generate([0, 5], 2, temperature=1.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_importing_the_models_loads_no_tokenizer_until_one_is_needed():
    code = "import sys, clearhead.models; print('tokenizers' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_every_attention_layer_of_the_network_is_the_librarys_own(model):
    layers = [m for m in model.network.modules() if isinstance(m, SelfAttention)]
    assert [m.heads for m in layers] == [model.config.heads] * model.config.layers


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


def test_a_piece_that_spells_a_special_token_or_markup_stays_text():
    assert pieces(["<|a\u202e\n|>", b"<|start|>", b"<script>"]) == ["<|a‹U+202E›↵|>", "<|start|>", "<script>"]


@hypothesis.given(text=strategies.text(max_size=40))
def test_pieces_of_any_text_read_as_that_text(text):
    model = builtin()
    ids = model.encode(text)
    shown = model.pieces(ids)[1:]
    assert len(shown) == len(ids) - 1
    assert "".join(shown).replace("…", "") == visible(text).replace("…", "")
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in "".join(shown))
    assert model.decode(ids) == text


@hypothesis.given(tokens=strategies.lists(strategies.binary(min_size=1, max_size=5), max_size=12))
def test_bytes_cut_anywhere_give_one_piece_a_token_and_lose_no_character(tokens):
    shown = pieces(tokens)
    assert len(shown) == len(tokens)
    assert "".join(shown).replace("…", "") == visible(b"".join(tokens).decode("utf-8", "replace")).replace("…", "")


def test_an_id_without_a_token_is_shown_as_its_number(model):
    bare = dataclasses.replace(model, tokenizer=Tokenizer(BPE({"a": 0}, [])))
    assert bare.pieces([0, 7, 0]) == ["a", "‹7›", "a"]


def test_the_byte_alphabet_is_that_of_the_tokenizers_library():
    split = ByteLevel(add_prefix_space=False, use_regex=False)
    for number in (*range(0x100), 0x20AC, 0x1F600):  # whose UTF-8 between them has most bytes that text can have
        [(token, _)] = split.pre_tokenize_str(chr(number))
        assert token_bytes(token) == chr(number).encode()
    assert set(ALPHABET) == set(ByteLevel.alphabet())
    assert sorted(ALPHABET.values()) == list(range(256))


def test_a_model_that_is_not_there_is_named_with_what_would_do(tmp_path):
    with pytest.raises(
        InputError,
        match=r"model 'gpt9': expected \"builtin\", \"smollm2\", a folder.*there is no such folder; on the hub every "
        r"model has an owner, as in openai-community/gpt2$",
    ):
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
