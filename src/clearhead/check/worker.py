"""The process a candidate runs in: import its file, check it, and send what was found through a pipe.

Started by `launch.py` as `python -m clearhead.check.worker FD`, with the request as JSON on standard input. What the
candidate prints goes nowhere near the pipe.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any


def send(pipe: int, **message: Any) -> None:
    """One line of JSON to whoever asked."""
    os.write(pipe, (json.dumps(message) + "\n").encode())


def main() -> None:
    """Read the request, answer, end."""
    pipe, request = int(sys.argv[1]), json.loads(sys.stdin.read())
    send(pipe, progress="starting")
    import torch

    from clearhead.check.running import examine
    from clearhead.check.subjects import Options

    torch.set_num_threads(1)
    limit_memory(request["memory"])
    path, name, options = Path(request["path"]), request["name"], Options(**request["options"])

    def progress(what: str) -> None:
        send(pipe, progress=what)

    progress(f"importing {path.name}")
    try:
        candidate, name = find(path, name)
    except Missing as missing:
        send(pipe, trouble=str(missing))
        return
    send(pipe, report=examine(candidate, name, options, progress).to_dict())


def limit_memory(room: int) -> None:
    """No more than `room` bytes beyond what is used now; nothing where there are no such limits."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + room,) * 2)


class Missing(Exception):  # noqa: N818
    """There is no such candidate; says why and what would help."""


def find(path: Path, name: str | None) -> tuple[Any, str]:
    """The thing of that name in a file; without a name the only one that could be attention. Raises `Missing`."""
    module = load(path)
    own = {n: v for n, v in vars(module).items() if _could_be(v, module) and not n.startswith("_")}
    if not name:
        if len(own) == 1:
            (name, candidate) = next(iter(own.items()))
            return candidate, name
        listed = ", ".join(own) or "nothing that could be attention"
        raise Missing(f"{path} holds {listed}; name one: clearhead check {path}:{next(iter(own), 'NAME')}")
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            close = difflib.get_close_matches(part, list(own), 1)
            meant = (
                f"did you mean {path.name}:{close[0]}?" if close else f"it holds {', '.join(own) or 'nothing to check'}"
            )
            raise Missing(f"{path} has no {name}; {meant}")
        thing = getattr(thing, part)
    return thing, name


def _could_be(value: Any, module: types.ModuleType) -> bool:
    if inspect.isfunction(value) or inspect.isclass(value):
        return bool(getattr(value, "__module__", "") == module.__name__)
    import torch

    return isinstance(value, torch.nn.Module)


def load(path: Path) -> types.ModuleType:
    """Import a file by its path. Raises `Missing` saying what happened."""
    from clearhead.check.calling import Failed, Habits, call

    name = f"candidate_{path.stem}".replace("-", "_")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise Missing(f"{path} is no Python file; name a .py file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    execute: Callable[..., Any] = spec.loader.exec_module
    try:
        call(execute, module, habits=Habits(), seconds=30.0)
    except Failed as failed:
        where = f" (line {failed.line})" if failed.line else ""
        if failed.why == "took too long":
            helps = 'put what trains or prints under: if __name__ == "__main__":'
        elif failed.why == "exited":
            helps = 'put exit() under: if __name__ == "__main__":'
        elif failed.error in ("ModuleNotFoundError", "ImportError"):
            helps = "install what it imports beside clearhead, or leave that import out"
        elif failed.error in ("SyntaxError", "IndentationError"):
            helps = "Python cannot read it; run it once by itself"
        else:
            helps = f"run it once by itself: python {path}"
        raise Missing(f"importing {path} failed{where}: {failed.said}; {helps}") from None
    return module


if __name__ == "__main__":
    main()
