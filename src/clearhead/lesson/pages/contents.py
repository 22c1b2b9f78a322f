"""Every page's title and question, known without making the page."""

from __future__ import annotations

from typing import NamedTuple

from clearhead import ladder
from clearhead.lesson.blocks import Block, Page


class Entry(NamedTuple):
    """One line of the contents."""

    title: str
    question: str


_RUNGS = (
    "Two loops", "One matrix product", "Scores and softmax", "Self-attention", "Heads", "No matrix", "Token by token",
    "The kernel",
)  # fmt: skip
CONTENTS: dict[str, Entry] = {
    "0": Entry("Start", "How does a token hear from the others?"),
    **{str(step.number): Entry(title, step.question) for step, title in zip(ladder.RUNGS, _RUNGS, strict=True)},
    "3a": Entry("Aside: T² steps?", "Did the mean of the past ever need T × T steps?"),
    "4a": Entry("Aside: why √D", "Why are scores divided by the root of the head's width?"),
    "4b": Entry("Aside: why -inf", "Why hide the future with minus infinity, and not with a big negative number?"),
    "4c": Entry("Aside: other attention", "What are encoders and cross-attention?"),
    "4d": Entry("Aside: positions", "Does attention know where a token stands?"),
    "5a": Entry("Aside: grouped heads", "Why do heads share keys?"),
    "5b": Entry("Aside: meaning", "Does a weight explain what a model does?"),
    "9": Entry("A real head", "What does a trained head do with real words?"),
    "10": Entry("Exercises", "Can you write it yourself?"),
}
KEYS = tuple(sorted(CONTENTS, key=lambda key: (int(key.rstrip("abcd")), key)))


def page(key: str, *blocks: Block) -> Page:
    """The page of a key: its title and question, and these blocks."""
    return Page(key, CONTENTS[key].title, CONTENTS[key].question, blocks)
