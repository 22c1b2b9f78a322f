"""Models of this library's own kind: config.json, model.safetensors and tokenizer.json in a folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file

from clearhead.errors import InputError
from clearhead.models.model import Model
from clearhead.models.transformer import Config, Transformer
from clearhead.tokens import pieces, token_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILES = ("config.json", "model.safetensors", "tokenizer.json")
START = 0  # the token every text starts with


@dataclass(frozen=True, eq=False)
class OwnModel(Model):
    """A `Transformer` with a byte-level tokenizer."""

    name: str
    network: Transformer
    tokenizer: Tokenizer
    before: Sequence[int] = (START,)
    special: Collection[int] = (START,)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {self.config})"

    @property
    def config(self) -> Config:
        """Its sizes."""
        return self.network.config

    @property
    def context(self) -> int:  # noqa: D102
        return self.config.context

    @property
    def vocabulary(self) -> int:  # noqa: D102
        return self.config.vocabulary

    @property
    def attention_sizes(self) -> tuple[int, int, int, int]:  # noqa: D102
        c = self.config
        return c.layers, c.heads, c.heads, c.width // c.heads

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:  # noqa: D102
        self.check(ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def pieces(self, ids: list[int]) -> list[str]:  # noqa: D102
        self.check(ids)
        special = {token for token, added in self.tokenizer.get_added_tokens_decoder().items() if added.special}
        names = [self.tokenizer.id_to_token(i) for i in ids]
        return pieces(
            [
                f"‹{i}›" if name is None else name if i in special else token_bytes(name)
                for i, name in zip(ids, names, strict=True)
            ]
        )

    def _generate(self, ids: list[int], n: int, temperature: float, seed: int) -> list[int]:
        return self.network.generate(ids, n, temperature=temperature, seed=seed)


def load_own(name: str, folder: Path) -> OwnModel:
    """Load a folder of this kind. Raises whatever is wrong with it."""
    from tokenizers import Tokenizer  # here, because most users of the library never load a model

    config = _config(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    with torch.device("meta"):  # sizes alone: what a damaged file claims is never allocated
        network = Transformer(config)
    weights = {key: tensor.float() for key, tensor in load_file(folder / "model.safetensors").items()}
    network.load_state_dict(weights, assign=True)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if tokenizer.get_vocab_size() > config.vocabulary:  # fewer are as usual: sizes are rounded up
        raise InputError(f"tokenizer.json has {tokenizer.get_vocab_size()} tokens, more than {config.vocabulary}")
    # Special tokens are written by the model's own code only: text that spells one is ordinary text.
    tokenizer.encode_special_tokens = True
    return OwnModel(name, network.eval().requires_grad_(requires_grad=False), tokenizer)


def _config(found: object) -> Config:
    """The sizes a config.json gives, checked by type; `Config` and `SelfAttention` check that they fit."""
    types = {field.name: (int, float) if field.name == "rope" else (int,) for field in dataclasses.fields(Config)}
    if not isinstance(found, dict) or set(found) != set(types):
        raise InputError(f"config.json must hold {', '.join(types)}, and nothing else")
    for name, of in types.items():
        if type(found[name]) not in of or found[name] < 1:
            raise InputError(f"{name} in config.json must be a number from 1 on, not {found[name]!r}")
    return Config(**found)
