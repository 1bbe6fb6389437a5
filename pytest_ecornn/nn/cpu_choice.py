"""Which calls of RNN, LSTM and GRU fused_cpu runs on a CPU, and as what it is timed beside torch.nn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.autotune.selection import no_data
from pytest_ecornn.contract import DTYPES, Case, cells
from pytest_ecornn.nn.calls import missing_transform
from pytest_ecornn.nn.kernel_limits import FUSED
from pytest_ecornn.reference.precision import is_autocast

if TYPE_CHECKING:
    from pytest_ecornn.implementations._cpu.machine_code import CpuKernel

_LARGEST_HIDDEN = {"lstm": 128}  # up to which it beat torch.nn at T 100, B 1 to 16
_LARGEST_HIDDEN_OF_OTHERS = 256
_FEW_STEPS = 4  # up to which it won at any H


def refusal_on_cpu(module: Any, input: Any, rows: Tensor, hx: Any) -> str | None:
    """Why fused_cpu does not run a call, or None. rows: the input, or a PackedSequence's data."""
    if not rows.is_cpu:
        return f"expected an input on a CPU, got {rows.device}"
    if missing := missing_transform():
        return f"the kernels have {missing}"
    if module.proj_size:
        return f"expected proj_size 0, got {module.proj_size}: the kernels do not project states"
    if isinstance(input, PackedSequence):
        return "expected a padded input and lengths, got a PackedSequence"
    if is_autocast(rows.device):
        return "the kernels have no autocast on a CPU"
    if torch.compiler.is_compiling():
        return "torch.compile does not trace the kernels' calls"
    others = [*cells.unpack_state(hx), *module._flat_weights]
    if not all(one.is_cpu for one in others):
        return f"expected states and weights on a CPU, got {next(one.device for one in others if not one.is_cpu)}"
    dtypes = [rows.dtype, *(one.dtype for one in others)]
    if len(set(dtypes)) > 1:
        return f"expected one dtype, got {', '.join(sorted({str(dtype) for dtype in dtypes}))}"
    name = str(rows.dtype).removeprefix("torch.")
    return None if name in DTYPES else f"expected a dtype of {', '.join(DTYPES)}, got {name}"


def refusal_of_auto(module: Any, input: Any, rows: Tensor, hx: Any) -> str | None:
    """Why auto does not choose on a CPU, or None."""
    if no_data(rows):
        return no_data(rows)
    if torch.are_deterministic_algorithms_enabled():
        return "deterministic algorithms are asked for, and times would choose"
    return refusal_on_cpu(module, input, rows, hx)


def preferred_on_cpu(case: Case) -> str:
    """The backend of a call that nothing times."""
    largest = _LARGEST_HIDDEN.get(case.cell, _LARGEST_HIDDEN_OF_OTHERS)
    return FUSED if case.steps <= _FEW_STEPS or case.hidden_size <= largest else "torch"


def fused_kernels(case: Case) -> list[CpuKernel]:
    """The kernels of fused_cpu's calls of a case."""
    from pytest_ecornn.implementations.fused_cpu.module_call import stack_of

    dtype = getattr(torch, case.dtype)
    return stack_of(case.cell, case.hidden_size, dtype, case.batch_first, case.bidirectional).kernels(case.training)
