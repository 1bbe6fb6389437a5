"""CUDA kernels without shared memory, compiled for the host and run a thread at a time: their arithmetic, without a GPU."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.implementations.cuda.kernel import Array, Launch

_SHIM = """
#include <cmath>
#define __device__
#define __global__
using std::exp;
using std::tanh;
struct Index { unsigned x; };
static Index blockIdx, blockDim, threadIdx;
extern "C" void place_thread(unsigned block, unsigned threads, unsigned thread) {
    blockIdx.x = block, blockDim.x = threads, threadIdx.x = thread;
}
"""


class KernelOnCpu:
    """Takes the place of `cuda.kernel.Kernel`."""

    def __init__(
        self,
        source: Path,
        name: str,
        macros: tuple[tuple[str, str], ...],
        arguments: Mapping[str, Array | type[int]],
        device: torch.device,
    ):
        self._library, self._name, self._arguments, self._device = _compiled(source, macros), name, dict(arguments), device

    def __call__(self, launch: Launch, **values: Tensor | int | None) -> None:
        assert values.keys() == self._arguments.keys()
        passed: list[Any] = []
        for name, expected in self._arguments.items():
            value = values[name]
            if isinstance(expected, Array):
                assert not isinstance(value, int)
                expected.check(self._name, name, value, self._device)
                passed.append(ctypes.c_void_p(None if value is None else value.data_ptr()))
            else:
                passed.append(ctypes.c_int(value))  # type: ignore[arg-type]
        for block in range(launch.grid):
            for thread in range(launch.block):
                self._library.place_thread(block, launch.block, thread)
                self._library[self._name](*passed)


@cache
def _compiled(source: Path, macros: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    import tempfile

    folder = Path(tempfile.mkdtemp())
    (folder / "shim.cpp").write_text(f'{_SHIM}\n#include "{source}"\n')
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-w", f"-I{source.parent / 'cuda'}"]
    options += [f"-D{name}={value}" for name, value in macros]
    subprocess.run(["g++", *options, "-o", str(folder / "kernel.so"), str(folder / "shim.cpp")], check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Takes the place of `_transposed_steps.product`, whose mixed types a CPU's libraries do not have."""
    return out.copy_(a.to(out.dtype) @ b.to(out.dtype))
