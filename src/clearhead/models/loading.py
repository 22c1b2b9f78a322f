"""Loading a model by name or folder: weights from safetensors, tokens from tokenizer.json. No pickle, no network."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError
from safetensors.torch import load_file

from clearhead.errors import InputError
from clearhead.models.tokens import pieces, token_bytes
from clearhead.models.transformer import Config, Transformer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

BUILTIN = Path(__file__).parent / "builtin"
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
        """Token ids of a text, the start token first. The text's own bytes never become a special token."""
        return [START, *(self.tokenizer.encode(text, add_special_tokens=False).ids)]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    def pieces(self, ids: list[int]) -> list[str]:
        """What each token reads as, one string a token; see `clearhead.models.tokens`."""
        special = {token for token, added in self.tokenizer.get_added_tokens_decoder().items() if added.special}
        names = [str(self.tokenizer.id_to_token(i)) for i in ids]
        return pieces([name if i in special else token_bytes(name) for i, name in zip(ids, names, strict=True)])

    def generate(self, ids: list[int], n: int, *, temperature: float = 0.0, seed: int = 0) -> list[int]:
        """n new token ids after `ids`; the likeliest each time at temperature 0.

        Raises `InputError` when prompt and continuation do not fit the context.
        """
        if not ids or len(ids) + n > self.config.context:
            raise InputError(
                f"{len(ids)} tokens and {n} new ones: the context of {self.name} holds 1 to {self.config.context}. "
                f"Continue by at most {max(0, self.config.context - len(ids))}, or start from a shorter text."
            )
        return self.network.generate(ids, n, temperature=temperature, seed=seed)


def load(name: str = "builtin") -> Model:
    """Load the built-in model, or a folder that holds config.json, model.safetensors and tokenizer.json of the same kind.

    Raises `InputError` for a name or folder that is not there or cannot be read. Under a second for the built-in one.
    """
    from tokenizers import Tokenizer  # here, because most users of the library never load a model

    folder = BUILTIN if name == "builtin" else Path(name)
    missing = [f for f in ("config.json", "model.safetensors", "tokenizer.json") if not (folder / f).is_file()]
    if missing:
        raise InputError(
            f'model {name!r}: expected "builtin", or a folder with config.json, model.safetensors and tokenizer.json; '
            + (f"{folder} lacks {', '.join(missing)}" if folder.is_dir() else "there is no such folder")
        )
    try:
        config = Config(**json.loads((folder / "config.json").read_text(encoding="utf-8")))
        network = Transformer(config)
        weights = {key: tensor.float() for key, tensor in load_file(folder / "model.safetensors").items()}
        network.load_state_dict(weights)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except (SafetensorError, RuntimeError, TypeError, ValueError, OSError) as error:
        raise InputError(f"model {name!r}: {folder} does not hold a model of this kind ({error})") from error
    # Special tokens are written by the model's own code only: text that spells one is ordinary text.
    tokenizer.encode_special_tokens = True
    return Model(name, network.eval().requires_grad_(requires_grad=False), tokenizer)
