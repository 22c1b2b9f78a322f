"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write to, beside `path`, which it replaces when the block ends; after a failure `path` is as it was.

    Raises what writing raises, an `OSError` mostly.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    place = Path(name)
    try:
        yield place
        umask = os.umask(0)
        os.umask(umask)
        place.chmod(0o666 & ~umask)  # temporary files are private, results are not
        os.replace(place, path)
    finally:  # also after Ctrl-C
        place.unlink(missing_ok=True)
