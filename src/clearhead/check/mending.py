"""Lines of a candidate put differently: the ways they could read, and the code run with some of them in the lines' places.

Nothing is proposed on the strength of its looks. A line is shown to somebody only after the candidate was run with it.
"""

from __future__ import annotations

import itertools
import linecache
import re
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

FILL = 'float("-inf")'
KEYS = ("k", "key", "keys", "K", "q", "query", "Q")
SAME_SIDE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OTHER_SIDE = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "!="}


class Edit(NamedTuple):
    """A line of a function's file, counted from 1, and how it is to read, without its indentation; "": not at all."""

    function: Any
    number: int
    text: str


@contextmanager
def rewritten(*edits: Edit) -> Iterator[None]:
    """Inside, functions run with these lines of their files put differently, indentations kept.

    Raises SyntaxError when that is no Python, LookupError when a function is not found in its file again.
    """
    files: dict[str, list[Edit]] = {}
    for edit in edits:
        files.setdefault(edit.function.__code__.co_filename, []).append(edit)
    made: dict[Any, types.CodeType] = {}
    for file, those in files.items():
        lines = list(linecache.getlines(file, those[0].function.__globals__))
        for _, number, text in those:
            if not 0 < number <= len(lines):
                raise LookupError(number)
            old = lines[number - 1]
            lines[number - 1] = f"{old[: len(old) - len(old.lstrip())]}{text or 'pass'}\n"
        whole = compile("".join(lines), file, "exec", dont_inherit=True)
        made |= {edit.function: _again(whole, edit.function.__code__) for edit in those}
    before = {function: function.__code__ for function in made}
    try:
        for function, code in made.items():
            function.__code__ = code
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


def _again(whole: types.CodeType, wanted: types.CodeType) -> types.CodeType:
    """The code object of the same name and place, in a module compiled anew."""
    for inner in whole.co_consts:
        if isinstance(inner, types.CodeType):
            same = (inner.co_name, inner.co_firstlineno) == (wanted.co_name, wanted.co_firstlineno)
            if same and inner.co_freevars == wanted.co_freevars:
                return inner
            try:
                return _again(inner, wanted)
            except LookupError:
                continue
    raise LookupError(wanted.co_name)


def ways(text: str, mistake: str, whole: str) -> list[str]:
    """How a line with a mistake (`dimension:option`) in it could read, the likeliest first; "": it could be left out.

    `whole` is the function's text, which tells what its query and key are called.
    """
    dimension, _, option = mistake.partition(":")
    found = _WAYS[dimension](text, option, whole) if dimension in _WAYS else iter(())
    own = "".join(text.split())
    made = ("" if re.fullmatch(r"(\w+)\s*=\s*\1", way.strip()) else way for way in found)
    return [way for way in dict.fromkeys(made) if "".join(way.split()) != own]


def _scale(text: str, option: str, whole: str) -> Iterator[str]:
    said = [name for name in KEYS if re.search(rf"(?<![\w.]){name}\s*[,=)]", whole)] or ["k"]
    for name in (said[0], said[-1]):
        yield from _scaled(text, option, f"{name}.shape[-1]")


def _scaled(text: str, option: str, width: str) -> Iterator[str]:
    power = re.search(r"(?<![\w.\])])([\w.]+(?:\[[^\]]*\])?(?:\([^()]*\))?)\s*\*\*\s*\(?-\s*0?\.5\)?", text)
    if power:
        yield text.replace(power[0], f"{width} ** -0.5", 1)
    root = re.search(r"sqrt\(((?:[^()]|\([^()]*\))*)\)", text)
    if root and option != "1/sqrt(D)":
        made = text.replace(root[0], f"sqrt({width})", 1)
        yield re.sub(r"\*\s*((?:math|np|torch)\.)?sqrt", r"/ \1sqrt", made) if option.startswith("sqrt") else made
    divided = re.search(r"/\s*((?:[\w.]+)(?:\[[^\]]*\]|\([^()]*\))?)(?:\s*\*\*\s*\(?0?\.5\)?)?", text)
    if divided:
        yield text.replace(divided[0], f"/ {width} ** 0.5", 1)
    yield from _without_factor(text)
    yield re.sub(
        r"(?<![\w.])[\w.]+(?:\[[^\]]*\])? @ [\w.]+(?:\([^()]*\))?(?!\s*[*/])", rf"\g<0> / {width} ** 0.5", text, count=1
    )
    product = re.search(r"\b(?:einsum|matmul|bmm|dot)\(", text)
    if product:
        end = _closing(text, product.end()) + 1
        yield f"{text[:end]} / {width} ** 0.5{text[end:]}"
    assigned = re.fullmatch(r"([\w.]+)\s*=\s*([^=].*)", text)
    if assigned:
        yield f"{assigned[1]} = ({assigned[2].strip()}) * {width} ** -0.5"


def _without_factor(text: str) -> Iterator[str]:
    """The line without one of its roots, the last first."""
    power = r"[\w.]+(?:\[[^\]]*\]|\([^()]*\))?\s*\*\*\s*\(?-?\s*0?\.5\)?"
    root = rf"(?:(?:\w+\.)?sqrt\((?:[^()]|\([^()]*\))*\)|{power}|(?:self\.)?scal\w+)"
    for found in reversed(list(re.finditer(rf"\s*[*/]\s*{root}", text))):
        yield text[: found.start()] + text[found.end() :]
    for found in re.finditer(rf"{root}\s*\*\s*", text):
        yield text[: found.start()] + text[found.end() :]


def _axis(text: str, option: str, whole: str) -> Iterator[str]:
    if option.startswith("tiles"):
        yield from _rescaled(text, whole)
        return
    if re.search(r"(dim|axis)\s*=", text):
        last = re.sub(r"(dim|axis)\s*=\s*(?:\(-?\d+\)|-?\d+)", r"\1=-1", text)
        yield last
        yield re.sub(r"((?:dim|axis)=-1)\)", r"\1, keepdims=True)", last)
    yield re.sub(r"softmax\(([^()]+),\s*-?\d+\)", r"softmax(\1, -1)", text)
    yield re.sub(r"\.(sum|max|amax)\((-?\d*)\)", r".\1(axis=-1, keepdims=True)", text)


def _rescaled(text: str, whole: str) -> Iterator[str]:
    """A running sum that is multiplied by what e to the old maximum has to be multiplied by to be e to the new one."""
    maxima = re.search(r"(\w+)\s*=\s*(?:torch|np|jnp)\.maximum\((\w+),", whole)
    found = re.fullmatch(r"(\w+)\s*=\s*\1\s*\+\s*(.+)", text) or re.fullmatch(r"(\w+)\s*\+=\s*(.+)", text)
    if maxima and found:
        library = "np" if "np.maximum" in maxima[0] else "torch"
        yield f"{found[1]} = {found[1]} * {library}.exp({maxima[2]} - {maxima[1]}) + {found[2]}"


def _align(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    """A triangle that ends with the last key, or the last rows of one."""
    yield re.sub(r"\[(.*?):\s*(\w+),\s*:\s*(\w+)\]", r"[\1\3 - \2 : \3, :\3]", text)
    found = re.search(r"\btri[lu]_?\(", text)
    sizes = re.search(r"ones\(\(?(\w+), (\w+)", text)
    if found and sizes:
        end = _closing(text, found.end())
        one = " + 1" if re.search(r"\btriu", text) else ""
        cut = re.sub(r",\s*(?:(?:diagonal|k)\s*=\s*)?-?\d+\s*$", "", text[found.end() : end])
        yield f"{text[: found.end()]}{cut}, {sizes[2]} - {sizes[1]}{one}{text[end:]}"


def _mask(text: str, option: str, whole: str) -> Iterator[str]:
    if option == "rows":
        yield text.replace("[:, None, :, None]", "[:, None, None, :]")
    elif option == "transposed":
        yield re.sub(r"(mask\w*)(?:\.mT|\.T|\.transpose\([^()]*\))", r"\1", text)
    elif option == "inverted":
        yield from _sees(text, option, whole)
    elif option == "ignored":
        yield re.sub(r"^(\w+)(\.masked_fill\()", r"\1 = \1\2", text)


def _rope(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    if "v-too" in option:
        yield re.sub(r"[\w.]+\((x?v\w*)(?:,[^()]*)?\)", r"\1", text)
    if "backwards" in option:
        yield re.sub(r"(cos\w*(?:\(\))?)\s*-\s*", r"\1 + ", text)
        yield re.sub(r"(cos\w*(?:\(\))?)\s*\+\s*", r"\1 - ", text)


def _hide(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    before, inside, after = _called(text, r"\bmasked_fill_?\(")
    if len(inside) == 2:
        yield f"{before}{inside[0]}, {FILL}{after}"
    timed = re.fullmatch(r"(\w+)\s*=\s*(\w+)\s*\*\s*(.+)", text)
    if timed:  # scores * mask, in either order
        for scores, mask in ((timed[2], timed[3]), (timed[3], timed[2])):
            yield f"{timed[1]} = {scores}.masked_fill({mask} == 0, {FILL})"
    added = re.fullmatch(r"(\w+)\s*=\s*(.+?)\s*[+-]\s*(\w+)", text)
    if added:
        yield f"{added[1]} = ({added[2]}).masked_fill({added[3]} == 0, {FILL})"
    yield re.sub(r"-\s*1(?:e[34]|0000?)(?:\.0?)?\b", "-1e9", text)


def _arguments(inside: str) -> list[str]:
    """What stands between brackets, split at its own commas."""
    found, depth = [""], 0
    for letter in inside:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def _called(text: str, opening: str) -> tuple[str, list[str], str]:
    """A call that is opened by a pattern: what stands before its arguments, they, and what stands after; none without it."""
    found = re.search(opening, text)
    if not found:
        return text, [], ""
    end = _closing(text, found.end())
    return text[: found.end()], _arguments(text[found.end() : end]), text[end:]


def _roles(text: str, option: str, whole: str) -> Iterator[str]:
    """The line with query, key or value in the place where another one was taken for it."""
    long = {"q": "query", "k": "key", "v": "value"}
    for place, used in zip("qkv", option, strict=True):
        if place == used:
            continue
        called = [name for name in (place, long[place], place.upper()) if re.search(rf"(?<![\w.]){name}\b", whole)]
        names = rf"(?:{used}|{used.upper()}|{long.get(used, used)})"
        yield re.sub(rf"@ {names}\b(?!.*@)", f"@ {(called or [place])[0]}", text)
        head, equals, rest = text.partition(" = ")
        if equals and used in long:
            yield f"{head} = {rest.replace(long[used], long[place])}"
            layer = rf"((?:self\.)?[A-Za-z]*_?){used}((?:_[a-z]+)?\()"  # self.k_proj(, W_k(, k(
            yield head + equals + re.sub(layer, rf"\g<1>{place}\2", rest)


def _unit(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    found = re.search(r"\.(?:contiguous\(\)\.)?(?:view|reshape)\(", text)
    if option == "reshaped key" and found:
        yield f"{text[: found.start()]}.transpose(-2, -1){text[_closing(text, found.end()) + 1 :]}"


def _result(text: str, option: str, whole: str) -> Iterator[str]:
    if option.startswith("scaled"):
        yield from _without_factor(text)
    if option == "weights":
        value = next((name for name in ("v", "V", "value", "values") if re.search(rf"\b{name}\b", whole)), "v")
        yield re.sub(r"^return\s+(.+)$", rf"return (\1) @ {value}", text)


def _overflow(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    found = re.search(r"\b(?:(\w+)\.)?exp\(", text)
    if not found:
        return
    end = _closing(text, found.end())
    inside = re.sub(r"\s*-\s*(?:\w+\.)?(?:\w+\.)?a?max\((?:[^()]|\([^()]*\))*\)$", "", text[found.end() : end])
    scores = inside if re.fullmatch(r"[\w.]+", inside) else f"({inside})"
    top = "max(-1, keepdims=True)" if found[1] in ("np", "numpy", "jnp") else "amax(-1, keepdim=True)"
    yield f"{text[: found.end()]}{inside} - {scores}.{top}{text[end:]}"


def _empty(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    """Rows of −inf: weights that are no numbers made 0, or a fill that is a number."""
    found = re.search(r"\b(?:\w+\.)*softmax\(", text)
    if found:
        end = _closing(text, found.end()) + 1
        yield f"{text[:end]}.nan_to_num(0.0){text[end:]}"
    infinite = r"""(?:-\s*)?float\(["']-?inf(?:inity)?["']\)|-\s*(?:\w+\.)?inf\b"""
    filled = re.search(r"([\w.]+)\.masked_fill_?\(", text)
    if filled:
        yield re.sub(infinite, f"torch.finfo({filled[1]}.dtype).min", text)
    yield re.sub(infinite, "-1e9", text)


def _precision(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    yield re.sub(r"\.(half|bfloat16)\(\)", "", text)
    yield re.sub(r"\.(to|type)\((torch\.)?b?float16\)", "", text)


def _calls(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    found = re.search(r"\bdropout\(", text)
    if found:
        end = _closing(text, found.end())
        cut = re.sub(r",\s*(training\s*=\s*)?True\s*$", "", text[found.end() : end])
        yield f"{text[: found.end()]}{cut}, training=self.training{text[end:]}"


def _sees(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    if option == "window, future too":
        yield re.sub(r"\(?(\w+) - (\w+)\)? (<=?) (\w+)", r"(\1 >= \2) & (\1 - \2 \3 \4)", text)
    if option == "all":  # what was hidden is thrown away
        yield re.sub(r"^(\w+)(\.masked_fill\()", r"\1 = \1\2", text)
    yield from _triangles(text)
    yield text.replace("== 1", "== 0") if "== 1" in text else text.replace("== 0", "== 1")
    yield re.sub(r"(masked_fill_?\(|where\(|attn_mask\s*=\s*)~?", lambda m: m[0] if "~" in m[0] else m[1] + "~", text)
    yield re.sub(r"(masked_fill_?\(|where\(|attn_mask\s*=\s*)~", r"\1", text)
    for sides in (SAME_SIDE, OTHER_SIDE):
        yield re.sub(r"(?<![<>=!-])(<=|>=|<|>)(?![<>=])", lambda m, sides=sides: sides[m[0]], text, count=1)  # type: ignore[misc]
    yield re.sub(r"\[:\s*(\w+)\]", r"[: \1 + 1]", text)
    yield re.sub(r"range\((\w+)\)", r"range(\1 + 1)", text)


def _triangles(text: str) -> Iterator[str]:
    """The line with its triangle the other way up, and with its diagonal seen or hidden."""
    found = re.search(r"\btri([lu])(_?)\(", text)
    if not found:
        return
    end = _closing(text, found.end())
    inside = text[found.end() : end]
    cut = re.sub(r",\s*(?:(?:diagonal|k)\s*=\s*)?-?\d+\s*$", "", inside)
    named = "k=1" if re.search(r"\b(np|numpy|jnp)\.$", text[: found.start()]) else "diagonal=1"
    for letter in (found[1], "u" if found[1] == "l" else "l"):
        for diagonal in ("", f", {named}"):
            yield f"{text[: found.start()]}tri{letter}{found[2]}({cut}{diagonal}{text[end:]}"


def _closing(text: str, start: int) -> int:
    """Where the bracket that is open at `start` is closed; the end of the text when it is not."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] in "([{") - (text[place] in ")]}")
        if depth == 0:
            return place
    return len(text)


def _heads(text: str, option: str, whole: str) -> Iterator[str]:
    if "tiled" not in option:
        yield from _own_head(text, whole)
        return
    yield re.sub(r"\.repeat\(1,\s*([^,()]+),\s*1,\s*1\)", r".repeat_interleave(\1, dim=1)", text)
    yield re.sub(r"(->[^'\"]*)\((\w+) (\w+)\)", r"\1(\3 \2)", text)
    yield re.sub(  # h[:, None].expand(b, n, kv, t, d): each of the key heads n times, not all of them n times
        r"\[:, None(?:, :)*\]\.expand\(([^,()]+), ([^,()]+), ([^,()]+), ([^,()]+), ([^,()]+)\)",
        r"[:, :, None].expand(\1, \3, \2, \4, \5)",
        text,
    )


def _own_head(text: str, whole: str) -> Iterator[str]:
    """The line with a head's index where one head was taken for all, or with all heads."""
    loop = re.search(r"for (\w+)(?:, \w+)? in (?:range|enumerate)\(", whole)
    if loop:
        yield re.sub(r"(\[(?:(?::|\.\.\.),\s*)?)-?[01]((?:,[^\[\]]*)?\])", rf"\1{loop[1]}\2", text)
        for one in re.finditer(r"(\[(?:(?::|\.\.\.),\s*)?)-?[01]((?:,[^\[\]]*)?\])", text):
            yield f"{text[: one.start()]}{one[1]}{loop[1]}{one[2]}{text[one.end() :]}"
    cut = r"\[(?::|\.\.\.),\s*(?:0?:1|-1:)(?:,\s*:)*\]|\.(?:mean|sum)\((?:dim=|axis=)?1, keepdims?=True\)"
    yield re.sub(cut, "", text)
    for one in re.finditer(cut, text):
        yield text[: one.start()] + text[one.end() :]
    for found in re.finditer(r"(['\"])([a-zA-Z]+),\s*([a-zA-Z]+)\s*->\s*([a-zA-Z]+)\1", text):
        for n in (2, 3):  # a letter that stands in one operand alone is summed over
            for letter in found[n]:
                place = found[n].index(letter)
                if letter not in found[5 - n] + found[4] and place < len(found[4]):
                    yield text[: found.start(n)] + found[n].replace(letter, found[4][place]) + text[found.end(n) :]


def _cache(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    """The two that are joined, the other way round."""
    before, inside, after = _called(text, r"\b(?:cat|concat|concatenate)\([\[(]")
    if len(inside) == 2:
        yield f"{before}{inside[1]}, {inside[0]}{after}"
    elif len(inside) == 3:
        yield f"{before}{inside[0]}, {inside[1]}{after}"


def _merge(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    if option == "reversed":
        yield text.replace("[::-1]", "", 1)
        yield re.sub(r"reversed\((\w+)\)", r"\1", text)
    yield re.sub(r"\.(contiguous\(\)\.)?(view|reshape)\(", r".transpose(1, 2).reshape(", text, count=1)


def _split(text: str, option: str, whole: str) -> Iterator[str]:  # noqa: ARG001
    yield re.sub(r"\((\w+) (\w+)\)(?=[^'\"]*->)", r"(\2 \1)", text)
    found = re.search(r"\.(view|reshape)\(([^,]+),([^,]+),([^,]+),([^)]+)\)", text)
    if found:
        b, h, t, d = (found[n].strip() for n in (2, 3, 4, 5))
        yield text.replace(found[0], f".{found[1]}({b}, {t}, {h}, {d}).transpose(1, 2)", 1)


_WAYS: dict[str, Callable[[str, str, str], Any]] = {
    "scale": _scale, "axis": _axis, "hide": _hide, "sees": _sees, "heads": _heads, "cache": _cache, "merge": _merge,
    "split": _split, "unit": _unit, "result": _result, "overflow": _overflow, "precision": _precision, "calls": _calls,
    "empty": _empty, "align": _align, "mask": _mask, "rope": _rope, "roles": _roles,
}  # fmt: skip


# Several lines -------------------------------------------------------------------------------------------------------


def exchanges(lines: list[str], at: list[int], mistake: str) -> Iterator[dict[int, str]]:
    """Several lines that could read differently together, by their places: what comes too late is done where it belongs.

    `lines` are a function's, `at` the places that deal with the mistake.
    """
    dimension, _, option = mistake.partition(":")
    if dimension == "hide" and option.startswith("after"):
        for i in range(len(lines)):
            if re.search(r"softmax\(", lines[i].split("#")[0]):
                for j in range(i + 1, len(lines)):
                    yield from _masked_before(lines[i].strip(), lines[j].strip(), i, j)
    if dimension in ("cap", "hide", "mask"):
        hiding = [n for n, line in enumerate(lines) if re.search(r"masked_fill|where\(|tanh", line.split("#")[0])]
        for i, j in itertools.combinations(sorted({*at, *hiding}), 2):
            one, other = lines[i], lines[j]
            level = [len(line) - len(line.lstrip()) for line in (one, other)]
            if level[0] == level[1] and not any(line.split("#")[0].rstrip().endswith(":") for line in (one, other)):
                yield {i: other.strip(), j: one.strip()}


def _masked_before(softmax: str, late: str, i: int, j: int) -> Iterator[dict[int, str]]:
    """The mask that line j puts on weights, put on scores in line i."""
    name = r"[A-Za-z_][\w.]*(?:\[[^\]]*\])?"
    found = (
        re.fullmatch(rf"(?P<w>\w+)\s*=\s*(?P=w)\s*\*\s*(?P<m>{name})", late)
        or re.fullmatch(rf"(?P<w>\w+)\s*\*=\s*(?P<m>{name})", late)
        or re.search(rf"\((?P<w>\w+)\s*\*\s*(?P<m>{name})\)", late)
    )
    hidden, rest = "", ""
    if found:
        hidden = f"{found['m']} == 0"
        rest = "" if found[0] == late else late.replace(found[0], found["w"], 1)
    else:
        filled = re.fullmatch(r"(\w+)\s*=\s*\1\.masked_fill_?\((.*), 0(?:\.0?)?\)", late)
        if filled is None:
            return
        hidden = filled[2]
    call = re.search(r"(?:\b\w+(?:\.\w+)*\.)?softmax\(", softmax)
    if call is None:
        return
    inside = _arguments(softmax[call.end() : _closing(softmax, call.end())])
    if inside and not re.fullmatch(r"(dim\s*=\s*)?-?\d+", inside[0]):
        scores = inside[0] if re.fullmatch(name, inside[0]) else f"({inside[0]})"
        new = f"{scores}.masked_fill({hidden}, {FILL})"
        yield {i: softmax[: call.end()] + softmax[call.end() :].replace(inside[0], new, 1), j: rest}
    else:
        before = softmax[: softmax.index(".softmax(")]
        yield {i: f"{before}.masked_fill({hidden}, {FILL}){softmax[len(before) :]}", j: rest}
