"""Reading what a person names, and writing files whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from clearhead.errors import InputError
from clearhead.whole import whole


def read_text(path: Path, option: str = "--file") -> str:
    """A UTF-8 text file; raises `InputError` saying what is wrong with it."""
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; name a text file in it")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror or error}") from error
    if b"\0" in raw:
        raise InputError(f"{option} {path}: holds zero bytes, so it is no text file; extract its text first")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{option} {path}: is not UTF-8 (byte {error.start} is 0x{raw[error.start]:02x}); convert it, for example with "
            f"iconv -f latin1 -t utf-8"
        ) from error


def check_writable(option: str, path: Path) -> None:
    """Raise `InputError` if `path` could not be written, before any work is done."""
    if path.is_dir():
        raise InputError(f"{option} {path}: is a folder; name a file in it")
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{option} {path}: there is no folder {folder}; make it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option} {path}: the folder {folder} cannot be written to; choose another")


def write_whole(option: str, path: Path, content: bytes) -> None:
    """Put `content` at `path`, replacing what is there whole; a failure leaves what is there as it was."""
    try:
        with whole(path) as place:
            place.write_bytes(content)
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror or error}") from error
