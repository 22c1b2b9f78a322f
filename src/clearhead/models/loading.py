"""Loading a model by name or folder: weights from safetensors, tokens from tokenizer.json. No pickle, no network."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from clearhead.errors import InputError, message
from clearhead.models.tokens import pieces, token_bytes, visible
from clearhead.models.transformer import Config, Transformer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BUILTIN = Path(__file__).parent / "builtin"
FILES = ("config.json", "model.safetensors", "tokenizer.json")
START = 0  # the token every text starts with


@dataclass(frozen=True, eq=False)
class Model:
    """A network with its tokenizer.

    >>> model = load("builtin")
    >>> ids = model.encode("To be, or not")
    >>> model.network(torch.tensor([ids])).shape[-1] == model.config.vocabulary
    True
    >>> model.decode(ids)
    'To be, or not'
    """

    name: str
    network: Transformer
    tokenizer: Tokenizer

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config})"

    @property
    def config(self) -> Config:
        """Its sizes."""
        return self.network.config

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, the start token first. The text's own bytes never become a special token.

        Raises `InputError` for a string that is no Unicode text (it holds half of a surrogate pair).
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                message(
                    "text",
                    expected="Unicode text",
                    got=f"half of a surrogate pair, U+{ord(text[error.start]):04X}, at position {error.start}",
                    remedy='Read files with encoding="utf-8" and errors="replace".',
                )
            ) from None
        return [START, *(self.tokenizer.encode(text, add_special_tokens=False).ids)]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens left out. Raises `InputError` for an id the vocabulary lacks."""
        self._check(ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def pieces(self, ids: list[int]) -> list[str]:
        """What each token reads as, one string a token; see `clearhead.models.tokens`.

        Raises `InputError` for an id the vocabulary lacks.
        """
        self._check(ids)
        special = {token for token, added in self.tokenizer.get_added_tokens_decoder().items() if added.special}
        names = [self.tokenizer.id_to_token(i) for i in ids]
        return pieces(
            [
                f"‹{i}›" if name is None else name if i in special else token_bytes(name)
                for i, name in zip(ids, names, strict=True)
            ]
        )

    def generate(self, ids: list[int], n: int, *, temperature: float = 0.0, seed: int = 0) -> list[int]:
        """n new token ids after `ids`: the likeliest each time at temperature 0, else drawn with a seed.

        Raises `InputError` when prompt and continuation do not fit the context, for an id the vocabulary lacks, and for an n or
        a temperature below 0.
        """
        self._check(ids)
        for name, value in (("n", n), ("temperature", temperature)):
            if not 0 <= value < math.inf:
                raise InputError(
                    message(name, expected="a number from 0 on", got=str(value), remedy="Use 0 for none of it.")
                )
        if not ids or len(ids) + n > self.config.context:
            raise InputError(
                f"{len(ids)} tokens and {n} new ones: the context of {self.name} holds 1 to {self.config.context}. "
                f"Continue by at most {max(0, self.config.context - len(ids))}, or start from a shorter text."
            )
        return self.network.generate(ids, n, temperature=temperature, seed=seed)

    def _check(self, ids: list[int]) -> None:
        outside = [i for i in ids if not 0 <= i < self.config.vocabulary]
        if outside:
            raise InputError(
                message(
                    "ids",
                    expected=f"token ids from 0 to {self.config.vocabulary - 1}",
                    got=str(outside[0]),
                    remedy=f"Make them with the encode() of {self.name}: every model numbers tokens in its own way.",
                )
            )


def load(name: str = "builtin") -> Model:
    """Load the built-in model, or a folder that holds config.json, model.safetensors and tokenizer.json of the same kind.

    Raises `InputError` for a name or folder that is not there or cannot be read. Under a second for the built-in one.
    """
    from tokenizers import Tokenizer  # here, because most users of the library never load a model

    shown = name if len(name) <= 200 else name[:200] + "…"
    folder = BUILTIN if name == "builtin" else Path(name)
    try:
        there = folder.is_dir()
        missing = [f for f in FILES if not (folder / f).is_file()]
    except (OSError, ValueError):  # too long for a path, or not allowed in one
        there, missing = False, list(FILES)
    if missing:
        raise InputError(
            f'model {shown!r}: expected "builtin", or a folder with config.json, model.safetensors and tokenizer.json; '
            + (f"that folder lacks {', '.join(missing)}" if there else "there is no such folder")
        )
    try:
        config = _config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        with torch.device("meta"):  # sizes alone: what a damaged file claims is never allocated
            network = Transformer(config)
        weights = {key: tensor.float() for key, tensor in load_file(folder / "model.safetensors").items()}
        network.load_state_dict(weights, assign=True)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        if tokenizer.get_vocab_size() > config.vocabulary:  # fewer are as usual: sizes are rounded up
            raise InputError(f"tokenizer.json has {tokenizer.get_vocab_size()} tokens, more than {config.vocabulary}")
    except Exception as error:  # tokenizers raises nothing narrower
        reason = " ".join(visible(str(error).replace("\n", " ")).replace("·", " ").split())[:300]
        raise InputError(f"model {shown!r}: its files do not make a model of this kind ({reason})") from error
    # Special tokens are written by the model's own code only: text that spells one is ordinary text.
    tokenizer.encode_special_tokens = True
    return Model(name, network.eval().requires_grad_(requires_grad=False), tokenizer)


def _config(found: object) -> Config:
    """The sizes a config.json gives, checked by type; `Config` and `SelfAttention` check that they fit."""
    types = {field.name: (int, float) if field.name == "rope" else (int,) for field in dataclasses.fields(Config)}
    if not isinstance(found, dict) or set(found) != set(types):
        raise InputError(f"config.json must hold {', '.join(types)}, and nothing else")
    for name, of in types.items():
        if type(found[name]) not in of or found[name] < 1:
            raise InputError(f"{name} in config.json must be a number from 1 on, not {found[name]!r}")
    return Config(**found)
