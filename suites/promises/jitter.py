"""persistent_gpu's kernels with random waits (implementations/cuda/jitter.cuh): what they do not wait for, but must, shows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_ecornn.implementations import _persistent_kernel
from pytest_ecornn.implementations._persistent_form import Form
from pytest_ecornn.implementations._persistent_kernel import Kind
from pytest_ecornn.implementations._persistent_wave import forget


@contextmanager
def jittered(seed: int) -> Iterator[None]:
    """Within it every launch is of such a build, compiled at first use. Not for several threads at once."""
    macros = _persistent_kernel.macros

    def with_jitter(kind: Kind, form: Form) -> tuple[tuple[str, str], ...]:
        return *macros(kind, form), ("JITTER", f"{seed}u")

    _persistent_kernel.macros = with_jitter
    forget()
    try:
        yield
    finally:
        _persistent_kernel.macros = macros
        forget()
