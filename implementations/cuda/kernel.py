"""A compiled kernel, launched on torch's current stream, its arguments given by name and checked before they are pointers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations.cuda.compile import compile_source

THREADS = 128


class Launch(NamedTuple):
    """grid and block: numbers of blocks and of threads in each. shared_bytes: of dynamic shared memory a block."""

    grid: int
    block: int
    shared_bytes: int = 0


def one_thread_each(elements: int) -> Launch:
    """A thread for each element."""
    return Launch(-(-elements // THREADS), THREADS)


@dataclass(frozen=True)
class Array:
    """What a kernel expects of a tensor: dtype, number of elements, whether null may stand in its place.

    With a `shape` only its last dimension need be adjacent, and the kernel is told where the others lie.
    """

    dtype: torch.dtype
    elements: int
    is_optional: bool = False
    shape: tuple[int, ...] = ()

    def check(self, kernel: str, name: str, tensor: Tensor | None, device: torch.device) -> None:
        """Raises ValueError saying what was expected and what came."""
        if tensor is None:
            if not self.is_optional:
                raise ValueError(f"{kernel}: expected a tensor as {name}, got None")
            return
        fits = self._is_laid_out(tensor) and tensor.numel() == self.elements and tensor.data_ptr() % tensor.element_size() == 0
        if tensor.dtype != self.dtype or tensor.device != device or not fits:
            adjacent = f"{self.shape}, adjacent in the last dimension," if self.shape else f"{self.elements} adjacent elements"
            raise ValueError(
                f"{kernel}: expected {name} as {adjacent} of {self.dtype} on {device}, got "
                f"{tuple(tensor.shape)} with strides {tensor.stride()} of {tensor.dtype} on {tensor.device}"
            )

    def _is_laid_out(self, tensor: Tensor) -> bool:
        if not self.shape:
            return is_dense(tensor)
        return tensor.shape == self.shape and (tensor.shape[-1] == 1 or tensor.stride(-1) == 1)


def is_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class _Stream:
    """torch's stream by the CUDA stream protocol, which not all of its versions speak."""

    def __init__(self, pointer: int):
        self._pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


class Kernel:
    """A kernel of a `.cu` for one device.

    `arguments`: in its own order, an Array for each pointer, int for each integer of 32 bits, np.int64 for those of 64.
    `shared_bytes`: the most dynamic shared memory that a block will have. `is_cooperative`: all blocks of a launch run at once.
    """

    def __init__(
        self,
        source: Path,
        name: str,
        macros: tuple[tuple[str, str], ...],
        arguments: Mapping[str, Array | type[int] | type[np.int64]],
        device: torch.device,
        shared_bytes: int = 0,
        is_cooperative: bool = False,
    ):
        self._name, self._arguments, self._device = f"{source.stem}.{name}", dict(arguments), device
        self._how = (shared_bytes, is_cooperative)
        self._function = self._load(source, name, macros)

    def __call__(self, launch: Launch, **values: Tensor | int | None) -> None:
        """Raises ValueError for an argument that is missing, unknown or not what the kernel expects."""
        if values.keys() != self._arguments.keys():
            raise ValueError(f"{self._name}: expected the arguments {', '.join(self._arguments)}, got {', '.join(values)}")
        self._run(launch, [self._passed(name, values[name]) for name in self._arguments])

    def _load(self, source: Path, name: str, macros: tuple[tuple[str, str], ...]) -> Any:
        return _function(source, name, macros, self._device, *self._how)

    def _run(self, launch: Launch, passed: list[Any]) -> None:
        import cupy

        stream = _Stream(torch.cuda.current_stream(self._device).cuda_stream)
        with cupy.cuda.Device(self._device.index), cupy.cuda.Stream.from_external(stream):
            self._function((launch.grid,), (launch.block,), tuple(passed), shared_mem=launch.shared_bytes)

    def _passed(self, name: str, value: Tensor | int | None) -> Any:
        expected = self._arguments[name]
        if isinstance(expected, Array):
            if isinstance(value, int):
                raise ValueError(f"{self._name}: expected a tensor as {name}, got {value}")
            expected.check(self._name, name, value, self._device)
            return np.uintp(0 if value is None else value.data_ptr())
        if not isinstance(value, int):
            raise ValueError(f"{self._name}: expected an integer as {name}, got {type(value).__name__}")
        return np.int64(value) if expected is np.int64 else np.int32(value)


@cache
def _function(
    source: Path, name: str, macros: tuple[tuple[str, str], ...], device: torch.device, shared_bytes: int, is_cooperative: bool
) -> Any:
    import cupy

    compiled = compile_source(source, macros, torch.cuda.get_device_capability(device))
    with cupy.cuda.Device(device.index):
        found = cupy.RawModule(path=str(compiled.path), enable_cooperative_groups=is_cooperative).get_function(name)
        found.max_dynamic_shared_size_bytes = shared_bytes
    return found
