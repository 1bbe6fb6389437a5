"""C callbacks compiled by Numba: stored on disk where a folder can be written, compiled in each process where none can."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from numba import cfunc, config

from pytest_ecornn.system import cache


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
        config.CACHE_DIR = str(cache.cache_dir() / "numba")
    try:
        yield
    finally:
        config.CACHE_DIR = before
