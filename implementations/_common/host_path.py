"""The compiled host path: calls that Python has planned and run once are replayed by C++, which owns their backward pass.

`ECORNN_HOST=python` turns it off. Python runs the calls until the library is built, and those that cannot be replayed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.compile_threads import compile_threads
from pytest_ecornn.implementations._cuda import driver
from pytest_ecornn.implementations._cuda.host.library import HostLibrary, host_library
from pytest_ecornn.implementations._cuda.host.recorder import Recorder, Tape
from pytest_ecornn.implementations._cuda.launch import bind
from pytest_ecornn.reference.held_products import PRODUCTS, Products, use_compiled_holds

Tensors = Sequence[Any]  # and None


@dataclass(frozen=True)
class PlannedWork:
    """A call's passes by Python, which the compiled host path records and replays. device: with its index.

    forward: of the call's tensors. Returns `num_results` results, then what is saved. backward: called with a claim for each of
    the call's tensors whether its gradient is wanted; whether what was saved is needed no longer; whether somebody looks on, by
    a mode or a transform, or as create_graph is True; and a list of tensors: those of the call, what `saved` names of the
    forward pass, and the results' gradients. Returns a gradient or None for each of the call's tensors.
    timed_out: the address of an int32 that a kernel sets where it gives up. It is the only one that kernels take beside those
    of tensors. products: what torch's products are computed in. saves_inputs: else `backward` gets no tensors of the call, and
    each result is that of the tensor at its place, without a gradient where that has none.
    """

    name: str
    device: torch.device
    num_results: int
    saved: Sequence[int]
    timed_out: int
    products: Products | None
    forward: Callable[[Tensors], Tensors]
    backward: Callable[[Sequence[bool], bool, bool, Tensors], Tensors]
    saves_inputs: bool = True


class HostPath:
    """Makes planned calls once the library is there. notes: what runs them, and why."""

    def __init__(self) -> None:
        self.notes = "host: Python, as ECORNN_HOST is python"
        self._module: Any = None
        self._is_final = False  # it is there, or cannot be

    @property
    def is_enabled(self) -> bool:
        """Raises ValueError for an unknown setting."""
        setting = os.environ.get("ECORNN_HOST") or "compiled"
        if setting not in ("compiled", "python"):
            raise ValueError(f"expected ECORNN_HOST as compiled or python, got {setting!r}")
        return setting == "compiled"

    @property
    def sources(self) -> list[HostLibrary]:
        """What is compiled for it: the library, unless that is off or there is no compiler."""
        return [library] if self.is_enabled and not isinstance(library := host_library(), str) else []

    @property
    def is_compiled(self) -> bool:
        """Whether the library is there."""
        return self.is_enabled and self._library() is not None

    def planned_call(self, work: PlannedWork) -> Callable[..., tuple[Tensor, ...]] | None:
        """A function of the call's tensors, None for none, that returns its results; None while there is no library."""
        if (module := self._library()) is None:
            return None
        addresses: tuple[int, ...] = (0, 0, 0)
        if work.device.type == "cuda":
            with torch.cuda.device(work.device):
                bind(work.device.index)
                functions = driver.library().cuStreamIsCapturing, driver.library().cuCtxSetCurrent
                addresses = *map(driver.address_of, functions), driver.current_context()
        call: Callable[..., tuple[Tensor, ...]] = module.make(
            executor_of(work), work.name, str(work.device), work.num_results, [*work.saved], work.timed_out,
            -1 if work.products is None else PRODUCTS.index(work.products), work.saves_inputs, *addresses,
        )  # fmt: skip
        return call

    def _library(self) -> Any:
        """The library's module. None while it is built, and for good where it cannot be."""
        if self._is_final:
            return self._module
        library, threads = host_library(), compile_threads()
        if isinstance(library, str):
            self.notes, self._is_final = f"host: Python, {library}", True
            return None
        threads.add([library])
        if os.environ.get("ECORNN_COMPILE") == "wait":
            threads.wait([library])
        if threads.is_compiling([library]):
            self.notes = "host: Python, while the library is built"
            return None
        try:
            module = library.load()
            use_compiled_holds(module)  # before any thread replays
            self._module, self.notes = module, "host: compiled"
        except (ImportError, OSError) as error:
            self.notes = f"host: Python, {error}; {library.log}"
        self._is_final = True
        return self._module


def executor_of(work: PlannedWork) -> Callable[..., tuple[Tape | str | None, Tensors]]:
    """Python's executor as replay.cpp calls it: needs, a character for each gradient, is "" for the forward pass.

    mode: 0 to record, 1 for plain calls, 2 for those that are observed. Returns what was recorded, or None, and the results.
    """

    def execute(needs: str, overwrites: bool, mode: int, tensors: Tensors) -> tuple[Tape | str | None, Tensors]:
        def run() -> Tensors:
            if not needs:
                return work.forward(tensors)
            return work.backward([need == "1" for need in needs], overwrites, mode == 2, tensors)

        if mode == 2:
            return None, run()
        with torch.no_grad():
            if mode == 1:
                return None, run()
            with Recorder(tensors, (work.timed_out,)) as recorder:
                results = run()
        return recorder.tape(results), results

    return execute


@cache
def host_path() -> HostPath:
    """This process's."""
    return HostPath()
