"""pyarrow, which reads and writes tables, for whoever has it."""

from __future__ import annotations

import importlib
from typing import Any

from clearhead.errors import InputError


def pyarrow(module: str) -> Any:
    """A module of pyarrow; raises `InputError` where it is not installed."""
    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise InputError("survey: needs pyarrow; pip install 'clearhead[survey]'") from error
