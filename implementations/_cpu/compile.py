"""Numba's compilation of kernels void(int64*) to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import cfunc, njit, types

# No flag that lets LLVM assume away NaN, infinities or signed zeros; "contract" alone makes fused multiply-adds.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "forceinline": True}
inline = njit(**OPTIONS)


def compiled(function: Callable[..., None]) -> tuple[Any, str, bytes]:
    """Compiles function(raw) to a callback, and for other processes to a symbol and the object file that has it.

    Raises what Numba does for a function that it cannot compile.
    """
    callback = cfunc(types.void(types.CPointer(types.int64)))(function)
    library = callback._library
    return callback, callback._wrapper_name, library._codegen._tm.emit_object(library._final_module)
