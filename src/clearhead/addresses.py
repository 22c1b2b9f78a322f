"""Which head: its address, and dictionaries that are asked by it."""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeVar

from clearhead.errors import InputError

V = TypeVar("V")


class Head(NamedTuple):
    """A head's address: layer and head, counted from 0, printed `L2H3`.

    >>> str(Head(2, 3)), Head.parse("L2H3")
    ('L2H3', Head(layer=2, head=3))
    """

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read an address such as `L2H3` (any case); raises `InputError` for anything else."""
        found = re.fullmatch(r"[Ll](\d+)[Hh](\d+)", text.strip())
        if found is None:
            raise InputError(f"head {text!r}: expected an address such as L2H3 (layer 2, head 3, both counted from 0)")
        return cls(int(found[1]), int(found[2]))


class ByHead(dict[Head, V]):
    """Something of every head: a dictionary that also takes addresses as they are printed.

    >>> scores = ByHead({Head(2, 3): 0.9})
    >>> scores["L2H3"], scores[2, 3], scores
    (0.9, 0.9, {L2H3: 0.9})
    """

    def __missing__(self, head: Any) -> V:
        wanted = Head.parse(head) if isinstance(head, str) else head
        if not dict.__contains__(self, wanted):
            raise InputError(no_such_head(wanted, list(self)))
        return dict.__getitem__(self, wanted)

    def __contains__(self, head: object) -> bool:
        try:
            return dict.__contains__(self, Head.parse(head) if isinstance(head, str) else head)
        except InputError:
            return False

    def get(self, head: Any, default: Any = None) -> Any:
        """What a head has, or the default."""
        return self[head] if head in self else default  # noqa: SIM401, which would call itself

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{head!s}: {value!r}" for head, value in self.items()) + "}"


def no_such_head(head: object, heads: list[Head]) -> str:
    """What to say of a head that there is none of."""
    if not heads:
        return f"head {head!s}: nothing was observed, the model made no attention call that could be seen"
    return f"head {head!s}: no such head; there are {len(heads)}, from {heads[0]} to {heads[-1]}"
