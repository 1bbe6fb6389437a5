"""Numba's compilation of kernels void(int64*) to machine code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import cfunc, njit, types

# No flag that lets LLVM assume away NaN, infinities or signed zeros; "contract" alone makes fused multiply-adds.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "forceinline": True}
inline = njit(**OPTIONS)


class Compiled(NamedTuple):
    """A kernel in this process, and what another one loads: an object file, and the name of the kernel's symbol in it."""

    callback: Any
    symbol: str
    object_code: bytes


def compiled(function: Callable[..., None]) -> Compiled:
    """Compiles function(raw). Raises what Numba does for one that it cannot compile."""
    callback = cfunc(types.void(types.CPointer(types.int64)))(function)
    library = callback._library
    return Compiled(callback, callback._wrapper_name, library._codegen._tm.emit_object(library._final_module))
