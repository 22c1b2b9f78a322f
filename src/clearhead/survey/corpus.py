"""A corpus as a stream of documents: text files, folders, globs, JSON lines, Parquet, a Hugging Face dataset on disk.

Nothing is held but the document that is being read. What is no document (bytes that are no UTF-8, nothing in it, more than
allowed) is a `Bad` one: it keeps its number, and the stream goes on.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.survey.arrow import pyarrow

TEXT = (".txt", ".md", ".text")
LINES = (".jsonl", ".ndjson")
TABLES = (".parquet", ".arrow")
SAMPLE = 1 << 16  # bytes of a file's beginning and end that its fingerprint is made of
AT_ONCE = 64  # rows of a table read together


class Bad(Exception):  # noqa: N818
    """Why something is no document that can be read."""


@dataclass(frozen=True)
class Document:
    """One document: its number in the corpus, where it stands, its bytes, and how to read it."""

    number: int
    name: str
    size: int
    read: Callable[[], str]  # raises `Bad`
    done: float  # share of the corpus that ends with it


@dataclass(frozen=True)
class Source:
    """One file of a corpus."""

    path: Path
    shown: str  # as it was named, or below the folder that was
    kind: str  # "text", "lines", "parquet" or "arrow"
    size: int


class Corpus:
    """The documents of some files, in the order of their names.

    Arguments:
        paths: files, folders (searched below) and glob patterns.
        field: the field of a JSON line, or the column of a table, that holds the text.
        largest: bytes of the largest document that is read.

    Raises `InputError` for a path that is not there or holds nothing to read.
    """

    def __init__(self, paths: Sequence[str | Path], *, field: str = "text", largest: int = 10_000_000) -> None:
        self.field, self.largest = field, largest
        self.sources = [source for path in paths for source in _sources(str(path))]
        if not self.sources:
            raise InputError("corpus: expected a file, folder or glob pattern, got none; name one")

    def fingerprint(self) -> str:
        """A name for the content: names and sizes of the files, their beginnings and ends."""
        told = hashlib.blake2b(digest_size=16)
        for source in self.sources:
            with source.path.open("rb") as file:
                begin = file.read(SAMPLE)
                file.seek(max(0, source.size - SAMPLE))
                told.update(f"{source.shown}\0{source.size}\0".encode() + begin + file.read(SAMPLE))
        return told.hexdigest()

    def __iter__(self) -> Iterator[Document]:
        total = max(1, sum(source.size for source in self.sources))
        number, before = 0, 0
        for source in self.sources:
            readers = {"text": self._text, "lines": self._lines, "parquet": self._parquet, "arrow": self._arrow}
            for name, size, read, share in readers[source.kind](source):
                yield Document(number, name, size, read, (before + share * source.size) / total)
                number += 1
            before += source.size

    def _text(self, source: Source) -> Iterator[tuple[str, int, Callable[[], str], float]]:
        def read() -> str:
            self._check(source.size)
            return _decoded(source.path.read_bytes())

        yield source.shown, source.size, read, 1.0

    def _lines(self, source: Source) -> Iterator[tuple[str, int, Callable[[], str], float]]:
        with source.path.open("rb") as file:
            n = 0
            while line := file.readline(self.largest + 1):
                n, size = n + 1, len(line)
                while not line.endswith(b"\n") and (more := file.readline(self.largest + 1)):
                    size, line = size + len(more), more if more.endswith(b"\n") else b""  # too long: only counted
                if size > self.largest + 1:
                    line = b""
                if line.strip() or size > self.largest + 1:
                    yield f"{source.shown}:{n}", size, self._of_line(line, size), file.tell() / max(1, source.size)

    def _of_line(self, line: bytes, size: int) -> Callable[[], str]:
        def read() -> str:
            self._check(size)
            try:
                found = json.loads(_decoded(line))
            except (ValueError, RecursionError) as error:
                raise Bad("no JSON") from error
            if not isinstance(found, dict) or not isinstance(found.get(self.field), str):
                raise Bad(f"no text in field {self.field!r}")
            return str(found[self.field])

        return read

    def _parquet(self, source: Source) -> Iterator[tuple[str, int, Callable[[], str], float]]:
        parquet = pyarrow("parquet")
        with parquet.ParquetFile(source.path) as file:
            self._check_column(source, file.schema_arrow)
            rows, n = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(AT_ONCE, columns=[self.field]):
                yield from self._of_column(source, batch.column(0), n, rows)
                n += len(batch)

    def _arrow(self, source: Source) -> Iterator[tuple[str, int, Callable[[], str], float]]:
        ipc = pyarrow("ipc")
        with source.path.open("rb") as file:
            reader = ipc.open_stream(file)
            self._check_column(source, reader.schema)
            n = 0
            for batch in reader:
                for first in range(0, len(batch), AT_ONCE):
                    part = batch.column(self.field).slice(first, AT_ONCE)
                    for name, size, read, _ in self._of_column(source, part, n + first, 1):
                        yield name, size, read, file.tell() / max(1, source.size)
                n += len(batch)

    def _check_column(self, source: Source, schema: Any) -> None:
        if self.field not in schema.names:
            raise InputError(
                f"corpus {source.shown}: has no column {self.field!r}; it has {', '.join(schema.names)}; choose with --field"
            )

    def _of_column(
        self, source: Source, column: Any, first: int, rows: int
    ) -> Iterator[tuple[str, int, Callable[[], str], float]]:
        types = pyarrow("types")
        if types.is_dictionary(column.type):
            column = column.dictionary_decode()
        texts = types.is_string(column.type) or types.is_large_string(column.type)
        known = texts or types.is_binary(column.type) or types.is_large_binary(column.type)
        lengths = pyarrow("compute").binary_length(column).to_pylist() if known else [None] * len(column)
        for n, size in enumerate(lengths):
            yield f"{source.shown}#{first + n}", size or 0, self._of_cell(column[n], size), (first + n + 1) / rows

    def _of_cell(self, cell: Any, size: int | None) -> Callable[[], str]:
        def read() -> str:
            if size is None:
                raise Bad(f"no text in field {self.field!r}")
            self._check(size)
            try:
                found = cell.as_py()
            except UnicodeDecodeError as error:
                raise Bad("not UTF-8") from error
            return _decoded(found) if isinstance(found, bytes) else str(found)

        return read

    def _check(self, size: int) -> None:
        if size > self.largest:
            raise Bad(f"larger than {self.largest} bytes")


def shards(documents: Iterator[Document], *, most: int, size: int) -> Iterator[list[Document]]:
    """Neighbours together, up to `most` of them, or until they hold `size` bytes: the same whoever asks."""
    held: list[Document] = []
    for document in documents:
        held.append(document)
        if len(held) == most or sum(x.size for x in held) >= size:
            yield held
            held = []
    if held:
        yield held


def _decoded(raw: bytes) -> str:
    if b"\0" in raw:
        raise Bad("zero bytes: no text")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Bad(f"not UTF-8 (byte {error.start})") from error


def _sources(path: str) -> Iterator[Source]:
    """The files that a path names."""
    try:
        folder, file = os.path.isdir(path), os.path.isfile(path)
    except ValueError:  # a zero byte
        folder = file = False
    if folder:
        yield from _in_folder(Path(path))
    elif file:
        yield _source(Path(path), os.path.basename(path))
    else:
        found = [name for name in sorted(glob.glob(path, recursive=True)) if os.path.isfile(name)]
        if not found:
            raise InputError(f"corpus {path!r}: there is no such file or folder, and it matches no file")
        common = os.path.commonpath([os.path.dirname(name) for name in found])
        for name in found:
            yield _source(Path(name), os.path.relpath(name, common or "."))


def _in_folder(folder: Path) -> Iterator[Source]:
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
            yield _source(folder / os.path.basename(entry["filename"]), os.path.basename(entry["filename"]))
        return
    found = sorted(x for x in folder.rglob("*") if x.is_file() and x.suffix.lower() in (*TEXT, *LINES, *TABLES))
    if not found:
        kinds = ", ".join((*TEXT, *LINES, *TABLES))
        raise InputError(f"corpus {str(folder)!r}: holds none of {kinds}; name files, or a glob pattern")
    for path in found:
        yield _source(path, str(path.relative_to(folder)))


def _source(path: Path, shown: str) -> Source:
    suffix = path.suffix.lower()
    kind = "lines" if suffix in LINES else suffix[1:] if suffix in TABLES else "text"
    return Source(path, shown, kind, path.stat().st_size)
