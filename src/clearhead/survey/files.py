"""The files of a corpus: what a path names, and how a file is opened."""

from __future__ import annotations

import contextlib
import glob
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from clearhead.errors import InputError
from clearhead.survey.state import MANIFEST

TEXT = (".txt", ".md", ".text")
LINES = (".jsonl", ".ndjson")
TABLES = (".parquet", ".arrow")
PACKED = ".gz"
# Read as one text, these would be measured as what nobody means.
REFUSED = {
    **dict.fromkeys((".csv", ".tsv", ".json"), "make JSON lines (.jsonl) or Parquet of it"),
    **dict.fromkeys((".zst", ".bz2", ".xz", ".zip", ".tar", ".tgz", ".7z"), "unpack it, or pack it with gzip"),
}


@dataclass(frozen=True)
class Source:
    """One file of a corpus."""

    path: Path
    shown: str  # as it was named, or below the folder that was
    kind: str  # "text", "lines", "parquet" or "arrow"
    packed: bool  # by gzip
    size: int  # bytes on the disk


def unpacked(raw: IO[bytes], source: Source) -> contextlib.AbstractContextManager[IO[bytes]]:
    """The content of an open file, unpacked where it is packed."""
    return gzip.GzipFile(fileobj=raw) if source.packed else contextlib.nullcontext(raw)  # type: ignore[return-value]


def sources(path: str, others: Counter[str]) -> Iterator[Source]:
    """The files that a path names; counts in `others` those that a folder has besides."""
    try:
        folder, file = os.path.isdir(path), os.path.isfile(path)
    except ValueError:  # a zero byte
        folder = file = False
    if folder:
        yield from _in_folder(Path(path), others)
    elif file:
        yield _named(Path(path), os.path.basename(path))
    else:
        found = [name for name in sorted(glob.glob(path, recursive=True)) if os.path.isfile(name)]
        if not found:
            raise InputError(f"corpus {path!r}: there is no such file or folder, and it matches no file")
        common = os.path.commonpath([os.path.dirname(name) for name in found])
        for name in found:
            yield _named(Path(name), os.path.relpath(name, common or "."))


def _in_folder(folder: Path, others: Counter[str]) -> Iterator[Source]:
    if (folder / "dataset_dict.json").is_file():
        splits = sorted(x.name for x in folder.iterdir() if (x / "state.json").is_file())
        raise InputError(
            f"corpus {str(folder)!r}: holds the splits {', '.join(splits)} of a dataset; name one: {folder / splits[0]}"
            if splits
            else f"corpus {str(folder)!r}: holds a dataset without splits; save it again"
        )
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        for entry in state["_data_files"]:
            yield _named(folder / os.path.basename(entry["filename"]), os.path.basename(entry["filename"]))
        return
    found = []
    for path in sorted(_below(folder)):
        if _kind(path)[0] is not None:
            found.append(path)
        else:
            others[path.suffix.lower() or path.name] += 1
    if not found:
        kinds = ", ".join((*TEXT, *LINES, *TABLES))
        raise InputError(f"corpus {str(folder)!r}: holds none of {kinds}; name files, or a glob pattern")
    for path in found:
        yield _named(path, str(path.relative_to(folder)))


def _below(folder: Path) -> Iterator[Path]:
    """The files of a folder, but what is hidden, and what a survey wrote there."""
    for where, folders, files in os.walk(folder):
        if MANIFEST in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name[0] != "."]
        yield from (path for name in files if name[0] != "." and (path := Path(where, name)).is_file())


def _kind(path: Path) -> tuple[str | None, bool]:
    """What the end of a file's name says: its kind, None where it says none, and whether it is packed."""
    packed = path.suffix.lower() == PACKED
    suffix = Path(path.stem).suffix.lower() if packed else path.suffix.lower()
    if suffix in TABLES and not packed:
        return suffix[1:], False
    return "lines" if suffix in LINES else "text" if suffix in TEXT else None, packed


def _named(path: Path, shown: str) -> Source:
    kind, packed = _kind(path)
    suffixes = [Path(path.stem).suffix.lower(), path.suffix.lower()] if packed else [path.suffix.lower()]
    for suffix in suffixes:
        if kind is None and (suffix in REFUSED or (packed and suffix in TABLES)):
            raise InputError(f"corpus {shown}: {suffix} is not read; {REFUSED.get(suffix, 'unpack it')}")
    return Source(path, shown, kind or "text", packed, path.stat().st_size)
