"""From Python functions to machine code, once for each machine, and from a file ever after.

Numba turns a kernel into LLVM IR; a wrapper with the C calling convention is added and the whole is compiled into one object
file. It is kept in the user's cache folder under a name that is a hash of everything it depends on: the kernels' sources, the
versions of Numba and LLVM, the processor and its features. So a change anywhere gives another name, and nothing stale is ever
found. Loading the file needs neither Numba nor a compiler, only LLVM's loader, which llvmlite brings.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from llvmlite import binding

from clearhead.kernels.cpu import machine

KERNELS = ("forward", "backward", "decode", "peak")  # modules with a function `work(first worker, last worker, call)`
HARMLESS = ("llvm.", "memcpy", "memset", "memmove")  # what machine code may call: found in every process
AROUND = ("__init__.py", "run.py", "threads.py")  # call kernels, but are not in them
CACHE = "CLEARHEAD_CACHE"
MAGIC = b"clearhead kernels 1\n"

_lock = threading.Lock()


def cache_folder() -> Path:
    """Where compiled kernels are kept: CLEARHEAD_CACHE, or the user's cache folder."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "clearhead"
    return (Path(base) if base else Path.home() / ".cache") / "clearhead"


@functools.cache
def fingerprint() -> str:
    """A name for this code on this machine."""
    parts = [repr(machine.shape()), *machine.target()]
    parts += [f"{name} {importlib.metadata.version(name)}" for name in ("numba", "llvmlite")]
    here = Path(__file__).parent
    parts += [path.read_text("utf-8") for path in sorted(here.glob("*.py")) if path.name not in AROUND]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _path(name: str) -> Path:
    return cache_folder() / f"{name}-{fingerprint()}.o"


def is_compiled(name: str) -> bool:
    """Whether a kernel's code is in the cache, whole."""
    return _read(_path(name)) is not None


@functools.cache
def kernel(name: str) -> int:
    """The address of a compiled kernel, void(int64 first, int64 last, int64 *call); compiles or loads it when first asked."""
    with _lock:
        path = _path(name)
        code = _read(path)
        if code is None:
            code = _compile(name)
            _write(path, code)
        return _load(name, code)


def _read(path: Path) -> bytes | None:
    """The object code in a cache file, or None where there is none or it is damaged."""
    try:
        raw = path.read_bytes()
    except OSError:
        return None
    head, code = raw[: len(MAGIC) + 32], raw[len(MAGIC) + 32 :]
    return code if head == MAGIC + hashlib.sha256(code).digest() else None


def _write(path: Path, code: bytes) -> None:
    """Keep object code, whole or not at all; a folder that cannot be written costs the next process a compilation."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(MAGIC + hashlib.sha256(code).digest() + code)
        Path(file.name).replace(path)


@functools.cache
def _machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    name, features = machine.target()
    triple = binding.get_process_triple()
    return binding.Target.from_triple(triple).create_target_machine(
        cpu=name, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


def _compile(name: str) -> bytes:
    """Object code of one kernel, with `clearhead_<name>` as its only entry."""
    print(f"clearhead: compiling its {name} kernel for this CPU, once …", file=sys.stderr, end="", flush=True)
    began = time.perf_counter()
    from clearhead.kernels.cpu.lower import as_llvm  # imports numba

    module = as_llvm(name)
    machine_ = _machine()
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    binding.create_pass_builder(machine_, options).getModulePassManager().run(
        module, binding.create_pass_builder(machine_, options)
    )
    called = [f.name for f in module.functions if f.is_declaration and not f.name.startswith(HARMLESS)]
    if called:
        raise RuntimeError(f"the {name} kernel calls {called}: it must not need anything outside itself")
    code = bytes(machine_.emit_object(module))
    print(f" {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    return code


_engines: list[Any] = []  # loaded code lives as long as the process


def _load(name: str, code: bytes) -> int:
    """Machine code into memory; its address."""
    empty = binding.parse_assembly("")
    engine = binding.create_mcjit_compiler(empty, _machine_for_loading())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    return int(engine.get_function_address(f"clearhead_{name}"))


def _machine_for_loading() -> Any:
    """An execution engine owns its target machine, so each gets its own."""
    _machine()
    return binding.Target.from_triple(binding.get_process_triple()).create_target_machine(
        opt=3, codemodel="jitdefault", jit=True
    )


if __name__ == "__main__":  # compile everything now rather than when first needed
    for each in KERNELS:
        kernel(each)
    print(f"kernels for {binding.get_host_cpu_name()} are in {cache_folder()}")
