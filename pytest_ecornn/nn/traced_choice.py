"""Chooses what runs a call of RNN, LSTM or GRU that torch.compile traces, where nothing can be timed."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from pytest_ecornn.autotune import Problem
from pytest_ecornn.contract import Case
from pytest_ecornn.nn.backend_choice import batch_of, dtype_name, is_tf32, without_timing
from pytest_ecornn.nn.kernel_limits import next_power_of_2
from pytest_ecornn.nn.module_candidates import module_choices, torch_refusal

_TRACED_STEPS = 64


def choose_traced(module: Any, input: Any, hx: Any) -> tuple[str, str]:
    """The backend of a call that torch.compile traces, and its note. Nothing is timed: the heuristic chooses."""
    rows = input.data if isinstance(input, PackedSequence) else input
    if not isinstance(rows, Tensor):
        return "torch", "torch"
    choice = without_timing(module, input, rows, hx)
    if choice is not None:
        return choice.captured, choice.notes
    backend: str = module._backend
    if backend != "persistent_gpu":
        settings = torch.is_grad_enabled(), module.training, torch.are_deterministic_algorithms_enabled()
        options = (module.num_layers, module.bidirectional, module.bias, is_tf32(rows.dtype), *settings)
        sizes = next_power_of_2(batch_of(module, input)), module.input_size, module.hidden_size
        backend = _decided(module.mode, *sizes, rows.dtype, rows.device, *options)
    return backend, f"{backend}; chosen without timing, as torch.compile traced the call"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _decided(
    mode: str, batch: int, width: int, hidden: int, dtype: torch.dtype, device: torch.device, layers: int,
    bidirectional: bool, bias: bool, tf32: bool, trains: bool, in_training: bool, deterministic: bool,
) -> str:  # fmt: skip
    """The heuristic's choice for a compiled module at T = _TRACED_STEPS, as a graph may be for any T."""
    case = Case(
        cell=mode.lower(), steps=_TRACED_STEPS, batch=batch, input_size=width, hidden_size=hidden, layers=layers, bias=bias,
        bidirectional=bidirectional, dtype=dtype_name(dtype), precision="tf32" if tf32 else "ieee", device=str(device),
        mode="training" if trains else "inference",
    )  # fmt: skip
    problem = Problem(
        case=case, caller="module", weight_grad=trains, evaluation=not in_training, deterministic=deterministic
    )  # fmt: skip
    mode = os.environ.get("ECORNN_AUTO", "measure")
    choices = module_choices(case, device, None, None, torch_refusal(problem, case))
    return mode if mode in choices.runnable else choices.heuristic
