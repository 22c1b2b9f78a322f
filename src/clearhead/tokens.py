"""Tokens for people: what each token reads as, with nothing invisible and nothing that could act as markup or control.

A byte-level tokenizer cuts bytes, not characters, so a token may hold half of one. Tokens are joined until their bytes are
whole characters; the first of such a group shows them, the others show `…`.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import json
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from clearhead.errors import ArgumentError, message

VISIBLE = {" ": "·", "\n": "↵", "\t": "⇥", "\r": "␍"}
JOINED = "…"  # a token whose character is shown by a token before it


def byte_alphabet() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for.

    Bytes that print stand for themselves; the other 68 got the characters from U+0100 on, in their order.
    """
    printing = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printing]
    return {chr(b): b for b in printing} | {chr(0x100 + n): b for n, b in enumerate(rest)}


ALPHABET = byte_alphabet()


def token_bytes(token: str) -> bytes:
    """The bytes of a byte-level vocabulary entry.

    >>> token_bytes("Ġking")
    b' king'
    """
    return bytes(ALPHABET[c] for c in token)


def visible(text: str) -> str:
    """The same text with spaces, line ends, control and direction characters made visible.

    >>> visible(" a\\n") + visible("\\u202e")
    '·a↵‹U+202E›'
    """
    return "".join(map(_shown, text))


def _shown(c: str) -> str:
    if c in VISIBLE:
        return VISIBLE[c]
    # Control, format (direction marks among them), unassigned, private, and separators that are not a plain space.
    return f"‹U+{ord(c):04X}›" if unicodedata.category(c) in ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp") else c


def readable(text: str) -> str:
    """A name or a message for people: what a page or a terminal would obey is made visible, spaces stay.

    >>> readable("my run\\u202e")
    'my run‹U+202E›'
    """
    return " ".join(map(visible, text.split(" ")))


def pieces(tokens: Sequence[bytes | str]) -> list[str]:
    """What each token reads as: bytes of an ordinary token, or the name of a special one, which stays as text.

    >>> pieces([b"caf", "é".encode()[:1], "é".encode()[1:], b" x"])
    ['caf', 'é', '…', '·x']
    """
    shown: list[str] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    first = 0  # token that began the character not whole yet
    for n, token in enumerate(tokens):
        held = decoder.getstate()[0]
        if held and (isinstance(token, str) or _broken(held + token[:1])):
            shown[first] += visible(decoder.decode(b"", final=True))
            held = b""
        if isinstance(token, str):
            shown.append(visible(token))
            continue
        shown.append("")
        if not held:
            first = n
        shown[first] += visible(decoder.decode(token))
    if shown:
        shown[first] += visible(decoder.decode(b"", final=True))
    return [piece or (JOINED if token else "∅") for piece, token in zip(shown, tokens, strict=True)]


def _broken(start: bytes) -> bool:
    """Whether bytes that begin a character can no longer become one, whatever follows."""
    try:
        start.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason != "unexpected end of data"
    return False


class Spelling:
    """What the tokens of a tokenizer of transformers read as, byte-level, SentencePiece or WordPiece."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.special = set(tokenizer.all_special_ids)
        self.special |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}

    def __call__(self, ids: list[int]) -> list[str]:
        """One piece a token; an id that the vocabulary lacks as a number."""
        known = len(self.tokenizer)
        names = [self.tokenizer.convert_ids_to_tokens(i) if 0 <= i < known else None for i in ids]
        return pieces(
            [
                f"‹{i}›" if name is None else name if i in self.special else self._bytes(name, first=n == 0)
                for n, (i, name) in enumerate(zip(ids, names, strict=True))
            ]
        )

    @functools.cached_property
    def _kind(self) -> str:
        """How the vocabulary spells: in "bytes" (GPT-2's alphabet), "pieces" (▁ is a space, <0x0A> a byte) or "words" (##)."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        told = {} if backend is None else json.loads(backend.to_str())
        spelled = json.dumps(told.get("decoder"))
        words = "WordPiece" in spelled or (told.get("model") or {}).get("type") == "WordLevel"
        return "bytes" if "ByteLevel" in spelled else "words" if words else "pieces"

    def _bytes(self, name: str, *, first: bool) -> bytes:
        if self._kind == "bytes" and all(c in ALPHABET for c in name):
            return token_bytes(name)
        if self._kind == "words":
            return name[2:].encode() if name.startswith("##") else (name if first else " " + name).encode()
        if len(name) == 6 and name.startswith("<0x") and name.endswith(">"):
            with contextlib.suppress(ValueError):
                return bytes([int(name[3:5], 16)])
        return name.replace("▁", " ").encode("utf-8", "replace")


def speller(tokenizer: Any) -> Callable[[list[int]], list[str]]:
    """What turns token ids into what they read as: a tokenizer of transformers, or a model of `clearhead.models`.

    Raises `ArgumentError` for anything else.
    """
    if callable(getattr(tokenizer, "pieces", None)):
        found: Callable[[list[int]], list[str]] = tokenizer.pieces
        return found
    if hasattr(tokenizer, "convert_ids_to_tokens") and hasattr(tokenizer, "added_tokens_decoder"):
        return Spelling(tokenizer)
    raise ArgumentError(
        message(
            "tokenizer",
            expected="a tokenizer of transformers, or a model that clearhead.models.load gave",
            got=f"{type(tokenizer).__name__}",
            remedy="Pass what AutoTokenizer.from_pretrained gave, or set trace.pieces afterwards, a string a token.",
        )
    )


def patches(rows: int, columns: int, *, before: Sequence[str] = ("picture",)) -> list[str]:
    """What the tokens of a vision model read as: its patches by row and column, behind those that stand for the whole picture.

    >>> patches(2, 2)
    ['picture', 'r0c0', 'r0c1', 'r1c0', 'r1c1']
    """
    return [*before, *(f"r{row}c{column}" for row in range(rows) for column in range(columns))]
