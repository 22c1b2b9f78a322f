"""What is asked of a survey."""

from __future__ import annotations

from dataclasses import dataclass

from clearhead.errors import InputError, message
from clearhead.survey.measure import QUANTITIES


@dataclass(frozen=True)
class Options:
    """What is asked of a survey, besides the model and the corpus; every one of them changes the result.

    `length` is that of the longest sequence in tokens; None: 1,024, or the model's context where that is shorter.
    """

    length: int | None = None
    observables: tuple[str, ...] = tuple(name for name in QUANTITIES if name != "sink")
    examples: int = 8
    shard_documents: int = 64
    shard_bytes: int = 1 << 18
    pack: bool = True

    def __post_init__(self) -> None:
        for name, least in (("length", 2), ("examples", 0), ("shard_documents", 1), ("shard_bytes", 1)):
            given = getattr(self, name)
            if given is not None and given < least:
                raise InputError(
                    message(name, expected=f"an integer >= {least}", got=str(given), remedy="Leave it out.")
                )
        unknown = [name for name in self.observables if name not in QUANTITIES]
        if unknown or not self.observables:
            raise InputError(
                message(
                    "observables",
                    expected="some of " + ", ".join(QUANTITIES),
                    got=", ".join(unknown) or "none",
                    remedy="Separate them with commas.",
                )
            )


@dataclass(frozen=True)
class Fitted(Options):
    """Options as one model can have them: with a length that it reads."""

    length: int = 1024
