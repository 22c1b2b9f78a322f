"""Pointing at the line of a candidate's source where a mistake is made. Only ever asked after the numbers have decided."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from clearhead.check.mending import Edit, exchanges, ways
from clearhead.check.report import Line

Works = Callable[..., bool]  # whether with some edits (of `mending`) the candidate is right
TRIES = 24  # ways to put a line that are tried for one mistake
TOGETHER = 48  # ways to put several


@dataclass
class Source:
    """A candidate's own code."""

    file: str
    first: int
    lines: list[str]
    tree: ast.AST
    function: Any = None
    owner: type | None = None  # the class whose method it is


def source_of(candidate: Any) -> list[Source]:
    """The code of a function, or of a class's forward; of the parts it holds; and of the methods and functions they call."""
    found: list[Source] = []
    things: list[Any] = [candidate]
    if isinstance(candidate, nn.Module):
        classes = dict.fromkeys(type(m) for m in candidate.modules() if not type(m).__module__.startswith("torch."))
        things = list(classes)
    elif not inspect.isroutine(candidate) and not isinstance(candidate, type):
        inner = getattr(candidate, "func", None)  # functools.partial
        things = [inner] if inner is not None else [type(candidate)]
    for thing in things:
        if isinstance(thing, types.MethodType):
            made = _read(thing.__func__, type(thing.__self__))
            found += [] if made is None else [made]
            continue
        target = thing
        if isinstance(thing, type):
            target = getattr(thing, "forward", None) or vars(thing).get("__call__") or thing
        made = _read(target, thing if isinstance(thing, type) else None)
        if made is not None:
            found.append(made)
    for one in found:  # and what is found calls others in turn
        found += _called(one, found)
    return found


def constructors(root: nn.Module) -> list[Source]:
    """How the parts of a module are made."""
    made = (
        _read(kind.__init__, kind)
        for kind in dict.fromkeys(type(m) for m in root.modules())
        if "torch." not in kind.__module__
    )
    return [source for source in made if source is not None]


def in_tiles(candidate: Any) -> bool:
    """Whether its code speaks of tiles, or goes through something in steps: then only long inputs show all it does."""
    code = "\n".join(line.split("#")[0] for source in source_of(candidate) for line in source.lines)
    return re.search(r"range\([^()]*,.*,|[bB]lock|BLOCK|tile|TILE|maximum\(", code) is not None


def _read(target: Any, owner: type | None = None) -> Source | None:
    try:
        target = inspect.unwrap(target)
        lines, first = inspect.getsourcelines(target)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None
    return Source(
        inspect.getsourcefile(target) or "", first, [line.rstrip("\n") for line in lines], tree, target, owner
    )


def _called(source: Source, found: list[Source]) -> Iterator[Source]:
    """The functions of the same file that a function calls by their names, and the methods of its class."""
    if not isinstance(source.function, types.FunctionType):
        return
    for name in _names(source.function.__code__):
        helper = source.function.__globals__.get(name)
        method = inspect.getattr_static(source.owner, name, None)
        owner = None
        if not isinstance(helper, types.FunctionType) and name not in ("forward", "__call__"):
            helper, owner = getattr(method, "__func__", method), source.owner
            if not isinstance(helper, types.FunctionType):  # cache.update(k, v)
                owner = _owner_of(name, source.function)
                helper = None if owner is None else vars(owner)[name]
        if (
            isinstance(helper, types.FunctionType)
            and helper.__code__.co_filename == source.function.__code__.co_filename
            and all(helper is not one.function for one in found)
        ):
            made = _read(helper, owner)
            if made is not None:
                yield made


def _owner_of(name: str, function: types.FunctionType) -> type | None:
    """The class of a function's file, no module, that has a method of that name; None unless there is just one."""
    kinds = [
        kind for kind in function.__globals__.values() if isinstance(kind, type) and not issubclass(kind, nn.Module)
    ]
    own = {
        kind
        for kind in kinds
        if kind.__module__ == function.__module__ and isinstance(vars(kind).get(name), types.FunctionType)
    }
    return own.pop() if len(own) == 1 else None


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function uses, those in the functions inside it too."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def mended(sources: list[Source], line: Line | None, mistake: str, works: Works) -> str:
    """That line put right, if there is a way that works, else "": for a line found otherwise than by its dimension."""
    for source in sources:
        number = 0 if line is None else line.number - source.first + 1
        if line is None or line.file != source.file or not 0 < number <= len(source.lines):
            continue
        if isinstance(source.function, types.FunctionType):
            for way in ways(line.text, mistake, "\n".join(source.lines)):
                if way and works(Edit(source.function, line.number, way)):
                    return way
    return ""


def point(sources: list[Source], mistake: str, works: Works | None = None) -> tuple[Line | None, str]:
    """The line where a mistake (`dimension:option`) is made, and that line put right, if there is a way that works.

    `works` runs the candidate with a line of a function put differently; the first line and way that pass are given. When none
    does, the likeliest line alone.
    """
    dimension, _, option = mistake.partition(":")
    likeliest: Line | None = None
    tries: set[tuple[str, int, str]] = set()
    for source in sources:
        whole = "\n".join(source.lines)
        for number, _node in _places(source, dimension, option):
            text = source.lines[number - 1].strip() if 0 < number <= len(source.lines) else ""
            if not text:
                continue
            line = Line(source.file, source.first + number - 1, text)
            likeliest = likeliest or line
            if works is None or not isinstance(source.function, types.FunctionType):
                continue
            for way in ways(text, mistake, whole):
                if not way or (source.file, line.number, way) in tries or len(tries) == TRIES:
                    continue
                tries.add((source.file, line.number, way))
                if works(Edit(source.function, line.number, way)):
                    return line, way
    if likeliest is None and dimension == "cache":
        found = ((source, number) for source in sources for number, _ in _matching(source, r"cache|past|memory|state"))
        for source, number in itertools.islice(found, 1):
            likeliest = Line(source.file, source.first + number - 1, source.lines[number - 1].strip())
    return likeliest, ""


def several(sources: list[Source], mistake: str, so_far: tuple[Edit, ...], works: Works) -> tuple[Edit, ...] | None:
    """The edits so far, with those that put a mistake right too, of one line if that does; None where none do."""
    proposals = itertools.chain(_one_by_one(sources, mistake, so_far), _together(sources, mistake, so_far))
    for proposal in itertools.islice(proposals, TRIES + TOGETHER):
        edits = {(edit.function, edit.number): edit for edit in (*so_far, *proposal)}
        made = tuple(edits.values())
        if works(*made):
            return made
    return None


def _now(source: Source, so_far: tuple[Edit, ...]) -> list[str]:
    """A source's lines with the edits so far."""
    lines = list(source.lines)
    for edit in so_far:
        if edit.function is source.function:
            old = lines[edit.number - source.first]
            lines[edit.number - source.first] = old[: len(old) - len(old.lstrip())] + edit.text
    return lines


def _ways_by_line(source: Source, mistake: str, so_far: tuple[Edit, ...], most: int) -> dict[int, list[Edit]]:
    """For every line that deals with the mistake, by its place in the source, the ways it could read."""
    dimension, _, option = mistake.partition(":")
    lines, found = _now(source, so_far), dict[int, list[Edit]]()
    if isinstance(source.function, types.FunctionType):
        for number, _node in _places(source, dimension, option):
            if 0 < number <= len(lines) and number - 1 not in found:
                texts = ways(lines[number - 1].strip(), mistake, "\n".join(lines))
                found[number - 1] = [Edit(source.function, source.first + number - 1, text) for text in texts[:most]]
    return found


def _one_by_one(sources: list[Source], mistake: str, so_far: tuple[Edit, ...]) -> Iterator[tuple[Edit, ...]]:
    proposals = (
        (edit,)
        for source in sources
        for edits in _ways_by_line(source, mistake, so_far, TRIES).values()
        for edit in edits
    )
    return itertools.islice(proposals, TRIES)


def _together(sources: list[Source], mistake: str, so_far: tuple[Edit, ...]) -> Iterator[tuple[Edit, ...]]:
    """Edits of several lines of a function: every line alike, what is exchanged, two, three."""
    for source in sources:
        found = _ways_by_line(source, mistake, so_far, 3)
        some = [edits for edits in found.values() if edits]
        if len(some) > 1:
            yield tuple(edits[0] for edits in some)
        if isinstance(source.function, types.FunctionType):
            for proposal in exchanges(_now(source, so_far), list(found), mistake):
                yield tuple(Edit(source.function, source.first + place, text) for place, text in proposal.items())
        for count in (2, 3):
            for lines in itertools.combinations(some, count):
                yield tuple(edits[0] for edits in lines)
        for one, other in itertools.combinations(some, 2):
            yield from ((a, b) for a in one for b in other if (a, b) != (one[0], other[0]))


def _calls(tree: ast.AST, *names: str) -> Iterator[tuple[int, ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            target = node.func
            name = (
                target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""
            )
            if name in names:
                yield node.lineno, node


def _matching(source: Source, pattern: str) -> Iterator[tuple[int, ast.AST]]:
    for number, line in enumerate(source.lines, 1):
        code = line.split("#")[0]
        if re.search(pattern, code) and (
            "return" in code or not code.lstrip().startswith(("def ", "class ", "@", '"""', "'''"))
        ):
            yield number, source.tree


def _scores(source: Source) -> Iterator[tuple[int, ast.AST]]:
    """Where scores are made: the first product of query and key."""
    yield from _matching(source, r"\.transpose\(|\.mT\b|\.T\b|swapaxes|einsum|bmm|matmul|permute|np\.dot|\bsum\(")
    yield from _matching(source, r"@")


def _places(source: Source, dimension: str, option: str) -> Iterator[tuple[int, ast.AST]]:
    """Lines that deal with a dimension, the likeliest first."""
    tree = source.tree
    if dimension == "scale":
        yield from _matching(source, r"sqrt|\*\*\s*\(?-?\s*\(?(0?\.5|1\s*/\s*2|0?\.25)|rsqrt|pow\(")
        yield from _matching(source, r"\b(scale|scaling)\b\s*\*?=|\*\s*(self\.)?scal|/\s*(self\.)?scal|/=|\*=")
        yield from _matching(source, r"@.*[*/]|einsum.*[*/]|matmul.*[*/]|bmm.*[*/]|/\s*\w+")
        yield from _scores(source)
    elif dimension == "axis" and option.startswith("tiles"):
        yield from _matching(source, r"\+=.*@|=\s*(\w+)\s*\+.*(@|einsum|matmul)|\+=")
        yield from _matching(source, r"exp\(")
    elif dimension == "axis":
        yield from _calls(tree, "softmax", "Softmax", "log_softmax", "sigmoid", "relu", "softmin")
        yield from _matching(source, r"softmax|\.exp\(|np\.exp|sigmoid|\.sum\(")
        yield from _scores(source)
    elif dimension in ("sees", "align"):
        if "future" in option:
            yield from _matching(source, r"(masked_fill|where).*== ?[01]\b")
        yield from _calls(tree, "tril", "triu", "tri")
        yield from _calls(tree, "masked_fill", "masked_fill_", "where")
        yield from _matching(source, r"range\(| [<>]=? |arange|\bmask\b|is_causal|diagonal|\[:\s*\w+\]")
        yield from _calls(tree, "softmax")
        yield from _scores(source)
    elif dimension in ("hide", "mask"):
        if option in ("zero", "after", "after-again"):
            yield from _matching(source, r"\*=?\s*\(?(\w+\.)?(\w*mask\w*|tril|triu|tri)\b")
        yield from _calls(tree, "masked_fill", "masked_fill_", "where")
        yield from _matching(source, r"-inf|inf\b|1e-?\d|finfo|\*\s*(self\.)?(mask|tril)|mask\b.*\*|\+\s*\(?mask|mask")
        yield from _calls(tree, "tril", "triu", "tri", "softmax")
        yield from _scores(source)
    elif dimension == "heads":
        if "tiled" not in option:
            yield from _matching(
                source, r"(?<!shape)\[(:,\s*|\.\.\.,\s*)?-?[01]?:?-?[01]\b|\[h\b|\.(mean|sum)\(|einsum"
            )
        yield from _matching(source, r"\brepeat\(|\btile\(|repeat_interleave|expand\(|\.repeat\b|%|//")
        if "tiled" not in option:
            yield from _scores(source)
    elif dimension == "cache":
        yield from _matching(source, r"\b(cat|concat|concatenate|stack|append|insert)\(")
    elif dimension == "split":
        yield from _matching(source, r"\.(view|reshape)\(|rearrange")
    elif dimension == "merge":
        lines = list(
            _matching(
                source,
                r"\.(view|reshape|flatten)\(|rearrange|\.(mean|sum|cat|concat)\(|torch\.(cat|mean|sum|stack)|sum\(",
            )
        )
        yield from reversed(lines)
    elif dimension == "bias":
        yield from _matching(source, r"slope|alibi|distance|\.abs\(|\babs\(")
    elif dimension == "cap":
        yield from _matching(source, r"tanh|clamp|clip|softcap|cap\b")
    elif dimension == "sinks":
        yield from _matching(source, r"sink")
    elif dimension == "unit":
        if option == "reshaped key":
            yield from _matching(source, r"\.(view|reshape)\(")
        yield from _matching(source, r"normali[sz]e|norm\(|softmax|cdist|distance")
        yield from _scores(source)
    elif dimension == "rope":
        yield from _matching(source, r"(rot|rope)\w*\(.*\b(x?[qk]|query|key)\w*\b")
        yield from _matching(source, r"rope|rotary|rotate|cos|sin|freqs")
    elif dimension == "roles":
        names = {"v": option[2:3], "q": option[:1], "k": option[1:2]}
        if names["v"] != "v":
            yield from reversed(list(_matching(source, r"@|einsum|bmm|matmul|np\.dot")))
            yield from _matching(source, r"\bv(alue)?s?\s*=")
        elif names["k"] != "k":
            yield from _matching(source, r"\b[kK](eys?)?\s*=[^=]")
        yield from _scores(source)
    elif dimension == "output":
        yield from _matching(source, r"proj|out\w*\(|w_?o\b|return")
    elif dimension == "over":
        yield from _scores(source)
    else:
        if option.startswith("scaled"):
            yield from _matching(source, r"[*/].*(sqrt|0\.5|scal)|[*/]=")
        yield from _matching(source, r"return")
