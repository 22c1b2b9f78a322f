"""A page's modules in one script, and the viewer's styles in one sheet: for a single file, and for a notebook.

A module is joined by leaving out its imports and the word `export`, behind the modules it needs. That works because the modules
keep to three rules, which are checked: imports are named and not renamed, from a file beside or, in the lesson, which is served
a level below, from the viewer's page above; nothing else is exported than what is declared where it is exported; and no name at
the top of a module is at the top of another.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

PAGE = Path(__file__).parent / "page"
IMPORT = re.compile(r'^import \{ [\w$]+(?:, [\w$]+)* \} from "(\.{1,2})/([\w-]+)\.js";\n', re.MULTILINE)
TOP = re.compile(r"^(?:export )?(?:async )?(?:class|function|const|let) ([\w$]+)", re.MULTILINE)
SHEETS = ("clearhead.css", "views.css")


@functools.cache
def script(entry: str, folder: Path | None = None) -> str:
    """The script that begins with a module of a folder, the viewer's page by default, with all it imports: `script("file")`."""
    parts: dict[Path, str] = {}
    names: dict[str, str] = {}

    def take(file: Path) -> None:
        if file in parts:
            return
        name = f"{file.parent.name}/{file.name}"
        source = file.read_text(encoding="utf-8")
        parts[file] = ""  # its place is taken when what it needs is there: modules may need each other's types only
        for where, other in IMPORT.findall(source):
            take((file.parent if where == "." else PAGE) / f"{other}.js")
        body = IMPORT.sub("", source)
        if re.search(r"^import\b|^export (?:\{|\*)", body, re.MULTILINE):
            raise RuntimeError(f"{name}: an import or export that cannot be joined")
        for top in TOP.findall(body):
            if names.setdefault(top, name) != name:
                raise RuntimeError(f"{name}: {top} is at the top of {names[top]} too")
        del parts[file]
        parts[file] = re.sub(r"^export (?!default)", "", body, flags=re.MULTILINE)

    take((folder or PAGE) / f"{entry}.js")
    text = "\n".join(parts.values())
    if "</script" in text.lower() or "<!--" in text:
        raise RuntimeError("the page's script would end the element it stands in")
    return text


@functools.cache
def style() -> str:
    """All styles."""
    return "\n".join((PAGE / name).read_text(encoding="utf-8") for name in SHEETS)
