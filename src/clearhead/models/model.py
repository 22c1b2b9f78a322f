"""What every model that can be looked at is: a network, and the text its token ids stand for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, NamedTuple

import torch
from torch import nn

from clearhead.errors import InputError, message


class Part(NamedTuple):
    """A stretch of a prompt: whose it is, and its token ids. "template" is what a chat template puts around the rest."""

    kind: Literal["system", "document", "question", "template"]
    ids: list[int]


class Model(ABC):
    """A network with its tokenizer.

    >>> from clearhead.models import load
    >>> model = load("builtin")
    >>> ids = model.encode("To be, or not")
    >>> model.network(torch.tensor([ids])).shape[-1] == model.vocabulary
    True
    >>> model.decode(ids)
    'To be, or not'
    """

    name: str
    network: nn.Module
    before: Sequence[int] = ()
    """Tokens that stand before every text."""
    after: Sequence[int] = ()
    """Tokens that stand after every text."""
    special: Collection[int] = ()
    """Tokens that are no text."""
    writes: bool = True
    """Whether it can continue a text."""

    @property
    @abstractmethod
    def context(self) -> int:
        """How many tokens it can read."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many tokens it knows."""

    @property
    def attention_sizes(self) -> tuple[int, int, int, int] | None:
        """Layers, query heads, key heads and width of a head; None where that is not known before a run."""
        return None

    @abstractmethod
    def pieces(self, ids: list[int]) -> list[str]:
        """What each token reads as, one string a token; see `clearhead.tokens`.

        Raises `InputError` for an id the vocabulary lacks.
        """

    @abstractmethod
    def decode(self, ids: list[int]) -> str:
        """The text of token ids, special tokens left out. Raises `InputError` for an id the vocabulary lacks."""

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Token ids of a text alone."""

    @abstractmethod
    def _generate(self, ids: list[int], n: int, temperature: float, seed: int) -> list[int]:
        """n new tokens, the arguments checked."""

    def quiet(self) -> AbstractContextManager[None]:
        """In here the network runs without the notes of the library it comes from: warnings and errors alone are said."""
        return nullcontext()

    def read(self, ids: list[int]) -> None:
        """Run the network over a text; what it computes is for whoever watches."""
        with torch.no_grad():
            self.network(torch.tensor([ids]))

    def question(self, documents: Sequence[str], question: str, *, system: str | None = None) -> list[Part]:
        """The prompt that asks a question about documents, in parts, through the model's chat template if it has one.

        The given texts never become a special token. Raises `InputError` for a template that takes no system prompt.
        """
        told = [] if system is None else [Part("system", self.encode_part(system.rstrip() + "\n\n"))]
        return [
            Part("template", list(self.before)),
            *told,
            *self._documents(documents),
            Part("question", self.encode_part(question + "\n")),
        ]

    def _documents(self, documents: Sequence[str]) -> list[Part]:
        return [Part("document", self.encode_part(text.rstrip() + "\n\n")) for text in documents]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, with those that stand around every text. The text's own bytes never become a special token.

        Raises `InputError` for a string that is no Unicode text (it holds half of a surrogate pair).
        """
        return [*self.before, *self.encode_part(text), *self.after]

    def encode_part(self, text: str) -> list[int]:
        """Token ids of a text alone. Raises `InputError` as `encode` does."""
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
        return self._encode(text)

    def generate(self, ids: list[int], n: int, *, temperature: float = 0.0, seed: int = 0) -> list[int]:
        """n new token ids after `ids` (fewer where the model ends its text): the likeliest at temperature 0, else drawn.

        Raises `InputError` when prompt and continuation do not fit the context, for an id the vocabulary lacks, for an n or a
        temperature below 0, and for a model that only reads.
        """
        self.check(ids)
        for name, value in (("n", n), ("temperature", temperature)):
            if not 0 <= value < math.inf:
                raise InputError(
                    message(name, expected="a number from 0 on", got=str(value), remedy="Use 0 for none of it.")
                )
        if not ids or len(ids) + n > self.context:
            raise InputError(
                f"{len(ids)} tokens and {n} new ones: the context of {self.name} holds 1 to {self.context}. "
                f"Continue by at most {max(0, self.context - len(ids))}, or start from a shorter text."
            )
        if n and not self.writes:
            raise InputError(f"{self.name} reads texts and does not write any: look at one without continuing it.")
        return self._generate(ids, n, temperature, seed) if n else []

    def check(self, ids: list[int]) -> None:
        """Raise `InputError` for an id the vocabulary lacks."""
        outside = [i for i in ids if not 0 <= i < self.vocabulary]
        if outside:
            raise InputError(
                message(
                    "ids",
                    expected=f"token ids from 0 to {self.vocabulary - 1}",
                    got=str(outside[0]),
                    remedy=f"Make them with the encode() of {self.name}: every model numbers tokens in its own way.",
                )
            )
