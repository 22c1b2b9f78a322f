"""What mkdocs is told of the pages: their order, and what becomes of links that lead out of docs/.

A page that is put into docs/ is in the navigation. The order within a folder is that of the links in index.md (within the
folder of a page, of the links in that page), then of the alphabet. A link to a file of the repository, which is right where
the repository is read, leads in the site to a page that shows the file.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SECTIONS = {"tutorials": "Tutorials", "how-to": "How-to", "explanation": "Explanation", "reference": "Reference"}
BESIDE = {"Performance": "performance.md", "Scale": "scale.md"}  # pages that stand beside the folders
LINK = re.compile(r"(\]\()([^)\s#]+)([^)]*\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".js": "javascript"}


def navigation() -> list[dict[str, object]]:
    """Every page of docs/, by folder."""

    def pages(folder: Path, opener: Path) -> Iterator[str | dict[str, object]]:
        links = [target for _, target, _ in LINK.findall(opener.read_text(encoding="utf-8"))]
        order = {(opener.parent / target).resolve(): place for place, target in reversed(list(enumerate(links)))}
        for page in sorted(folder.glob("*.md"), key=lambda page: (order.get(page, len(order)), page)):
            name = page.relative_to(DOCS).as_posix()
            inner = folder / page.stem
            if inner.is_dir():  # a page with a folder of its name opens that folder's list
                yield {heading(page): [{heading(page): name}, *pages(inner, page)]}
            else:
                yield name

    sections = [{title: list(pages(DOCS / folder, DOCS / "index.md"))} for folder, title in SECTIONS.items()]
    return [{"Start": "index.md"}, *sections, *({title: page} for title, page in BESIDE.items())]


def heading(page: Path) -> str:
    """A page's first heading."""
    found = re.search(r"^# (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{page} has no heading"
    return found[1].replace("`", "")


def outside(markdown: str, page: Path) -> Iterator[Path]:
    """The files outside docs/ that a page links to."""
    for _, target, _ in LINK.findall(markdown):
        if "://" not in target and not target.startswith("mailto:"):
            path = (page.parent / target).resolve()
            if path.is_file() and path.is_relative_to(ROOT) and not path.is_relative_to(DOCS):
                yield path


def shown_as(path: Path) -> str:
    """Where in the site a file outside docs/ is shown."""
    return f"source/{path.relative_to(ROOT).as_posix()}".removesuffix(".md") + ".md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every page into the navigation; say only what is wrong (`--quiet` would hide that too, and let it pass)."""
    logging.getLogger("mkdocs").setLevel(logging.WARNING)
    config.nav = navigation()
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for every file outside docs/ that is linked to, and for those that these link to."""
    waiting = [ROOT / "CHANGELOG.md"]
    for page in DOCS.rglob("*.md"):
        waiting += outside(page.read_text(encoding="utf-8"), page)
    done = set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".md":
            waiting += outside(text, path)
        else:
            name = path.relative_to(ROOT).as_posix()
            text = f"# {path.name}\n\n`{name}`\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text}\n````\n"
        text = f"---\nsearch:\n  exclude: true\n---\n\n{text}"
        files.append(File.generated(config, shown_as(path), content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links out of docs/ to the pages that show those files."""
    uri = page.file.src_uri
    if uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # it is one page of its own, and says itself where to go
    origin = DOCS / uri
    if uri.startswith("source/"):
        origin = ROOT / uri.removeprefix("source/")

    def turned(link: re.Match[str]) -> str:
        before, target, after = link.groups()
        path = (origin.parent / target).resolve()
        if "://" in target or not path.is_file():
            return link[0]
        place = path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else shown_as(path)
        return f"{before}{os.path.relpath(place, Path(uri).parent)}{after}"

    return LINK.sub(turned, markdown)


def on_post_page(html: str, **_: object) -> str:
    """Give the theme's search the name that screen readers need."""
    return html.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
