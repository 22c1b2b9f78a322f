"""The shape of the package: which way imports go, which names are public, what importing costs, and that examples run."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import torch

import clearhead
from clearhead import arguments, distributed
from clearhead.nn import SelfAttention

PACKAGE = Path(str(clearhead.__file__)).parent
ROOT = Path(__file__).parent.parent.parent

# Each part may import itself and the parts below it in its row; a part that is not named here may import anything.
MAY_IMPORT = {
    "errors": (),
    "plans": (),
    "masks": ("errors", "plans"),
    "biases": ("errors",),
    "observables": ("errors",),
    "measuring": ("errors", "observables"),
    "merging": ("errors", "observables"),
    "testing": ("errors",),
    "reference": ("errors", "observables", "measuring"),
    "kernels": ("errors", "plans", "observables", "measuring"),
    "arguments": ("errors", "plans", "masks", "biases", "kernels"),
    "attention": ("errors", "masks", "biases", "observables", "measuring", "reference", "kernels", "arguments"),
}
# Between attention and what shows things to people.
MIDDLE = (
    "accelerate", "nn", "watch", "trace", "summary", "comparison", "tracefile", "whole", "inline", "check", "roles", "ladder",
    "pyramid", "addresses", "tokens", "pattern", "rollout", "estimate", "keeping", "settling", "distributed",
)  # fmt: skip
UPPER = ("models", "survey", "viewer", "lesson")
MIDDLE_MAY = (*MAY_IMPORT, *MIDDLE)

SIGNATURES = {
    "attention": "(query: 'Tensor', key: 'Tensor', value: 'Tensor', *, mask: 'Mask | Tensor | None' = None, "
    "bias: 'Tensor | ALiBi | None' = None, scale: 'float | None' = None, softcap: 'float | None' = None, "
    "sinks: 'Tensor | None' = None, impl: 'str' = 'auto') -> 'Tensor'",
    "observe": "(query: 'Tensor', key: 'Tensor', value: 'Tensor', *, observables: 'Observables | None' = None, "
    "mask: 'Mask | Tensor | None' = None, bias: 'Tensor | ALiBi | None' = None, scale: 'float | None' = None, "
    "softcap: 'float | None' = None, sinks: 'Tensor | None' = None, impl: 'str' = 'auto') -> 'Observation'",
    "explain": "(query: 'Tensor', key: 'Tensor', value: 'Tensor', *, mask: 'Mask | Tensor | None' = None, "
    "bias: 'Tensor | ALiBi | None' = None, scale: 'float | None' = None, softcap: 'float | None' = None, "
    "sinks: 'Tensor | None' = None, impl: 'str' = 'auto') -> 'str'",
    "check": "(candidate: 'Any', *, kind: 'str | None' = None, causal: 'bool | str | None' = None, "
    "layout: 'str | None' = None, scale: 'float | None' = None, window: 'int | None' = None, softcap: 'float | None' = None, "
    "args: 'dict[str, Any] | None' = None, seed: 'int' = 0, device: 'str | None' = None, strict: 'bool' = False, "
    "isolate: 'bool' = True, timeout: 'float' = 60.0, memory: 'int' = 4294967296, "
    "progress: 'Callable[[str], None] | None' = None) -> 'Report'",
    "accelerate": "(*, impl: 'str' = 'auto') -> 'Acceleration'",
    "ALiBi": "(heads: 'int | Tensor', align: \"Literal['end', 'start'] | int\" = 'end') -> None",
    "All": "() -> None",
    "Causal": "(align: 'Align' = 'end') -> None",
    "Documents": "(ids: 'Tensor', query_ids: 'Tensor | None' = None) -> None",
    "Padding": "(lengths: 'Tensor', side: \"Literal['right', 'left']\" = 'right', "
    "queries: 'Tensor | None' = None) -> None",
    "Prefix": "(n: 'int | Tensor', align: 'Align' = 'end') -> None",
    "Pattern": "(query: 'Tensor', key: 'Tensor', *, value: 'Tensor | None' = None, mask: 'Mask | Tensor | None' = None, "
    "bias: 'Tensor | ALiBi | None' = None, scale: 'float | None' = None, softcap: 'float | None' = None, "
    "sinks: 'Tensor | None' = None, lse: 'Tensor | None' = None) -> 'None'",
    "rollout": "(patterns: 'Sequence[Pattern]', position: 'int', *, batch: 'int' = 0, "
    "heads: 'Sequence[int] | Sequence[Sequence[float]] | Tensor | None' = None) -> 'Rollout'",
    "estimate": "(query: 'Tensor', key: 'Tensor', value: 'Tensor', *, observables: 'Observables | None' = None, "
    "mask: 'Mask | Tensor | None' = None, bias: 'Tensor | ALiBi | None' = None, scale: 'float | None' = None, "
    "softcap: 'float | None' = None, sinks: 'Tensor | None' = None, impl: 'str' = 'auto', "
    "layers: 'int' = 1) -> 'Estimate'",
    "Window": "(keys: 'int', right: 'int' = 0, align: 'Align' = 'end') -> None",
    "Observables": "(max_logit: 'bool' = True, entropy: 'bool' = True, sum_squares: 'bool' = False, top_k: 'int' = 8, "
    "received: 'bool' = True, positions: 'bool' = True, distance: 'bool' = True, distance_histogram: 'bool' = False, "
    "map: 'int' = 64, rows: 'tuple[int, ...]' = (), contributions: 'bool' = False, "
    "output_weight: 'Tensor | None' = None, token_ids: 'Tensor | None' = None, key_groups: 'Tensor | None' = None, "
    "query_groups: 'Tensor | None' = None, group_top_k: 'int' = 0, row_weights: 'Tensor | None' = None, "
    "first_key: 'int' = 0, first_query: 'int | None' = None) -> None",
    "Observation": "(values: 'Mapping[str, Tensor]', offset: 'int', padded: 'Tensor | None' = None, "
    "first_key: 'int' = 0, left_out: 'Mapping[str, str]' = <factory>) -> None",
}

HEAVY = (
    "numba",
    "transformers",
    "starlette",
    "uvicorn",
    "matplotlib",
    "tokenizers",
    "safetensors",
    "rich",
    "typer",
    "onnx",
)


def imported_parts(path: Path) -> set[str]:
    """The first name under `clearhead` of everything a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{path}: write imports in full, so that the direction can be read")
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("clearhead.")}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    part, imports = part_of(path), imported_parts(path)
    if part in MAY_IMPORT:
        allowed = {part, *MAY_IMPORT[part]}
    elif part in MIDDLE:
        allowed = set(MIDDLE_MAY)
    elif part in UPPER:
        allowed = {*MIDDLE_MAY, *UPPER}
    else:
        return
    public = set(clearhead.__all__) | {"__version__"} if part in (*MIDDLE, *UPPER) else set()
    assert imports <= allowed | public, f"{part} must not import {sorted(imports - allowed - public)}"


def test_the_import_rules_speak_of_parts_that_exist() -> None:
    assert {*MAY_IMPORT, *MIDDLE, *UPPER} <= {part_of(p) for p in FILES}


def test_reference_and_kernels_never_import_each_other() -> None:
    for path in FILES:
        for one, other in (("reference", "kernels"), ("kernels", "reference")):
            if part_of(path) == one:
                assert other not in imported_parts(path), path


@pytest.mark.tiny
@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signature_is_the_promised_one(name: str) -> None:
    assert str(inspect.signature(getattr(clearhead, name))).replace("clearhead.", "") == SIGNATURES[name]


def test_every_function_of_a_call_takes_the_same_options() -> None:
    """The list is written out where people read it, so it is held here to be one list."""
    options = list(inspect.signature(clearhead.attention).parameters.values())[3:]
    for function in (
        clearhead.observe, clearhead.explain, clearhead.estimate, clearhead.Pattern, distributed.attention, distributed.observe,
        arguments.checked_call,
    ):  # fmt: skip
        theirs = inspect.signature(function).parameters
        assert [theirs[option.name] for option in options if option.name in theirs] == [
            option for option in options if option.name != "impl" or "impl" in theirs
        ], function
    assert [*typing.get_type_hints(arguments.CallOptions)] == [x.name for x in options if x.name != "impl"]


def test_the_promised_names_are_public_and_every_public_name_is_documented() -> None:
    assert set(SIGNATURES) <= set(clearhead.__all__)
    assert sorted(clearhead.__all__) == list(dict.fromkeys(sorted(clearhead.__all__)))
    for name in clearhead.__all__:
        assert inspect.getdoc(getattr(clearhead, name)), name


@pytest.mark.parametrize("use", ["clearhead.__version__", "clearhead.attention, clearhead.watch"])
def test_importing_clearhead_and_using_it_loads_nothing_heavy(use: str) -> None:
    """The names load when they are first used, so using one belongs to the import."""
    code = f"import sys, clearhead; {use}; print([m for m in {HEAVY!r} if m in sys.modules])"
    # In a fresh interpreter: the test session itself has loaded much of this.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_public_name_stays_the_function_when_its_module_of_the_same_name_is_imported() -> None:
    code = (
        "import clearhead.attention, clearhead.watch; print(callable(clearhead.attention), callable(clearhead.watch))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_the_layout_in_the_docs_is_the_tree() -> None:
    """Every module is named, and within a part some of whose files are named, all are; nothing is named that is not there."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text("utf-8")
    named: dict[str, set[str]] = {"": set()}  # by part; those of the package itself under ""
    part = ""
    for line in page.partition("src/clearhead/\n")[2].partition("```")[0].splitlines():
        files = set(re.findall(r"(\w+)\.py", line))
        if line.startswith("    "):
            named.setdefault(part, set()).update(files)
        elif found := re.match(r"  (\w+)", line):
            part = found[1]
            named[""] |= {part, *files}
    for part, names in named.items():
        there = {part_of(path) for path in FILES} if not part else {path.stem for path in (PACKAGE / part).glob("*.py")}
        names, there = names - {"__init__"}, there - {"__init__", "__main__"}
        assert names == there, (
            f"docs/explanation/architecture.md, {part}/: missing {there - names}, gone {names - there}"
        )


DOCUMENTED = [p for p in FILES if ">>> " in p.read_text("utf-8") and "cli" not in p.parts] + [PACKAGE / "__init__.py"]


@pytest.mark.parametrize("path", DOCUMENTED, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_examples_in_docstrings_run(path: Path) -> None:
    dotted = ".".join(("clearhead", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    importlib.import_module(dotted)
    module = sys.modules[dotted]
    names = (
        {"torch": torch, "SelfAttention": SelfAttention}
        | {name: getattr(clearhead, name) for name in clearhead.__all__}
        | vars(module)
    )
    failed, tried = doctest.testmod(module, extraglobs=names, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert tried or ">>> " not in path.read_text("utf-8")
