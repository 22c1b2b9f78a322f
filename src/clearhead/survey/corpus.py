"""A corpus as a stream of documents: text files, JSON lines, both also gzipped, Parquet, a Hugging Face dataset on disk.

Nothing is held but the document that is being read. What is no document (bytes that are no UTF-8, nothing in it, more than
allowed, a file that is damaged) is a `Bad` one: it keeps its number, and the stream goes on.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clearhead.errors import InputError
from clearhead.survey.arrow import pyarrow
from clearhead.survey.files import Source, sources, unpacked

DAMAGED = (OSError, EOFError, ValueError, zlib.error)  # what gzip and pyarrow raise for a file that is not what it says
SAMPLE = 1 << 16  # bytes of a file's beginning and end that its fingerprint is made of
AT_ONCE = 64  # rows of a table read together
FIELDS = 100  # characters of the names of fields that are shown
Part = tuple[str, int, Callable[[], str], float]  # of a file: name, bytes, how to read it, the share behind it


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


class Corpus:
    """The documents of some files, in the order of their names.

    Arguments:
        paths: files, folders (searched below, hidden ones and folders of surveys aside) and glob patterns.
        field: the field of a JSON line, or the column of a table, that holds the text.
        largest: bytes of the largest document that is read.

    Attributes:
        sources: the files.
        others: how many files of the folders are of other kinds and are left aside, by the end of their names.

    Raises `InputError` for a path that is not there or holds nothing to read, and for a table without that column.
    """

    def __init__(self, paths: Sequence[str | Path], *, field: str = "text", largest: int = 10_000_000) -> None:
        self.field, self.largest = field, largest
        self.others: Counter[str] = Counter()
        self.sources = [source for path in paths for source in sources(str(path), self.others)]
        if not self.sources:
            raise InputError("corpus: expected a file, folder or glob pattern, got none; name one")
        for source in self.sources:
            self._check_column(source)

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
            parts = readers[source.kind](source)
            while (part := _next(parts, source)) is not None:
                name, size, read, share = part
                yield Document(number, name, size, read, (before + share * source.size) / total)
                number += 1
            before += source.size

    def _text(self, source: Source) -> Iterator[Part]:
        def read() -> str:
            if not source.packed:
                self._check(source.size)
            try:
                with source.path.open("rb") as raw, unpacked(raw, source) as file:
                    found = file.read(self.largest + 1)
            except DAMAGED as error:
                raise Bad(_damage(error)) from error
            self._check(len(found))
            return _decoded(found)

        yield source.shown, source.size, read, 1.0

    def _lines(self, source: Source) -> Iterator[Part]:
        with source.path.open("rb") as raw, unpacked(raw, source) as file:
            n = 0
            while line := file.readline(self.largest + 1):
                n, size = n + 1, len(line)
                while not line.endswith(b"\n") and (more := file.readline(self.largest + 1)):
                    size, line = size + len(more), more if more.endswith(b"\n") else b""  # too long: only counted
                if size > self.largest + 1:
                    line = b""
                if line.strip() or size > self.largest + 1:
                    yield f"{source.shown}:{n}", size, self._of_line(line, size), raw.tell() / max(1, source.size)

    def _of_line(self, line: bytes, size: int) -> Callable[[], str]:
        def read() -> str:
            self._check(size)
            try:
                found = json.loads(_decoded(line))
            except (ValueError, RecursionError) as error:
                raise Bad("no JSON") from error
            if not isinstance(found, dict) or not isinstance(text := found.get(self.field), str):
                there = ", ".join(map(repr, found)) if isinstance(found, dict) else "none"
                raise Bad(f"no text in field {self.field!r} (it has {there[:FIELDS]}; choose with --field)")
            if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
                raise Bad("half of a surrogate pair: no Unicode text")
            return text

        return read

    def _parquet(self, source: Source) -> Iterator[Part]:
        parquet = pyarrow("parquet")
        with parquet.ParquetFile(source.path) as file:
            rows, n = max(1, file.metadata.num_rows), 0
            for batch in file.iter_batches(AT_ONCE, columns=[self.field]):
                yield from self._of_column(source, batch.column(0), n, rows)
                n += len(batch)

    def _arrow(self, source: Source) -> Iterator[Part]:
        ipc = pyarrow("ipc")
        with source.path.open("rb") as file:
            reader = ipc.open_stream(file)
            n = 0
            for batch in reader:
                for first in range(0, len(batch), AT_ONCE):
                    part = batch.column(self.field).slice(first, AT_ONCE)
                    for name, size, read, _ in self._of_column(source, part, n + first, 1):
                        yield name, size, read, file.tell() / max(1, source.size)
                n += len(batch)

    def _check_column(self, source: Source) -> None:
        """Raise `InputError` for a table that lacks the column; one that is damaged is said when it is read."""
        try:
            if source.kind == "parquet":
                names = pyarrow("parquet").read_schema(source.path).names
            elif source.kind == "arrow":
                with source.path.open("rb") as file:
                    names = pyarrow("ipc").open_stream(file).schema.names
            else:
                return
        except InputError:
            raise
        except DAMAGED:
            return
        if self.field not in names:
            raise InputError(
                f"corpus {source.shown}: has no column {self.field!r}; it has {', '.join(names)}; choose with --field"
            )

    def _of_column(self, source: Source, column: Any, first: int, rows: int) -> Iterator[Part]:
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
            raise Bad(f"larger than {self.largest:,} bytes (see --largest)")


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
        raise Bad(
            "UTF-16, not UTF-8" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "no text: it holds bytes of value 0"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Bad(f"not UTF-8 (byte {error.start})") from error


def _next(parts: Iterator[Part], source: Source) -> Part | None:
    """The next part of a file; where the file turns out to be damaged, one that cannot be read; then None."""
    try:
        return next(parts, None)
    except InputError:
        raise
    except DAMAGED as error:
        reason = _damage(error)

    def read() -> str:
        raise Bad(reason)

    return source.shown, 0, read, 1.0


def _damage(error: Exception) -> str:
    said = str(error).strip().splitlines() or [type(error).__name__]
    return f"damaged ({said[0][:FIELDS]})"
