"""CUDA kernels compiled for the host and run a thread at a time: their arithmetic, without a GPU.

Threads must not wait for each other: kernels without shared memory, or where each thread reads there what it wrote itself.
"""

from __future__ import annotations

import ctypes
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from pytest_ecornn.implementations._scan_gpu_form import Cut, Form
from pytest_ecornn.implementations._scan_gpu_log_op import Tree
from pytest_ecornn.implementations._scan_gpu_op import Shape
from pytest_ecornn.implementations.cuda.kernel import Kernel
from pytest_ecornn.implementations.cuda.launch import INT32, INT64, POINTER, Launch
from tests.compiled_on_cpu import compiled

ONE_THREAD = Tree(across=2, steps=8, threads=1)


def form_of_one_thread(shape: Shape) -> Form:
    """Of one stretch a tile, so that no thread reads another's."""
    return Form(Cut(1, 32, 4, 1, 1, 2), False, shape.batch, -(-shape.steps // 4), 1, 0)


_SHIM = """
#include <cmath>
#define __device__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(...)
#define __syncthreads()
#define __syncwarp()
using std::exp;
using std::frexp;
using std::log;
using std::log1p;
using std::tanh;
static int max(int a, int b) { return a > b ? a : b; }
static int min(int a, int b) { return a < b ? a : b; }
template <typename To, typename From> To same_bits(From from) {
    To to;
    static_assert(sizeof(to) == sizeof(from), "");
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
static unsigned long long __double_as_longlong(double value) { return same_bits<unsigned long long>(value); }
static double __longlong_as_double(unsigned long long bits) { return same_bits<double>(bits); }
struct Index { unsigned x; };
static Index blockIdx, blockDim, threadIdx;
extern "C" void place_thread(unsigned block, unsigned threads, unsigned thread) {
    blockIdx.x = block, blockDim.x = threads, threadIdx.x = thread;
}
"""


class KernelOnCpu(Kernel):
    """Takes the place of `cuda.kernel.Kernel`."""

    def _load(self, source: Path, name: str, macros: tuple[tuple[str, str], ...]) -> Any:
        library = _compiled(source, macros)
        return library.place_thread, library[name]

    def _run(self, launch: Launch, passed: list[int]) -> None:
        place_thread, function = self._launch
        types = {POINTER: ctypes.c_void_p, INT64: ctypes.c_longlong, INT32: ctypes.c_int}
        given = [types[kind](value) for kind, value in zip(self._types, passed, strict=True)]
        for block in range(launch.grid):
            for thread in range(launch.block):
                place_thread(block, launch.block, thread)
                function(*given)


@cache
def _compiled(source: Path, macros: tuple[tuple[str, str], ...]) -> ctypes.CDLL:
    return build(Path(tempfile.mkdtemp()), f'{_SHIM}\n#include "{source}"\n', macros, source.parent / "cuda")


def build(folder: Path, text: str, macros: tuple[tuple[str, str], ...], headers: Path, *libraries: str) -> ctypes.CDLL:
    """The C++ of that text, written to the folder, as a library. libraries: paths of others that it calls."""
    source = folder / "kernel.cpp"
    source.write_text(text)
    options = ["-O1", "-std=c++17", "-shared", "-fPIC", "-fno-gnu-unique", "-w"]
    options.append("-U_FORTIFY_SOURCE")  # which takes a jump from one stack to another for a fault
    options += [f"-D{name}={value}" for name, value in macros]
    return ctypes.CDLL(str(compiled(source, headers, options, libraries)))


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Takes the place of `_transposed_steps.product`, whose mixed types a CPU's libraries do not have."""
    return out.copy_(a.to(out.dtype) @ b.to(out.dtype))
