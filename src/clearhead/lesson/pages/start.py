"""The first page and the last: what this is, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from clearhead import ladder
from clearhead.lesson.blocks import Page, Say, Table
from clearhead.lesson.pages.contents import CONTENTS, KEYS, page

LETTERS = (
    ("B", "sequences, computed side by side: a batch"),
    ("T", "tokens in a sequence"),
    ("C", "numbers that stand for one token"),
    ("D, Dv", "numbers in a query or key, and in a value (rung 4)"),
    ("Hq, Hk", "query heads and key heads (rung 5)"),
)


def start() -> Page:
    """The first page, with the contents."""
    return page(
        "0",
        Say(
            "A language model reads text as **tokens**: words, or pieces of words. Inside the model a token is a "
            "row of numbers. **Attention** is the one place where tokens hear from each other."
        ),
        Say(
            "This lesson builds it in eight rungs, from a loop that takes a mean to a **kernel** (the code that "
            "does the work when it has to be fast). Every rung gives the numbers of the rung before it, and each "
            "page measures that while you look."
        ),
        Say(
            "You need some Python, and to know what a matrix product is. The code shown is the package's own, "
            "fetched from its files, without the docstrings. Everything else is explained where it first appears."
        ),
        Table(("page", "", "question"), tuple((key, *CONTENTS[key]) for key in KEYS[1:]), wide=True),
        Say(
            "A **tensor** is a block of numbers; its sizes, the **shape**, stand at the end of each line of code. "
            "These letters are used for sizes, so that (B, T, C) means B sequences of T tokens of C numbers:"
        ),
        Table(("letter", "how many"), LETTERS),
    )


def exercises(done: Mapping[int, str]) -> Page:
    """The last page: the exercises; done: for each solved one, the day."""
    rows = tuple(
        (str(step.number), step.name, f"solved {done[step.number]}" if step.number in done else "open")
        for step in ladder.RUNGS
    )
    return page(
        "10",
        Say(
            "Each rung is an exercise. `clearhead lesson --exercise 4` writes `exercise4.py`: the rung's question, "
            "what goes in and what must come out, and an empty function. Write it, then have it judged:"
        ),
        Say(
            "`clearhead check exercise4.py` says that it is right, or which mistake it makes. What is solved is "
            "remembered."
        ),
        Table(("exercise", "function", ""), rows),
        Say("`clearhead lesson --reset` forgets what was solved. The solutions are the rungs; you have seen them."),
    )
