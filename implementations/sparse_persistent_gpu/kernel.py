"""sparse_persistent_gpu's kernels, of one layer in one direction: what they are compiled for, and their launches."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np

from pytest_ecornn.implementations._common.nn_cells import NN_CELLS
from pytest_ecornn.implementations._cuda.kernel import Kernel
from pytest_ecornn.implementations._cuda.memory import zeros
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, Strides, status_of
from pytest_ecornn.implementations.sparse_persistent_gpu.config import SparseConfig

_NAMES = {False: "forward.cu", True: "backward.cu"}
_SOURCES = {is_backward: Path(__file__).parent / "kernels" / name for is_backward, name in _NAMES.items()}
# Addresses and strides of 64 bits, in the kernels' order; behind them come `status`, `steps`, `batch` and `is_reverse`.
_ROWS, _ELEMENTS = "row_step row_sequence", "places values slots firsts"
_OUTPUT, _D_OUTPUT, _GATES = (f"{name} {name}_step {name}_sequence" for name in ("output", "d_output", "gates"))
_ARGUMENTS = {
    False: f"{_GATES} {_ELEMENTS} bias_ih bias_hh first_h first_c {_OUTPUT} final_h final_c lengths kept cells {_ROWS} handoff",
    True: (
        f"kept cells {_ROWS} {_OUTPUT} {_ELEMENTS} first_h first_c {_D_OUTPUT} d_final_h d_final_c d_gates d_product d_first_h "
        "d_first_c lengths handoff"
    ),
}


def macros(kind: KernelSpec, form: SparseConfig, hidden: int) -> tuple[tuple[str, str], ...]:
    """Returns the macros that the source is compiled with. hidden: places of units."""
    storage = str(kind.dtype).removeprefix("torch.").upper()
    found = {"CELL": NN_CELLS.index(form.problem.cell), "HIDDEN": hidden, f"STORAGE_{storage}": 1, **form.macros}
    found |= {"KEEPS": int(kind.saves_for_backward), "LENGTHS": int(kind.lengths), "WATCHDOG_NS": kernel.WATCHDOG_NS}
    return tuple((name, str(value)) for name, value in found.items())


@lru_cache(maxsize=4096)
def kernel_of(kind: KernelSpec, form: SparseConfig, hidden: int) -> Kernel:
    names = [*_ARGUMENTS[kind.is_backward].split(), "status"]
    arguments = {**dict.fromkeys(names, np.int64), **dict.fromkeys(("steps", "batch", "is_reverse"), int)}
    name = "sparse_persistent_backward" if kind.is_backward else "sparse_persistent_forward"
    made = macros(kind, form, hidden)
    return Kernel(_SOURCES[kind.is_backward], name, made, arguments, kind.device, form.shared_bytes, True, form.cluster)


class Launch:
    """Launch of one kernel on rows of one memory layout; a call adds the addresses. shape: `hidden` counts places of units."""

    def __init__(self, shape: Shape, kind: KernelSpec, form: SparseConfig, is_reverse: bool, output: Strides, other: Strides):
        """other: of the gates, backward of the output's gradient."""
        self._device, self._status, self._handoff_bytes = kind.device, status_of(kind.device), form.mailbox_bytes
        name = "d_output" if kind.is_backward else "gates"
        strides = {"output_step": output[0], "output_sequence": output[1]}
        strides |= {f"{name}_step": other[0], f"{name}_sequence": other[1]}
        integers = strides | shape.row_strides | {"status": self._status.address, "is_reverse": int(is_reverse)}
        integers |= {"steps": shape.steps, "batch": shape.batch}
        addresses = [one for one in _ARGUMENTS[kind.is_backward].split() if one not in integers]
        self._run = kernel_of(kind, form, shape.hidden).at(form.launch, addresses, **integers)

    def __call__(self, addresses: tuple[int, ...]) -> None:
        """Launches the kernel. Raises RuntimeError as `Status.check`.

        addresses: its arrays in its order, 0 for none, except the last, which is allocated here.
        """
        self._status.check()
        handoff = zeros(self._handoff_bytes, self._device)
        self._run((*addresses, handoff.data_ptr()))


get_layer_kernel = lru_cache(maxsize=4096)(Launch)


def clear_cache() -> None:
    """The kernels and launches that were made."""
    get_layer_kernel.cache_clear()
    kernel_of.cache_clear()
