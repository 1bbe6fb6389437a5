"""sparse_persistent_gpu's kernels, of one layer in one direction: what they are compiled for, and their launches."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.implementations._cuda.kernel import Kernel, storage_macro
from pytest_ecornn.implementations._cuda.memory import zeros
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, Strides, status_of
from pytest_ecornn.implementations.sparse_persistent_gpu.config import SparseConfig

_NAMES = {False: "forward.cu", True: "backward.cu"}
_SOURCES = {is_backward: Path(__file__).parent / "kernels" / name for is_backward, name in _NAMES.items()}
_NON_ZEROS = "col_indices values slots row_offsets"
# Fields of the kernels' Params beside those of dense weights' kernels.
_PARAMS = {
    is_backward: (*names, *_NON_ZEROS.split(), "mailboxes")
    for is_backward, names in ((False, kernel.FORWARD_PARAMS), (True, kernel.BACKWARD_PARAMS))
}
# Addresses in a call's order.
_ADDRESSES = {
    False: f"gates {_NON_ZEROS} bias_ih bias_hh h0 c0 output h_n c_n lengths saved_gates saved_cells",
    True: f"saved_gates saved_cells output {_NON_ZEROS} h0 c0 d_output d_h_n d_c_n d_gates d_recurrent d_h0 d_c0 lengths",
}


def macros(spec: KernelSpec, form: SparseConfig, hidden: int) -> tuple[tuple[str, str], ...]:
    """Returns the macros that the source is compiled with. hidden: places of units."""
    found = {"CELL": NN_CELLS.index(form.problem.cell), "HIDDEN": hidden, storage_macro(spec.dtype): 1, **form.macros}
    found |= {"SAVE_GATES": int(spec.saves_for_backward), "LENGTHS": int(spec.lengths), "WATCHDOG_NS": kernel.WATCHDOG_NS}
    return tuple((name, str(value)) for name, value in found.items())


@lru_cache(maxsize=4096)
def kernel_of(spec: KernelSpec, form: SparseConfig, hidden: int) -> Kernel:
    arguments = kernel.params(_PARAMS[spec.is_backward])
    name = "sparse_persistent_backward" if spec.is_backward else "sparse_persistent_forward"
    made = macros(spec, form, hidden)
    return Kernel(_SOURCES[spec.is_backward], name, made, arguments, spec.device, form.shared_bytes, True, form.cluster)


class Launch:
    """Launch of one kernel on rows of one memory layout; a call adds the addresses. shape: `hidden` counts places of units."""

    def __init__(self, shape: Shape, spec: KernelSpec, form: SparseConfig, is_reverse: bool, output: Strides, other: Strides):
        """other: of the gates, backward of the output's gradient."""
        self._device, self._status, self._handoff_bytes = spec.device, status_of(spec.device), form.mailbox_bytes
        name = "d_output" if spec.is_backward else "gates"
        strides = {"output_step": output[0], "output_sequence": output[1]}
        strides |= {f"{name}_step": other[0], f"{name}_sequence": other[1]}
        integers = strides | shape.row_strides | {"status": self._status.address, "is_reverse": int(is_reverse)}
        integers |= {"steps": shape.steps, "batch": shape.batch}
        addresses = [*_ADDRESSES[spec.is_backward].split(), "mailboxes"]
        self._run = kernel_of(spec, form, shape.hidden).at(form.launch, addresses, **integers)

    def __call__(self, addresses: tuple[int, ...]) -> None:
        """Launches the kernel. Raises RuntimeError as `Status.check`.

        addresses: its arrays in its order, 0 for none, except the last, which is allocated here.
        """
        self._status.check()
        mailboxes = zeros(self._handoff_bytes, self._device)
        self._run((*addresses, mailboxes.data_ptr()))


get_layer_kernel = lru_cache(maxsize=4096)(Launch)


def clear_cache() -> None:
    """The kernels and launches that were made."""
    get_layer_kernel.cache_clear()
    kernel_of.cache_clear()
