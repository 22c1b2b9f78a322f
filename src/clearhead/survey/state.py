"""The folder of a survey: what it was begun with, what is done, and the numbers of everything done so far.

Every file appears whole or not at all: it is written beside its place, flushed to the disk, and renamed. Shards are folded into
one in the order of their numbers, whoever measured them and whenever, so that sums are added in one order only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clearhead.errors import InputError
from clearhead.survey.adding import Arrays, add, strongest
from clearhead.whole import whole

FORMAT = 2
MANIFEST, FOLDED, SUMMARY = "survey.json", "folded.safetensors", "summary.json"
# Parts of the manifest that only say whether two are the same, in words.
UNSHOWN = {
    "corpus content": "files of the same names that held something else",
    "weights": "a model of the same name that had other weights",
}


def write(path: Path, content: bytes) -> None:
    """Put a file in its place, whole, and on the disk."""
    try:
        with whole(path) as place, place.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _settle(path.parent)
    except OSError as error:
        raise InputError(f"--out {path}: {error.strerror or error}") from error


def _settle(folder: Path) -> None:
    """Have the folder itself, with the new name in it, on the disk."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def plain(document: Mapping[str, Any]) -> bytes:
    """A JSON document, the same bytes for the same content."""
    return (json.dumps(document, ensure_ascii=False, indent=1, sort_keys=True) + "\n").encode()


def begin(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Make the folder, or see that it was begun in the same way. Raises `InputError` that names the first difference."""
    path = folder / MANIFEST
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            _same(folder, read_manifest(folder), manifest)
            return
        if any(x.name not in ("shards", "progress") and x.name[0] != "." for x in folder.iterdir()):
            raise InputError(f"--out {folder}: holds other files and no survey; name a new folder")
        for name in ("shards", "progress"):
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder}: {error.strerror or error}") from error
    write(path, plain(manifest))


def read_manifest(folder: Path) -> dict[str, Any]:
    """What a survey was begun with; raises `InputError` where there is none."""
    return read_json(folder / MANIFEST)


def read_json(path: Path) -> dict[str, Any]:
    """A file of a survey that holds a JSON object."""
    folder = str(path.parent)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"survey {folder!r}: there is no survey in it ({path.name}: {error.strerror})") from error
    except ValueError as error:
        raise InputError(f"survey {folder!r}: its {path.name} is no JSON; the folder is damaged") from error
    if not isinstance(found, dict):
        raise InputError(f"survey {folder!r}: its {path.name} is no JSON object; the folder is damaged")
    return found


def _same(folder: Path, there: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    for name in dict.fromkeys([*asked, *there]):
        before, now = there.get(name), asked.get(name)
        if before == now:
            continue
        if name in UNSHOWN:
            raise InputError(f"--out {folder}: was begun with {UNSHOWN[name]}; name another folder")
        if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
            before, now = next((a, b) for a, b in zip(before, now, strict=True) if a != b)
        raise InputError(
            f"--out {folder}: was begun with {name} {_shown(before)}, and is asked to go on with {_shown(now)}; name another "
            "folder, or ask for the same"
        )


def _shown(x: object) -> str:
    text = json.dumps(x, ensure_ascii=False)
    return text if len(text) <= 120 else text[:120] + "…"


def shard_path(folder: Path, number: int) -> Path:
    """Where a finished shard is kept until it is folded."""
    return folder / "shards" / f"{number:08d}.safetensors"


def save(path: Path, arrays: Arrays, notes: Mapping[str, Any]) -> None:
    """Numbers and notes as one safetensors file."""
    from safetensors.numpy import save as to_bytes

    packed = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    write(path, to_bytes(packed, metadata={"notes": json.dumps(notes, ensure_ascii=False, sort_keys=True)}))


def load(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """What `save` kept; raises `InputError` for a file that is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            notes = json.loads((file.metadata() or {})["notes"])
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except FileNotFoundError as error:
        raise InputError(
            f"survey: {path} has gone; is somebody else surveying into the same folder? The same command goes on"
        ) from error
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise InputError(
            f"survey: {path} is damaged ({error}); delete it, and the same command makes it again"
        ) from error


def notes(folder: Path) -> dict[str, Any]:
    """What is known of everything folded: shards, documents, bad ones, examples."""
    path = folder / FOLDED
    return load(path)[1] if path.is_file() else {"shards": 0, "documents": 0, "bad": [], "examples": []}


def anything(folder: Path) -> bool:
    """Whether there is a shard, folded or not."""
    return (folder / FOLDED).is_file() or any((folder / "shards").glob("*.safetensors"))


def folded(folder: Path) -> int:
    """How many shards are folded already."""
    return int(notes(folder)["shards"])


def fold(folder: Path, kept: int, least: int = 1) -> int:
    """Fold finished shards, as far as they follow one another, if there are `least` of them. Returns how many are folded."""
    path = folder / FOLDED
    arrays, known = load(path) if path.is_file() else ({}, notes(folder))
    number = int(known["shards"])
    ready = number
    while shard_path(folder, ready).is_file():
        ready += 1
    if ready - number < least:
        return number
    for n in range(number, ready):
        more, told = load(shard_path(folder, n))
        arrays = add(arrays, more)
        known = {
            "shards": n + 1,
            "documents": known["documents"] + told["documents"],
            "bad": known["bad"] + told["bad"],
            "examples": strongest(known["examples"], told["examples"], kept),
        }
    save(path, arrays, known)
    for n in range(number, ready):
        shard_path(folder, n).unlink(missing_ok=True)
    return ready
