"""A kernel written for Numba, as an LLVM module with one C function."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from llvmlite import binding
from numba import types
from numba.core import config
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler_lock import global_compiler_lock

from clearhead.kernels.cpu.vector import compiled


def _nothing(*_: Any) -> None:
    pass


def _no_address(library: Any, name: str) -> int:
    library._ensure_finalized()
    return 0


@contextmanager
def _as_little_as_possible() -> Iterator[None]:
    """Numba neither optimises what it compiles nor turns it into machine code: both happen once, at the end, to the whole."""
    with (
        mock.patch.object(config, "OPT", type(config.OPT)(0)),
        mock.patch.object(JITCodeLibrary, "_finalize_specific", _nothing),
        mock.patch.object(JITCodeLibrary, "get_pointer_to_function", _no_address),
        mock.patch.object(JITCPUCodegen, "set_env", _nothing),
    ):
        yield


def as_llvm(name: str) -> Any:
    """A kernel as an LLVM module, not yet optimised."""
    work = importlib.import_module(f"clearhead.kernels.cpu.{name}").work
    signature = types.void(types.int64, types.int64, types.CPointer(types.int64))
    with global_compiler_lock, _as_little_as_possible():
        kernel = compiled(work)
        kernel.compile(signature)
    (result,) = kernel.overloads.values()
    inner = result.fndesc.llvm_func_name
    module = binding.parse_assembly(result.library.get_llvm_str())
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "internal"
    module.get_function(inner).linkage = "external"
    wrapper = binding.parse_assembly(f"""
        declare i32 @"{inner}"(ptr, ptr, i64, i64, ptr)
        define void @clearhead_{name}(i64 %first, i64 %last, ptr %call) {{
            %result = alloca ptr
            %error = alloca ptr
            %status = call i32 @"{inner}"(ptr %result, ptr %error, i64 %first, i64 %last, ptr %call)
            ret void
        }}""")
    module.link_in(wrapper)
    module.get_function(inner).linkage = "internal"
    module.verify()
    return module
