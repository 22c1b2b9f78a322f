"""Pointing at the line of a candidate's source where a mistake is made. Only ever asked after the numbers have decided."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from clearhead.check.report import Line


@dataclass
class Source:
    """A candidate's own code."""

    file: str
    first: int
    lines: list[str]
    tree: ast.AST


def source_of(candidate: Any) -> list[Source]:
    """The code of a function, or of a class: its forward, then the rest; and of the parts it holds."""
    found: list[Source] = []
    things: list[Any] = [candidate]
    if isinstance(candidate, nn.Module):
        classes = dict.fromkeys(type(m) for m in candidate.modules() if not type(m).__module__.startswith("torch."))
        things = list(classes)
    elif not inspect.isroutine(candidate) and not isinstance(candidate, type):
        inner = getattr(candidate, "func", None)  # functools.partial
        things = [inner] if inner is not None else [type(candidate)]
    for thing in things:
        target = thing
        if isinstance(thing, type):
            target = getattr(thing, "forward", None) or vars(thing).get("__call__") or thing
        try:
            target = inspect.unwrap(target)
            lines, first = inspect.getsourcelines(target)
            tree = ast.parse(textwrap.dedent("".join(lines)))
            found.append(
                Source(inspect.getsourcefile(target) or "", first, [line.rstrip("\n") for line in lines], tree)
            )
        except (OSError, TypeError, SyntaxError, IndentationError):
            continue
    return found


def point(sources: list[Source], mistake: str) -> tuple[Line | None, str]:
    """The line where a mistake (`dimension:option`) is made, and that line put right as far as that can be written down."""
    dimension, _, option = mistake.partition(":")
    for source in sources:
        for number, node in _places(source, dimension, option):
            text = source.lines[number - 1].strip() if 0 < number <= len(source.lines) else ""
            if text:
                change = _changed(text, dimension, option, source)
                same = "".join(change.split()) == "".join(text.split())
                return Line(source.file, source.first + number - 1, text), "" if same else change
            del node
    return None, ""


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
    elif dimension == "axis":
        yield from _calls(tree, "softmax", "Softmax", "log_softmax", "sigmoid", "relu", "softmin")
        yield from _matching(source, r"softmax|\.exp\(|np\.exp|sigmoid|\.sum\(")
        yield from _scores(source)
    elif dimension in ("sees", "align"):
        yield from _calls(tree, "tril", "triu", "tri")
        yield from _matching(source, r"range\(|<=|>=|arange|\bmask\b|is_causal|diagonal")
        yield from _calls(tree, "softmax")
        yield from _scores(source)
    elif dimension in ("hide", "mask"):
        yield from _calls(tree, "masked_fill", "masked_fill_", "where")
        yield from _matching(source, r"-inf|inf\b|1e-?\d|finfo|\*\s*(self\.)?(mask|tril)|mask\b.*\*|\+\s*\(?mask|mask")
        yield from _calls(tree, "tril", "triu", "tri", "softmax")
        yield from _scores(source)
    elif dimension == "heads":
        yield from _matching(source, r"\.repeat\(|\btile\(|repeat_interleave|expand\(|\.repeat\b|%|//")
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
    elif dimension == "cap":
        yield from _matching(source, r"tanh|clamp|clip|softcap|cap\b")
    elif dimension == "sinks":
        yield from _matching(source, r"sink")
    elif dimension == "rope":
        yield from _matching(source, r"rope|rotary|rotate|cos|sin|freqs")
    elif dimension == "roles":
        names = {"v": option[2:3], "q": option[:1], "k": option[1:2]}
        if names["v"] != "v":
            yield from reversed(list(_matching(source, r"@|einsum|bmm|matmul|np\.dot")))
            yield from _matching(source, r"\bv(alue)?s?\s*=")
        yield from _scores(source)
    elif dimension == "output":
        yield from _matching(source, r"proj|out\w*\(|w_?o\b|return")
    elif dimension == "over":
        yield from _scores(source)
    else:
        yield from _matching(source, r"return")


def _changed(text: str, dimension: str, option: str, source: Source) -> str:
    """The line as it could read; the line itself where that cannot be written down."""
    whole = "\n".join(source.lines)
    if dimension == "scale":
        key = next(
            (name for name in ("k", "key", "keys", "K", "q", "Q") if re.search(rf"(?<![\w.]){name}\s*[,=)]", whole)),
            "k",
        )
        width = f"{key}.shape[-1]"
        for pattern in (r"(?<![\w.\])])([\w.]+(?:\[[^\]]*\])?(?:\([^()]*\))?)\s*\*\*\s*\(?-\s*0?\.5\)?",):
            found = re.search(pattern, text)
            if found:
                return text.replace(found[0], f"{width} ** -0.5", 1)
        found = re.search(r"sqrt\(((?:[^()]|\([^()]*\))*)\)", text)
        if found and option != "1/sqrt(D)":
            made = text.replace(found[0], f"sqrt({width})", 1)
            if option in ("sqrt(D)", "sqrt(C)"):
                made = re.sub(r"\*\s*((?:math|np|torch)\.)?sqrt", r"/ \1sqrt", made)
            return made
        found = re.search(r"/\s*((?:[\w.]+)(?:\[[^\]]*\]|\([^()]*\))?)", text)
        if found:
            return text.replace(found[0], f"/ {width} ** 0.5", 1)
        if "@" in text and "=" in text:
            left, _, right = text.partition("=")
            return f"{left.rstrip()} = ({right.strip()}) * {width} ** -0.5"
        return text
    if dimension == "axis":
        made = re.sub(r"(dim|axis)\s*=\s*(?:\(-?\d+\)|-?\d+)", r"\1=-1", text)
        return made if made != text else re.sub(r"softmax\(([^()]+),\s*-?\d+\)", r"softmax(\1, -1)", text)
    if dimension == "hide":
        fill = 'float("-inf")'
        return re.sub(
            r"(masked_fill_?\((?:[^()]|\([^()]*\))*,\s*)(?:[^(),]|\([^()]*\))+\)", rf"\1{fill})", text, count=1
        )
    if dimension == "sees":
        if option in ("strict", "ahead", "two late", "two ahead"):
            return re.sub(r",\s*(diagonal\s*=\s*|k\s*=\s*)?-?\d+\s*\)", ")", text, count=1)
        if option in ("future", "strict future"):
            return text.replace("triu", "tril", 1) if "triu" in text else text
        return text
    if dimension == "heads" and option == "tiled":
        return re.sub(r"\.repeat\(1,\s*([^,()]+),\s*1,\s*1\)", r".repeat_interleave(\1, dim=1)", text)
    if dimension == "merge" and option == "reshape":
        return re.sub(r"\.(contiguous\(\)\.)?(view|reshape)\(", r".transpose(1, 2).reshape(", text, count=1)
    if dimension == "split" and option.endswith("view"):
        found = re.search(r"\.(view|reshape)\(([^,]+),([^,]+),([^,]+),([^)]+)\)", text)
        if found:
            b, h, t, d = (found[n].strip() for n in (2, 3, 4, 5))
            return text.replace(found[0], f".{found[1]}({b}, {t}, {h}, {d}).transpose(1, 2)", 1)
    return text
