"""Numba's compilation of kernels to C callbacks, stored on disk. Many processes may share the folder."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from numba import cfunc, config, njit

from pytest_ecornn.system.cache import cache_dir

# No flag that lets LLVM assume away NaN, infinities or signed zeros; "contract" alone makes fused multiply-adds.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": {"contract"}, "forceinline": True}
inline = njit(**OPTIONS)


def compiled(signature: Any, function: Callable[..., None]) -> Any:
    """The callback. Raises what Numba does for a function that it cannot compile."""
    try:
        with _folder():
            return cfunc(signature, cache=True)(function)
    except Exception:  # of the cache, whatever its state: what is wrong with the function raises once more below
        return cfunc(signature)(function)


@contextmanager
def _folder() -> Iterator[None]:
    """Numba's folder is this project's where that was chosen by its variable and Numba's own was not."""
    before = config.CACHE_DIR
    if "ECORNN_CACHE_DIR" in os.environ and not before:
        config.CACHE_DIR = str(cache_dir() / "numba")
    try:
        yield
    finally:
        config.CACHE_DIR = before


def source_of(file: str, *modules: ModuleType) -> int:
    """A checksum of the files that a kernel is compiled from. Numba's own cache looks at the kernel's file only."""
    files = (file, *(str(module.__file__) for module in modules))
    return zlib.crc32(b"".join(Path(name).read_bytes() for name in files))
