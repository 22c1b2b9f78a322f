"""What a page may ask of the traces shown, by name, with every parameter read, bounded and refused in words.

The page that a server serves, the notebook's widget and the single file ask the same questions; docs/reference/viewer.md lists
them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from clearhead.addresses import Head
from clearhead.errors import InputError, message
from clearhead.viewer.data import Shown
from clearhead.viewer.packed import Answer, number

DIGITS = re.compile(r"-?\d{1,9}", re.ASCII)


class Answering:
    """What a page may ask, by name: the parameters of each question and how it is answered, one at a time."""

    questions: Mapping[str, tuple[tuple[str, ...], Callable[[Any, Mapping[str, str]], Answer]]] = {}

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def ask(self, question: str, parameters: Mapping[str, str]) -> Answer:
        """The answer; raises `InputError` for what cannot be asked."""
        if question not in self.questions:
            raise InputError(f"question {question!r}: expected one of {', '.join(self.questions)}")
        names, answer = self.questions[question]
        unknown = sorted(set(parameters) - set(names))
        if unknown:
            raise InputError(f"{question}: takes {', '.join(names) or 'nothing'}, and not {unknown[0]!r}")
        with self._lock:
            return answer(self, parameters)


class Gallery(Answering):
    """The traces shown.

    >>> Gallery([]).ask("traces", {}).facts
    {'traces': []}
    """

    def __init__(self, shown: Sequence[Shown]) -> None:
        super().__init__()
        self._shown = list(shown)
        self.questions = QUESTIONS

    def names(self) -> list[str]:
        """What each is called."""
        return [each.name for each in self._shown]

    def of(self, parameters: Mapping[str, str], name: str = "trace") -> Shown:
        """The trace a question names, by its number; the first if it names none."""
        return self._shown[below(parameters, name, len(self._shown), "traces")]


def integer(parameters: Mapping[str, str], name: str, default: int | None = None) -> int:
    """A whole number of at most nine digits."""
    text = parameters.get(name)
    if text is None and default is not None:
        return default
    if text is None or DIGITS.fullmatch(text) is None:
        raise InputError(message(name, expected="a whole number", got=repr(text)[:60], remedy=f"For example {name}=0."))
    return int(text)


def below(parameters: Mapping[str, str], name: str, count: int, many: str) -> int:
    """The number of one of `count` things, 0 by default; `many` is the question that lists them."""
    number = integer(parameters, name, 0)
    if not 0 <= number < count:
        raise InputError(message(name, expected=f"a number below {count}", got=str(number), remedy=f"Ask for {many}."))
    return number


def choice(parameters: Mapping[str, str], name: str, *allowed: str) -> Any:
    """One of some words; the first if it is not given."""
    text = parameters.get(name, allowed[0])
    if text not in allowed:
        said = " or ".join(allowed)
        raise InputError(message(name, expected=said, got=repr(text)[:60], remedy=f"Default {allowed[0]}."))
    return text


def span(parameters: Mapping[str, str], name: str) -> slice:
    """Two numbers with a colon between them, from 0 on."""
    text = parameters.get(name, "")
    found = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text, re.ASCII)
    if found is None:
        raise InputError(message(name, expected="begin:end", got=repr(text)[:60], remedy=f"For example {name}=0:10."))
    return slice(int(found[1]), int(found[2]))


def heads(parameters: Mapping[str, str], shown: Shown, name: str = "heads") -> list[Head]:
    """Heads with commas between them: `L2H3`, a layer `L2`, or `all`."""
    found: dict[Head, None] = {}
    for word in filter(None, (w.strip() for w in parameters.get(name, "").split(","))):
        whole_layer = re.fullmatch(r"[Ll](\d{1,9})", word, re.ASCII)
        if word.lower() == "all":
            found |= dict.fromkeys(shown.heads)
        elif whole_layer is not None:
            of_layer = [h for h in shown.heads if h.layer == int(whole_layer[1])]
            if not of_layer:
                raise InputError(f"{name}: there is no layer {int(whole_layer[1])}")
            found |= dict.fromkeys(of_layer)
        else:
            found[shown.trace.check(Head.parse(word[:40]))] = None
    return list(found)


def _head(parameters: Mapping[str, str], shown: Shown) -> Head:
    return shown.trace.check(Head.parse(parameters.get("head", "")[:40]))


def _traces(gallery: Gallery, _: Mapping[str, str]) -> Answer:
    return Answer({"traces": [{"trace": n, "name": name} for n, name in enumerate(gallery.names())]})


def _trace(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    return gallery.of(p).document()


def _maps(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    return gallery.of(p).maps(choice(p, "pool", "mean", "max"))


def _strips(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    shown = gallery.of(p)
    return shown.strips(_head(p, shown))


def _tile(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    shown = gallery.of(p)
    level, x, y = (integer(p, name) for name in ("level", "x", "y"))
    return shown.tile(_head(p, shown), level, x, y, choice(p, "pool", "mean", "max"))


def _crop(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    shown = gallery.of(p)
    what = choice(p, "what", "weight", "logit", "contribution")
    return shown.crop(_head(p, shown), span(p, "queries"), span(p, "keys"), what)


def _line(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    shown = gallery.of(p)
    what = choice(p, "what", "weight", "logit", "contribution")
    return shown.line(heads(p, shown), choice(p, "axis", "query", "key"), integer(p, "at"), what)


def _rollout(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    shown = gallery.of(p)
    return shown.rollout(integer(p, "position"), heads(p, shown) or None)


def _compare(gallery: Gallery, p: Mapping[str, str]) -> Answer:
    """Of the heads that both have, the mean difference of their maps' cells, and what `Trace.compare` says of the tokens that
    both texts have; the page subtracts the numbers itself.
    """
    one, other = gallery.of(p, "a"), gallery.of(p, "b")
    shared = [head for head in one.heads if head in set(other.heads)]
    a, b = (side.maps(heads=shared).arrays for side in (one, other))
    moved: dict[str, float | None] = {}
    for head in map(str, shared):
        same = head in a and head in b and a[head].shape == b[head].shape
        moved[head] = float(np.abs(_square(a[head]) - _square(b[head])).mean()) if same else None
    facts: dict[str, Any] = {
        "heads": [str(head) for head in shared],
        "moved": moved,
        "changes": {},
        "aligned": 0,
        "why": None,
    }
    try:
        found = one.trace.compare(other.trace, batch=one.sample)
    except (InputError, AttributeError) as error:  # no token in common; or not measured
        facts["why"] = str(error)
    else:
        facts |= {"aligned": found.aligned, "tokens": list(found.tokens)}
        facts["changes"] = {
            str(change.head): {
                name: None if x is None else number(x) for name, x in vars(change).items() if name != "head"
            }
            for change in found.changes
        }
    return Answer(facts)


def _square(packed: np.ndarray) -> np.ndarray:
    return (packed.astype(np.float64) / 0xFFFF) ** 2


QUESTIONS: dict[str, tuple[tuple[str, ...], Callable[[Gallery, Mapping[str, str]], Answer]]] = {
    "shown": ((), lambda *_: Answer({"shown": "traces"})),
    "traces": ((), _traces),
    "trace": (("trace",), _trace),
    "maps": (("trace", "pool"), _maps),
    "strips": (("trace", "head"), _strips),
    "tile": (("trace", "head", "level", "x", "y", "pool"), _tile),
    "crop": (("trace", "head", "queries", "keys", "what"), _crop),
    "line": (("trace", "heads", "axis", "at", "what"), _line),
    "rollout": (("trace", "position", "heads"), _rollout),
    "compare": (("a", "b"), _compare),
}
