"""CUDA kernels of clusters, or of a grid that runs at once, on a CPU: tests/simulator/clusters.

All threads of a cluster take turns in an order that a seed draws.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from pytest_ecornn.implementations._common.compile_threads import CompileThreads
from pytest_ecornn.implementations._common.recurrent_problem import Device
from pytest_ecornn.implementations._cuda import bias_gradients, padded_rows, parameter_gradients
from pytest_ecornn.implementations._cuda.compile import HOPPER, KernelCode, include_folders
from pytest_ecornn.implementations._cuda.host.recorder import current_recorder
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.launch import Launch, params_struct
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu import ops, single_step, wavefront
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.input_gemm import gemm_3xtf32
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.sparse_persistent_gpu import kernel as sparse_kernel
from tests.simulator import launch_memo
from tests.simulator.compiled_on_cpu import Library, headers_of

MOST_SWEEPS = 200_000  # over all threads, after which a cluster hangs
H200 = Device(132, 232_448, 16)
FEW = Device(3, 232_448, 1)  # multiprocessors
SHARED = (bias_gradients, padded_rows, parameter_gradients)  # kernels of several implementations
_FOLDER = Path(__file__).with_name("clusters")
_OUTCOMES = ("", "hangs", "stores into a block after its end", "expects twice in one phase of an mbarrier")
_first_order = 0
_orders = count()


Waves = Callable[[Shape, KernelSpec, int, int], list[WavefrontConfig | None]]


def one_by_one(shape: Shape, spec: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
    return [None] * layers


@contextmanager
def running_layers(form_of: Callable[[Shape, KernelSpec], Form], waves: Waves = one_by_one) -> Iterator[None]:
    """Within it persistent_gpu's layers and ops run on a CPU, by the forms and in the waves that it says."""

    @lru_cache
    def plan(shape: Shape, spec: KernelSpec) -> tuple[Form, Any]:
        form = form_of(shape, spec)
        return form, persistent_kernel.make_kernel(spec, form)

    by_kernels = running_kernels(persistent_kernel, single_step, wavefront, gemm_3xtf32, *SHARED)
    scoped = torch.library._scoped_library("pytest_ecornn", "IMPL")
    with pytest.MonkeyPatch.context() as patch, by_kernels, scoped as library:
        patch.setattr(persistent_kernel, "compile_layer", plan)
        patch.setattr(wavefront, "get_wavefronts", waves)
        patch.setattr(Device, "of", lambda device: H200)
        patch.setattr(persistent_kernel, "skip_reason", lambda device: None)
        patch.setattr(CompileThreads, "add", lambda threads, codes: None)  # the simulator compiles for itself
        library.impl("persistent_forward", ops._forward, "CPU")
        library.impl("persistent_forward_keeping", ops._forward_with_reserve, "CPU")
        library.impl("persistent_backward", ops._backward, "CPU")
        yield


@contextmanager
def running_sparse(device: Device) -> Iterator[None]:
    """Within it sparse_persistent_gpu's layers run on a CPU, by the forms that they have on that device."""
    with pytest.MonkeyPatch.context() as patch, running_kernels(sparse_kernel, bias_gradients):
        patch.setattr(Device, "of", lambda _: device)
        yield


@contextmanager
def running_kernels(*modules: ModuleType) -> Iterator[None]:
    """Within it the kernels of these modules run on a CPU."""
    forget()
    try:
        with pytest.MonkeyPatch.context() as patch, launch_memo.remembering_addresses():
            for module in modules:
                patch.setattr(module, "Kernel", ClustersOnCpu)
            yield
    finally:
        forget()


def is_fault_seen(right: str, wrong: str, check: Callable[[], object], tries: int = 8) -> bool:
    """Whether a check fails, in one of several orders of threads, where `wrong` takes the place of `right` in a kernel."""

    def is_wrong() -> bool:
        forget()
        try:
            check()
        except (AssertionError, Broken):
            return True
        return False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ClustersOnCpu, "change", staticmethod(lambda name, text: text.replace(right, wrong)))
        return any(is_wrong() for _ in range(tries))


def forget() -> None:
    """The launches that were made: of kernels that are to be others now."""
    sparse_kernel.clear_cache()
    wavefront.clear_cache()
    single_step.get_single_step_kernel.cache_clear()
    single_step.get_single_step_backward.cache_clear()
    gemm_3xtf32.make_kernel.cache_clear()
    for module in SHARED:
        module.clear_cache()


class Broken(Exception):
    """A cluster whose threads wait for ever, or that does what is not allowed."""


def start_from(order: int) -> None:
    """The threads of each launch from now on take turns in another order, the first in this one of the test's own."""
    global _orders
    _orders = count(_first_order + order)


def set_first_order(order: int) -> None:
    """The orders from now on, those after `start_from` too, count from this one."""
    global _first_order
    _first_order = order
    start_from(0)


class ClustersOnCpu(Kernel):
    """Takes the place of `_cuda.kernel.Kernel`. change: of a kernel's or a header's name and its text, to plant a fault."""

    change: Callable[[str, str], str] = staticmethod(lambda name, text: text)

    @property
    def code(self) -> KernelCode:
        return KernelCode(self._source, self._macros, HOPPER)

    def _load(self, source: Path, name: str, macros: tuple[tuple[str, str], ...]) -> Any:
        headers = headers_of(*include_folders(source), _FOLDER)
        changed = tuple((path, self.change(Path(path).name, text)) for path, text in headers)
        entry = f'extern "C" void run_kernel(const void* params) {{ call({name}, params); }}'
        text = f'#include "machine.hpp"\n{self.change(name, source.read_text())}\n{entry}\n'
        return Library(text, changed, tuple(f"-D{macro}={value}" for macro, value in macros), (_MACHINE,))

    def _run(self, launch: Launch, passed: list[int]) -> None:
        most, is_cooperative, cluster = self._launcher_options
        assert launch.shared_bytes <= most
        splits = dict(zip(self._arguments, passed, strict=True)).get("splits", 1)  # clusters that add to the same sums
        is_waiting = is_cooperative or "step_flags" in self._arguments  # one block for another
        together = launch.grid if is_waiting else cluster * splits
        for status in persistent_kernel._statuses.values():
            launch_memo.remember(status._memory)
        for first in range(0, launch.grid, together):
            order = next(_orders) % 2**32
            sizes = (first, together, cluster, launch.block, launch.shared_bytes, order, MOST_SWEEPS)
            settings = (self._launch.key, *sizes)
            if outcome := launch_memo.launch(settings, self._types, passed, lambda sizes=sizes: self._simulate(sizes, passed)):
                raise Broken(f"{self._name}, threads in order {order}: {_OUTCOMES[outcome]}")

        if (recorder := current_recorder()) is not None:  # the compiled host path's, which is to launch it again
            function = _driver_function(_address_of(self._launch.loaded.run_kernel), together, cluster)
            params = params_struct(self._types).pack(*passed)
            recorder.launch(
                _address_of(_DRIVER.loaded.launch), ctypes.addressof(function), False, launch, self._types, passed, params
            )

    def _simulate(self, sizes: tuple[int, ...], passed: list[int]) -> int:
        run_clusters = _MACHINE.loaded.run_clusters
        run_clusters.argtypes = (ctypes.c_void_p, *(ctypes.c_uint,) * 6, ctypes.c_ulonglong, ctypes.c_void_p)
        kernel = ctypes.cast(self._launch.loaded.run_kernel, ctypes.c_void_p)
        return int(run_clusters(kernel, *sizes, params_struct(self._types).pack(*passed)))


class _DriverFunction(ctypes.Structure):
    _fields_ = (
        *(("run", ctypes.c_void_p), ("kernel", ctypes.c_void_p), ("together", ctypes.c_uint), ("cluster", ctypes.c_uint)),
        ("most_sweeps", ctypes.c_ulonglong),
    )


@cache
def _driver_function(kernel: int, together: int, cluster: int) -> _DriverFunction:
    """A kernel as a driver's function, of so many blocks at once, in clusters of so many."""
    return _DriverFunction(_address_of(_MACHINE.loaded.run_clusters), kernel, together, cluster, MOST_SWEEPS)


def _address_of(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_MACHINE = Library((_FOLDER / "machine.cpp").read_text(), headers_of(_FOLDER))  # what runs all kernels
_DRIVER = Library(
    """
struct Function {
    int (*run)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned long long, const void*);
    void* kernel;
    unsigned together, cluster;
    unsigned long long most_sweeps;
};
extern "C" int launch(Function* function, unsigned grid, unsigned, unsigned, unsigned block, unsigned, unsigned,
                      unsigned shared_bytes, void*, void** params, void**) {
    auto [run, kernel, together, cluster, most_sweeps] = *function;
    for (unsigned first = 0; first < grid; first += together)
        if (int outcome = run(kernel, first, together, cluster, block, shared_bytes, first, most_sweeps, *params))
            return outcome;
    return 0;
}
"""
)  # what launches them as CUDA's driver does
