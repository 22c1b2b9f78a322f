"""A kernel written for Numba, as an LLVM module with one C function."""

from __future__ import annotations

import importlib
from typing import Any

import numba
from llvmlite import binding
from numba import types
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock


def as_llvm(name: str) -> Any:
    """A kernel as an LLVM module, not yet optimised: Numba would do so again for every function on the way."""
    work = importlib.import_module(f"clearhead.kernels.cpu.{name}").work
    signature = types.void(types.int64, types.int64, types.CPointer(types.int64))
    with global_compiler_lock:
        level, config.OPT = config.OPT, type(config.OPT)(0)
        try:
            compiled = numba.njit(signature, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)(work)
        finally:
            config.OPT = level
    (result,) = compiled.overloads.values()
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
