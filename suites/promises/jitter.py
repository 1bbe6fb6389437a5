"""Kernels with random waits (ecornn/common/jitter.cuh): what they do not wait for, but must, shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu import wavefront
from pytest_ecornn.implementations.sparse_persistent_gpu import kernel as sparse_kernel

_COMPILED_BY: tuple[Any, ...] = (persistent_kernel, sparse_kernel)


@contextmanager
def jittered(seed: int) -> Iterator[None]:
    """Within it every launch is of such a build, compiled at first use. Not for several threads at once."""
    before = [module.macros for module in _COMPILED_BY]
    for module, macros in zip(_COMPILED_BY, before, strict=True):
        module.macros = _with_jitter(macros, seed)
    _forget()
    try:
        yield
    finally:
        for module, macros in zip(_COMPILED_BY, before, strict=True):
            module.macros = macros
        _forget()


def _with_jitter(macros: Any, seed: int) -> Any:
    return lambda *given: (*macros(*given), ("JITTER", f"{seed}u"))


def _forget() -> None:
    wavefront.clear_cache()
    sparse_kernel.clear_cache()
