"""Hugging Face models, from a folder or a hub id."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from clearhead.errors import InputError
from clearhead.models.model import Model, Part
from clearhead.tokens import Spelling

MARK = "\ue000"  # a character of private use, where a chat template is to be cut
ANSWERS_IN = 5.0  # seconds that the hub has for its first answer
REFUSED = "system: the chat template of {} takes no system prompt; put it in front of the question"


@dataclass(frozen=True, eq=False)
class HubModel(Model):
    """A model of transformers with its tokenizer."""

    name: str
    network: nn.Module
    tokenizer: Any
    before: Sequence[int]
    after: Sequence[int]
    special: Collection[int]
    writes: bool

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {type(self.network).__name__})"

    @property
    def config(self) -> Any:
        """The network's own configuration."""
        return self.network.config

    @property
    def context(self) -> int:  # noqa: D102
        known = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        return known if isinstance(known, int) and known > 0 else 1 << 20

    @property
    def vocabulary(self) -> int:  # noqa: D102
        return int(self.config.get_text_config().vocab_size)

    @property
    def attention_sizes(self) -> tuple[int, int, int, int] | None:  # noqa: D102
        c = self.config.get_text_config()
        layers, heads = getattr(c, "num_hidden_layers", None), getattr(c, "num_attention_heads", None)
        if not isinstance(layers, int) or not isinstance(heads, int):
            return None
        width = getattr(c, "head_dim", None) or c.hidden_size // heads
        return layers, heads, getattr(c, "num_key_value_heads", None) or heads, width

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids)

    def decode(self, ids: list[int]) -> str:  # noqa: D102
        self.check(ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def pieces(self, ids: list[int]) -> list[str]:  # noqa: D102
        self.check(ids)
        return self._spelling(ids)

    @functools.cached_property
    def _spelling(self) -> Spelling:
        return Spelling(self.tokenizer)

    def quiet(self) -> contextlib.AbstractContextManager[None]:  # noqa: D102
        return _quiet()

    def read(self, ids: list[int]) -> None:  # noqa: D102
        options: dict[str, Any] = {"use_cache": False, "logits_to_keep": 1} if self.writes else {}
        with torch.no_grad(), _quiet():
            self.network(input_ids=torch.tensor([ids], device=self.network.device), **options)  # type: ignore[arg-type]

    def _generate(self, ids: list[int], n: int, temperature: float, seed: int) -> list[int]:
        given = torch.tensor([ids], device=self.network.device)  # type: ignore[arg-type]
        pad = self.tokenizer.pad_token_id
        options = {"do_sample": temperature > 0, "num_beams": 1, "pad_token_id": 0 if pad is None else pad}
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {}
        with torch.random.fork_rng(), torch.no_grad(), _quiet():
            torch.manual_seed(seed)
            out = self.network.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=n, **options)  # type: ignore[operator]
        return [int(i) for i in out[0, len(ids) :]]

    def question(self, documents: Sequence[str], question: str, *, system: str | None = None) -> list[Part]:  # noqa: D102
        if not getattr(self.tokenizer, "chat_template", None):
            return super().question(documents, question, system=system)
        from jinja2 import TemplateError  # what writes chat templates; transformers brings it

        said = [] if system is None else [{"role": "system", "content": MARK}]
        chat = [*said, {"role": "user", "content": MARK}]
        try:
            written = self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:  # its own way of refusing a role
            raise InputError(f"{REFUSED.format(self.name)} ({error})") from error
        around = str(written).split(MARK)
        if len(around) != len(chat) + 1:  # some leave it out without a word
            raise InputError(REFUSED.format(self.name))
        first, *between, last = (
            Part("template", list(self.tokenizer(x, add_special_tokens=False, verbose=False).input_ids)) for x in around
        )
        told = [] if system is None else [Part("system", self.encode_part(system)), *between]
        asked = Part("question", self.encode_part(question))
        return [first, *told, *self._documents(documents), asked, last]


def load_hub(name: str, where: Path | str, dtype: torch.dtype | None, *, trust_remote_code: bool) -> HubModel:
    """Load a folder or a hub id; raises whatever is wrong with it."""
    try:
        import transformers as hf
    except ImportError as error:
        raise InputError(
            f"model {name!r}: needs transformers, which is not installed; pip install 'clearhead[hf]'"
        ) from error
    silent = None if isinstance(where, Path) else _silence(name)
    if silent is not None and not _cached(name):
        raise InputError(
            f"model {name!r}: there is no such folder; as a hub id it is not in the cache here, and the hub cannot be reached "
            f"({silent}). Name a folder with a model, or fetch it where there is a network: hf download {name}"
        )
    here = isinstance(where, Path) or silent is not None
    options: dict[str, Any] = {"local_files_only": here, "trust_remote_code": trust_remote_code}
    with _quiet():
        config = hf.AutoConfig.from_pretrained(where, **options)
        _check_reads_one_text(name, config)
        tokenizer = hf.AutoTokenizer.from_pretrained(where, **options)
        if not tokenizer(
            "a word", add_special_tokens=False
        ).input_ids:  # transformers makes an empty one where there are no files
            raise InputError(
                f"model {name!r}: has no tokenizer; put its files beside the weights (tokenizer.save_pretrained)"
            )
        kinds = " ".join(config.architectures or [])
        auto: Any = hf.AutoModelForCausalLM if "CausalLM" in kinds or "LMHead" in kinds else hf.AutoModel
        network = auto.from_pretrained(
            where, config=config, dtype=torch.float32 if dtype is None else dtype, use_safetensors=True, **options
        )
    network = network.eval().requires_grad_(requires_grad=False)
    writes = auto is hf.AutoModelForCausalLM
    return HubModel(name, network, tokenizer, *_around(tokenizer), Spelling(tokenizer).special, writes)


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _silence(name: str) -> str | None:
    """Why the hub says nothing of a model; None where it answers, whatever it says.

    It is asked once: transformers would ask for half a minute before it says that nobody answers.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"), timeout=ANSWERS_IN)
    except HfHubHTTPError:
        return None
    except OfflineModeIsEnabled:
        return "HF_HUB_OFFLINE is set"
    except Exception as error:  # noqa: BLE001  (of whichever library it asks by)
        return " ".join(str(error).split()) or type(error).__name__
    return None


def _check_reads_one_text(name: str, config: Any) -> None:
    kind = "an encoder-decoder, which reads one text and writes another" if config.is_encoder_decoder else None
    if getattr(config.get_text_config(), "vocab_size", None) is None:
        kind = "a model without a vocabulary, which reads no text"
    if kind is not None:
        remedy = "watch it in code, with watch(model): there its inputs can be given"
        raise InputError(f"model {name!r}: {kind} ({config.model_type}); {remedy}")


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that stand before and after every text."""
    bare = tokenizer("a", add_special_tokens=False).input_ids
    whole = tokenizer("a").input_ids
    at = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0)
    return list(whole[:at]), list(whole[at + len(bare) :])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no notes: only what is wrong."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
