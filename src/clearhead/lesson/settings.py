"""What the lesson is shown on: the ladder's own example, other sizes and seeds of it, or a text of the reader's."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clearhead.errors import InputError, message
from clearhead.ladder import multi_head, single_head
from clearhead.ladder.example import Projected, projected, sequence
from clearhead.ladder.rung4_single_head import SingleHead
from clearhead.ladder.rung5_multi_head import MultiHead
from clearhead.tokens import visible

MOST = 64  # tokens, and numbers a token: more numbers than this nobody reads
HEADS, KV_HEADS = 4, 2  # from rung 5 on


@dataclass(frozen=True)
class Settings:
    """Sizes, seed and text of a lesson; with the defaults its numbers are those of `ladder.example`.

    >>> Settings().x.shape, Settings().head.weights.shape
    (torch.Size([4, 8, 2]), torch.Size([4, 8, 8]))
    >>> Settings(text="The king is dead.").labels
    ('The', 'king', 'is', 'dead', '.')

    Arguments:
        time: T, tokens in a sequence, 1 to 64, default 8; a text has its own.
        width: C, numbers a token, 1 to 64; default 2 on rungs 1 to 3 and 32 from rung 4 on.
        seed: of all random numbers, 0 to 2**32 − 1.
        text: whose words are the tokens; without it the tokens are rows of random numbers.

    Raises: InputError for a size that cannot be shown and for a text without a token.
    """

    time: int | None = None
    width: int | None = None
    seed: int = 1337
    text: str | None = None

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("time", self.time, 1, MOST),
            ("width", self.width, 1, MOST),
            ("seed", self.seed, 0, 2**32 - 1),
        ):
            if value is not None and not least <= value <= most:
                remedy = (
                    "Any number will do." if name == "seed" else "The lesson is for looking at numbers: keep it small."
                )
                raise InputError(message(name, expected=f"{least} to {most}", got=str(value), remedy=remedy))
        if self.text is None:
            return
        found = len(words(self.text))
        if self.time is not None:
            remedy = "Leave out time, or the text."
            raise InputError(message("time", expected="none beside a text", got=str(self.time), remedy=remedy))
        if not 1 <= found <= MOST:
            remedy = "Give a sentence." if found == 0 else "Give a shorter one."
            raise InputError(message("text", expected=f"1 to {MOST} words", got=str(found), remedy=remedy))

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The words of the text, nothing in them that a terminal would obey; without a text none."""
        return () if self.text is None else tuple(visible(word) for word in words(self.text))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What each token is called."""
        return self.tokens or tuple(str(t) for t in range(self.T))

    @property
    def T(self) -> int:  # noqa: N802
        """Tokens in a sequence."""
        return len(self.tokens) or self.time or 8

    @property
    def C(self) -> int:  # noqa: N802
        """Numbers a token has from rung 4 on."""
        return self.width or 32

    @property
    def B(self) -> int:  # noqa: N802
        """Sequences: four, or the one text."""
        return 1 if self.tokens else 4

    @property
    def D(self) -> int:  # noqa: N802
        """Width of a head: half of C."""
        return max(1, self.C // 2)

    @cached_property
    def x(self) -> Tensor:
        """(B, T, C) for rungs 1 to 3."""
        C = self.width or 2
        return self._embedded(C) if self.tokens else sequence(B=self.B, T=self.T, C=C, seed=self.seed)

    def layers(self, heads: int = 1, kv_heads: int = 1) -> Projected:
        """x (B, T, C) and three untrained layers, for rungs 4 to 8."""
        made = projected(B=self.B, T=self.T, C=self.C, head_size=self.D, heads=heads, kv_heads=kv_heads, seed=self.seed)
        return made._replace(x=self._embedded(self.C)) if self.tokens else made

    @cached_property
    def head(self) -> SingleHead:
        """Rung 4 on these settings."""
        with torch.no_grad():
            return single_head(*self.layers())

    @cached_property
    def heads(self) -> MultiHead:
        """Rung 5 on these settings; its q, k and v are where rungs 6 to 8 start."""
        with torch.no_grad():
            return multi_head(*self.layers(HEADS, KV_HEADS), heads=HEADS, kv_heads=KV_HEADS)

    def _embedded(self, C: int) -> Tensor:
        """A row of random numbers for each different word, the same wherever it stands: (1, T, C)."""
        known = list(dict.fromkeys(self.tokens))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            table = torch.randn(len(known), C)  # (words, C)
        return table[[known.index(token) for token in self.tokens]][None]  # (1, T, C)

    def made_by(self) -> str:
        """The code that makes these settings."""
        given = {"time": None if self.time == 8 else self.time, "width": self.width, "text": self.text}
        shown = [f"{name}={value!r}" for name, value in given.items() if value is not None]
        return f"Settings({', '.join([*shown, *([] if self.seed == 1337 else [f'seed={self.seed}'])])})"


def words(text: str) -> list[str]:
    """A text cut into words and marks: letters and digits stay together, everything else stands alone, spaces go.

    >>> words("It's 9 o'clock: 東京!")
    ["It's", '9', "o'clock", ':', '東', '京', '!']
    """
    found: list[str] = []
    joined = False
    for n, c in enumerate(text):
        inside = c in "'’" and joined and text[n + 1 : n + 2].isalpha()
        letter = unicodedata.category(c)[0] in "LNM" or inside
        alone = unicodedata.east_asian_width(c) == "W"  # each is a word, or a syllable, of its own
        if letter and not alone and joined:
            found[-1] += c
        elif not c.isspace():
            found.append(c)
        joined = letter and not alone
    return found
