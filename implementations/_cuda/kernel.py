"""A compiled kernel, launched on torch's current stream. Arguments are passed by name and checked before the launch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda import driver
from pytest_ecornn.implementations._cuda.compile import KernelCode, compile_source
from pytest_ecornn.implementations._cuda.launch import (
    INT32,
    INT64,
    POINTER,
    PORTABLE_CLUSTER,
    Launch,
    Launcher,
    bind,
    params_struct,
)

THREADS = 128


def one_thread_per_element(elements: int) -> Launch:
    """A launch with a thread for each element."""
    return Launch(-(-elements // THREADS), THREADS)


@dataclass(frozen=True)
class TensorArg:
    """A kernel's requirements of a tensor: dtype, number of elements, whether it may be null.

    With a `shape` only the last dimension need be adjacent; the kernel takes the others' strides as arguments.
    """

    dtype: torch.dtype
    elements: int
    is_optional: bool = False
    shape: tuple[int, ...] = ()

    def pointer(self, kernel: str, name: str, tensor: Tensor | None, device: torch.device) -> int:
        """The tensor's address, 0 for none. Raises ValueError that says what was expected and what was given."""
        if tensor is None:
            if not self.is_optional:
                raise ValueError(f"{kernel}: expected a tensor as {name}, got None")
            return 0
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{kernel}: expected a tensor as {name}, got {tensor}")
        address = tensor.data_ptr()
        is_aligned = address and address % self.dtype.itemsize == 0  # a wrapper of tensors has no memory
        fits = is_aligned and self._is_laid_out(tensor)
        if tensor.dtype != self.dtype or tensor.device != device or not fits:
            expected = f"{self.shape}, adjacent in the last dimension," if self.shape else f"{self.elements} adjacent elements"
            raise ValueError(
                f"{kernel}: expected {name} as {expected} of {self.dtype} on {device}, got "
                f"{tuple(tensor.shape)} with strides {tensor.stride()} of {tensor.dtype} on {tensor.device}"
            )
        return address

    def _is_laid_out(self, tensor: Tensor) -> bool:
        if not self.shape:
            return tensor.numel() == self.elements and (tensor.is_contiguous() or is_non_overlapping_and_dense(tensor))
        return tensor.shape == self.shape and (tensor.shape[-1] == 1 or tensor.stride(-1) == 1)


def storage_macro(dtype: torch.dtype) -> str:
    """The macro by which a source knows the dtype of its tensors."""
    return f"STORAGE_{str(dtype).removeprefix('torch.').upper()}"


def is_non_overlapping_and_dense(tensor: Tensor) -> bool:
    """Whether the elements fill one stretch of memory, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True


class Kernel:
    """A kernel of a `.cu` for one device.

    `arguments`: the fields of its Params, in their order: an Array for each pointer, int for each integer of 32 bits, np.int64
    for those of 64.
    `shared_bytes`: the most dynamic shared memory that a block will have. `is_cooperative`: all blocks of a launch run at once.
    `cluster`: blocks in each of its clusters, which the source says as well; more than 8 not every device has.
    `is_lazy`: compiled and loaded by the first launch, not now.
    """

    def __init__(
        self,
        source: Path,
        name: str,
        macros: tuple[tuple[str, str], ...],
        arguments: Mapping[str, TensorArg | type[int] | type[np.int64]],
        device: torch.device,
        shared_bytes: int = 0,
        is_cooperative: bool = False,
        cluster: int = 1,
        is_lazy: bool = False,
    ):
        self._name, self._arguments = f"{source.stem}.{name}", dict(arguments)
        self._device, self._index = device, device.index
        self._launcher_options = (shared_bytes, is_cooperative, cluster)
        types = {int: INT32, np.int64: INT64}
        self._types = "".join(POINTER if isinstance(field, TensorArg) else types[field] for field in arguments.values())
        numbered = list(enumerate(arguments.items()))
        self._arrays = [(i, name, field) for i, (name, field) in numbered if isinstance(field, TensorArg)]
        self._integers = [(i, name) for i, (name, field) in numbered if not isinstance(field, TensorArg)]
        self._function = name
        self._source, self._macros = source, (*macros, ("PARAMS_BYTES", str(params_struct(self._types).size)))
        if not is_lazy:
            _ = self._launch

    @property
    def code(self) -> KernelCode:
        """What the kernel is compiled from."""
        return KernelCode(self._source, self._macros, torch.cuda.get_device_capability(self._device))

    @cached_property
    def _launch(self) -> Any:
        return self._load(self._source, self._function, self._macros)

    def __call__(self, launch: Launch, **values: Tensor | int | None) -> None:
        """Launches the kernel. Raises ValueError for an argument that is missing, unknown or not as the kernel expects."""
        self._run(launch, self._check_arguments(values))

    def bind(self, launch: Launch, arrays: Mapping[str, Tensor | None], **integers: int) -> BoundLaunch:
        """Checks a launch once, for repeated calls on arrays of the same layouts, in this order. Raises as a call does."""
        passed = self._check_arguments({**arrays, **integers})
        places = {name: i for i, name, _ in self._arrays}
        return BoundLaunch(self._run, launch, passed, [places[name] for name in arrays])

    def at(self, launch: Launch, addresses: Sequence[str], **integers: int) -> BoundLaunch:
        """A launch of a kernel that takes integers alone. Calls pass those named in `addresses`, in this order."""
        if self._arrays or {*addresses, *integers} != self._arguments.keys():
            raise ValueError(f"{self._name}: expected {', '.join(self._arguments)}, got {', '.join((*addresses, *integers))}")
        names = list(self._arguments)
        return BoundLaunch(
            self._run, launch, [integers.get(name, 0) for name in names], [names.index(name) for name in addresses]
        )

    def _check_arguments(self, values: Mapping[str, Tensor | int | None]) -> list[int]:
        """Pointers and integers in the kernel's order."""
        if values.keys() != self._arguments.keys():
            raise ValueError(f"{self._name}: expected the arguments {', '.join(self._arguments)}, got {', '.join(values)}")
        passed: list[Any] = [values[name] for name in self._arguments]
        for i, name, expected in self._arrays:
            passed[i] = expected.pointer(self._name, name, passed[i], self._device)
        for i, name in self._integers:
            if not isinstance(passed[i], int):
                raise ValueError(f"{self._name}: expected an integer as {name}, got {type(passed[i]).__name__}")
        return passed

    def _load(self, source: Path, name: str, macros: tuple[tuple[str, str], ...]) -> Any:
        return _launcher(source, name, macros, self._device, self._types, *self._launcher_options)

    def _run(self, launch: Launch, passed: Sequence[int]) -> None:
        index = self._index
        if torch._C._cuda_getDevice() != index:
            with torch.cuda.device(self._device):
                return self._run(launch, passed)
        bind(index)
        self._launch(launch, torch._C._cuda_getCurrentRawStream(index), passed)


class BoundLaunch:
    """A launch whose arguments have been checked; a call passes the addresses of its arrays."""

    def __init__(self, run: Callable[[Launch, Sequence[int]], None], launch: Launch, passed: list[int], places: list[int]):
        self._run, self._launch, self._count = run, launch, len(places)
        others = [i for i in range(len(passed)) if i not in places]
        self._others = tuple(passed[i] for i in others)
        order = places + others  # the place of each value, those of pointers first
        self._in_order = itemgetter(*map(order.index, range(len(passed)))) if len(passed) > 1 else tuple

    def __call__(self, pointers: Sequence[int]) -> None:
        """Launches the kernel. pointers: to arrays of the layouts that were checked, in their order, 0 for none."""
        if len(pointers) != self._count:
            raise ValueError(f"expected {self._count} addresses, got {len(pointers)}")
        self._run(self._launch, self._in_order((*pointers, *self._others)))


@cache
def _launcher(
    source: Path, name: str, macros: tuple[tuple[str, str], ...], device: torch.device, types: str, shared_bytes: int,
    is_cooperative: bool, cluster: int,
) -> Launcher:  # fmt: skip
    compiled = compile_source(source, macros, torch.cuda.get_device_capability(device))
    with torch.cuda.device(device):
        bind(device.index)
        function = driver.load_function(compiled.path, name)
        driver.set_attribute(function, driver.MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
        if cluster > PORTABLE_CLUSTER:
            driver.set_attribute(function, driver.NON_PORTABLE_CLUSTERS, 1)
        return Launcher(function, types, is_cooperative, driver.library())
