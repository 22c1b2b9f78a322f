"""The exercises: a file for each rung with its function left open, in a form that `clearhead check` can judge."""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from clearhead import ladder
from clearhead.errors import InputError
from clearhead.lesson.progress import EXERCISES, solve, solved

if TYPE_CHECKING:
    from clearhead.check import Report


class Exercise(NamedTuple):
    """What is left open, and how it is judged."""

    signature: str  # of the function to write
    returns: str  # the shape of its result
    hint: str
    judged: str  # what stands below the function, for the checker
    options: dict[str, Any]  # for `clearhead.check`


_MEAN = '''
def checked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mean of the past as attention: what it gives when all scores are 0."""
    v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)  # (B, Hk, T, C) -> (B, Hq, T, C)
    out = {name}(v.flatten(0, 1)).view(v.shape)  # each head is a sequence of its own
    return out + 0 * (q.sum() + k.sum())  # queries and keys may ask, and are not heard
'''
_HEAD = '''
class Checked(nn.Module):
    """The function with layers to use."""

    def __init__(self, C: int = 32, head_size: int = 16) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(C, head_size, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return single_head(x, self.query, self.key, self.value)
'''
_HEADS = '''
class Checked(nn.Module):
    """The function with layers to use: 4 query heads, 2 key heads."""

    def __init__(self, C: int = 32, head_size: int = 16, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads
        self.query = nn.Linear(C, heads * head_size, bias=False)
        self.key, self.value = (nn.Linear(C, kv_heads * head_size, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return multi_head(x, self.query, self.key, self.value, heads=self.heads, kv_heads=self.kv_heads)
'''
_QKV = '''
def checked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The function as it is called by the checker."""
    return {name}(q, k, v)
'''
_LAYERS = "x: Tensor, query: nn.Linear, key: nn.Linear, value: nn.Linear"
_FUNCTION = {"kind": "function", "layout": "bhtd", "causal": True}
_OF = {
    1: Exercise("x: Tensor", "(B, T, C)", "Two loops, over b and over t.", _MEAN, _FUNCTION | {"scale": 0.0}),
    2: Exercise(
        "x: Tensor", "(B, T, C)", "No loop: a triangle of weights, times x.", _MEAN, _FUNCTION | {"scale": 0.0}
    ),
    3: Exercise(
        "x: Tensor", "(B, T, C)", "Scores of 0, the future -inf, softmax, times x.", _MEAN, _FUNCTION | {"scale": 0.0}
    ),
    4: Exercise(_LAYERS, "(B, T, Dv)", "Mind which width the scale is of.", _HEAD, {"causal": True}),
    5: Exercise(
        f"{_LAYERS}, *, heads: int = 1, kv_heads: int | None = None",
        "(B, T, Hq·Dv)",
        "Query head h reads key head h // (heads // kv_heads).",
        _HEADS,
        {"causal": True},
    ),
    6: Exercise(
        "q: Tensor, k: Tensor, v: Tensor, *, tile: int = 4",
        "(B, Hq, T, Dv)",
        "No tensor of T × T anywhere: a tile of scores, and what is carried.",
        _QKV,
        _FUNCTION,
    ),
    7: Exercise(
        "q: Tensor, k: Tensor, v: Tensor", "(B, Hq, T, Dv)", "One token after the other, and no mask.", _QKV, _FUNCTION
    ),
    8: Exercise("q: Tensor, k: Tensor, v: Tensor", "(B, Hq, T, Dv)", "One call of clearhead.", _QKV, _FUNCTION),
}
BELOW = "# Below: how the checker calls it. Leave it as it is."


def exercise(number: int) -> str:
    """The text of an exercise's file; raises `InputError` for a number that no exercise has.

    >>> print(exercise(1).splitlines()[0])
    \"\"\"Exercise 1 of 8. How can a token hear from the tokens before it?
    """
    if number not in EXERCISES:
        raise InputError(f"--exercise {number}: there are {EXERCISES[0]} to {EXERCISES[-1]}, one for each rung")
    step, of = ladder.RUNGS[number - 1], _OF[number]
    head = f"def {step.name}({of.signature}) -> Tensor:"
    if len(head) > 120:
        head = f"def {step.name}(\n    {of.signature}\n) -> Tensor:"
    name = f"exercise{number}.py"
    return "\n".join(
        [
            f'"""Exercise {number} of 8. {step.question}',
            "",
            f"Write the function, then let it be judged:  clearhead check {name}",
            f"If you are stuck, its rung explains it:     clearhead lesson --rung {number}",
            '"""',
            "",
            "import torch",
            "from torch import Tensor, nn",
            "",
            f"EXERCISE = {number}",
            "",
            "",
            head,
            textwrap.indent(_docstring(number), "    "),
            f'    raise NotImplementedError("exercise {number} is still open")',
            "",
            "",
            BELOW,
            of.judged.format(name=step.name).strip() if "{name}" in of.judged else of.judged.strip(),
            "",
        ]
    )


def _docstring(number: int) -> str:
    """The rung's own docstring, without its examples and with the result alone for what is returned."""
    step, of = ladder.RUNGS[number - 1], _OF[number]
    parts = [part for part in (inspect.getdoc(step.function) or "").split("\n\n") if not part.startswith(">>>")]
    summary, rest = parts[0], " ".join(parts[1].split())
    arguments = re.split(r" Returns: ", rest)[0].replace("; look, called with a `Tile` after each, default nobody", "")
    body = f"{summary}\n\n{arguments}\nReturns: the result alone, {of.returns}.\nHint: {of.hint}"
    lines = [wrapped for line in body.split("\n") for wrapped in (textwrap.wrap(line, 108) or [""])]
    return '"""' + "\n".join(lines) + '\n"""'


def write(number: int, path: Path) -> None:
    """Put an exercise at `path`; raises `InputError` where something stands there already, which is not overwritten."""
    text = exercise(number)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(
            f"{path}: is there already and stays as it is; judge it with clearhead check {path}, or move it away to start anew"
        ) from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; go to a folder that can be written to") from error


def candidate(number: int, path: Path) -> tuple[str, dict[str, Any]]:
    """What `clearhead.check` is given to judge an exercise's file: the candidate, and its options.

    >>> candidate(6, Path("exercise6.py"))[0]
    'exercise6.py:checked'
    """
    name = "Checked" if number in (4, 5) else "checked"
    return f"{path}:{name}", dict(_OF[number].options)


def function_of(number: int) -> str:
    """The name of the function that an exercise asks for.

    >>> function_of(4)
    'single_head'
    """
    return ladder.RUNGS[number - 1].name


def settle(number: int, report: Report) -> str:
    """Remember an exercise that its report finds right, and say so; what it still lacks otherwise."""
    step = ladder.RUNGS[number - 1]
    if not report.ok:
        return f"exercise {number} is open: see above, or  clearhead lesson --rung {number}"
    if number == 6 and _grows(report.finding("memory_growth").numbers):
        return (
            "exercise 6 is open: the numbers are right, but a tensor of T × T is made, which it is about to do without"
        )
    solve(number)
    done = len(solved())
    on = ", and with it all of them" if done == len(EXERCISES) else f"; {done} of {len(EXERCISES)} so far"
    return f"exercise {number} ({step.name}) is solved{on}"


def _grows(numbers: dict[str, float]) -> bool:
    """Whether twice the tokens made a largest tensor of more than three times the size: T × T, not T."""
    return numbers["long"] > 3 * numbers["short"]
