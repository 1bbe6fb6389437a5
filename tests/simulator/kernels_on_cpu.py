"""CUDA kernels compiled for the host and run a thread at a time: their arithmetic, without a GPU.

Threads must not wait for each other: kernels without shared memory, or where each thread reads there what it wrote itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._cuda import kernel
from pytest_ecornn.implementations._cuda.compile import include_folders
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.launch import Launch, params_struct
from pytest_ecornn.implementations._cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations.scan_gpu import ops as scan_gpu_ops
from pytest_ecornn.implementations.scan_gpu.config import Form, ScanRequirements, TileShape
from pytest_ecornn.implementations.scan_gpu.ops import CELLS, ScanSpec, Shape
from pytest_ecornn.implementations.scan_gpu_log import ops as scan_gpu_log_ops
from pytest_ecornn.implementations.scan_gpu_log.ops import BlellochConfig
from pytest_ecornn.implementations.transposed_gpu import layer, steps
from tests.simulator import launch_memo
from tests.simulator.compiled_on_cpu import Library, headers_of

ONE_THREAD = BlellochConfig(threads_per_row=2, steps=8, threads=1)


def form_of_one_thread(shape: Shape, kind: ScanSpec) -> Form:
    """Of one stretch a tile, so that no thread reads another's."""
    cut, gates = TileShape(1, 32, 4, 1, 1, 2), CELLS[shape.cell][0]
    read_bytes = ScanRequirements(gates, kind.dtype, is_paired=False, is_backward=kind.is_backward, is_plain=True).read_bytes(
        cut
    )
    return Form(cut, False, shape.batch, -(-shape.steps // 4), 1, read_bytes)


_SHIM = """
#include <cmath>
#define __device__
#define __global__
#define __grid_constant__
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
static unsigned __float_as_uint(float value) { return same_bits<unsigned>(value); }
static float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
struct Index { unsigned x; };
static Index blockIdx, blockDim, threadIdx;
extern "C" void place_thread(unsigned block, unsigned threads, unsigned thread) {
    blockIdx.x = block, blockDim.x = threads, threadIdx.x = thread;
}
template <typename Params> static void call(void (*kernel)(Params), const void* params) { kernel(*(const Params*)params); }
"""


class KernelOnCpu(Kernel):
    """Takes the place of `_cuda.kernel.Kernel`. change: of a source's name and its text, to plant a fault."""

    change: Callable[[str, str], str] = staticmethod(lambda name, text: text)

    def _load(self, source: Path, name: str, macros: tuple[tuple[str, str], ...]) -> Any:
        entry = f'extern "C" void run_kernel(const void* params) {{ call({name}, params); }}'
        text = f'{_SHIM}\n#line 1 "{source.name}"\n{self.change(source.name, source.read_text())}\n{entry}\n'
        all_macros = (*macros, ("DYNAMIC_BYTES", str(self._launcher_options[0])))
        return Library(text, headers_of(*include_folders(source)), tuple(f"-D{macro}={value}" for macro, value in all_macros))

    def _run(self, launch: Launch, passed: list[int]) -> None:
        launch_memo.launch((self._launch.key, launch), self._types, passed, lambda: self._simulate(launch, passed))

    def _simulate(self, launch: Launch, passed: list[int]) -> int:
        library, params = self._launch.loaded, params_struct(self._types).pack(*passed)
        for block in range(launch.grid):
            for thread in range(launch.block):
                library.place_thread(block, launch.block, thread)
                library.run_kernel(params)
        return 0


@contextmanager
def running_scans() -> Iterator[None]:
    """Within it scan_gpu's and scan_gpu_log's ops run on a CPU, each block of their kernels one thread a channel."""

    def plan(shape: Shape, kind: ScanSpec) -> tuple[Form, Kernel]:
        form = form_of_one_thread(shape, kind)
        return form, scan_gpu_ops.make_kernel(shape, kind._replace(alignment=8), form)

    def plan_log(shape: Shape, dtype: torch.dtype, device: torch.device, is_compensated: bool) -> tuple[BlellochConfig, Kernel]:
        return ONE_THREAD, scan_gpu_log_ops.make_kernel(shape, dtype, device, ONE_THREAD, is_compensated)

    scoped = torch.library._scoped_library("pytest_ecornn", "IMPL")
    with pytest.MonkeyPatch.context() as patch, launch_memo.remembering_addresses(), scoped as library:
        patch.setattr(scan_gpu_ops, "make_plan", plan)
        patch.setattr(scan_gpu_log_ops, "make_plan", plan_log)
        for module in (scan_gpu_ops, scan_gpu_log_ops):
            patch.setattr(module, "Kernel", KernelOnCpu)
            patch.setattr(module, "_launches", LayoutMemo(module._prepared))
        library.impl("scan_forward", scan_gpu_ops._forward, "CPU")
        library.impl("scan_log_forward", scan_gpu_log_ops._forward, "CPU")
        library.impl("scan_backward", scan_gpu_ops._backward, "CPU")
        library.impl("scan_backward_over", scan_gpu_ops._backward_inplace, "CPU")
        yield


@contextmanager
def running_transposed() -> Iterator[None]:
    """Within it the steps of transposed_gpu and row_major_gpu run on a CPU."""
    with pytest.MonkeyPatch.context() as patch, launch_memo.remembering_addresses():
        patch.setattr(kernel, "THREADS", 9)
        patch.setattr(steps, "Kernel", KernelOnCpu)
        for module in (steps, layer):
            patch.setattr(module, "product", product)
        yield


def product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Takes the place of `steps.product`, whose mixed types a CPU's libraries do not have."""
    return out.copy_(a.to(out.dtype) @ b.to(out.dtype))
