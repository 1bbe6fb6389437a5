"""The CUDA driver's functions that load and launch kernels, by ctypes.

CuPy wraps them too, but its first call imports all of CuPy: 0.1 to 0.5 s, in which no other thread gets far.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from pathlib import Path
from typing import Any

MAX_DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTERS = 8, 14  # the driver's numbers of a function's attributes


@cache
def library() -> Any:
    """The driver's library. Raises OSError where there is none."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


def address_of(function: Any) -> int:
    """The address of one of the library's functions."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


def current_context() -> int:
    """The handle of this thread's context. Raises RuntimeError."""
    context = ctypes.c_void_p()
    _check(library().cuCtxGetCurrent(ctypes.byref(context)), "tell the current context")
    return context.value or 0


def load_function(path: Path, name: str) -> int:
    """The handle of a function of a cubin, loaded into the current context for good. Raises RuntimeError."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _check(library().cuModuleLoad(ctypes.byref(module), str(path).encode()), f"load {path}")
    _check(library().cuModuleGetFunction(ctypes.byref(function), module, name.encode()), f"find {name} in {path}")
    assert function.value is not None
    return function.value


def set_attribute(function: int, attribute: int, value: int) -> None:
    """Sets a function's attribute. Raises RuntimeError."""
    _check(library().cuFuncSetAttribute(ctypes.c_void_p(function), attribute, value), f"set attribute {attribute} to {value}")


def error_text(status: int) -> str:
    """The name of an error, and what it means."""
    texts = [ctypes.c_char_p(), ctypes.c_char_p()]
    library().cuGetErrorName(status, ctypes.byref(texts[0]))
    library().cuGetErrorString(status, ctypes.byref(texts[1]))
    return ": ".join(text.value.decode() for text in texts if text.value) or f"error {status}"


def _check(status: int, action: str) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver could not {action}: {error_text(status)}")
