"""Estimated times of LSTM, GRU and RNN by backend, which prune candidates and choose where nothing may be timed.

persistent_gpu's are its own cost model's. cuDNN's standard algorithm is a launch or two a step that read W_hh from the L2
cache; its constants are fitted to torch 2.11 on an H200, LSTM and GRU of H 200 to 2816, and are within a factor of 1.5 there.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.heuristics import (
    estimated_us_with_queueing,
    fits_both_directions,
    select_config,
)

_CUDNN_STEP_US = 6.0
_L2_BYTES_PER_US = 2.5e6
_STEP_FLOP_PER_US = {"float64": 6e6, "float32": 12e6, "tf32": 60e6, "float16": 150e6, "bfloat16": 150e6}
_GEMM_FLOP_PER_US = {"float64": 30e6, "float32": 35e6, "tf32": 200e6, "float16": 400e6, "bfloat16": 400e6}
_TRAINING = 2.5  # a training step over a forward pass, of cuDNN
_LAUNCH_US = 8.0
_WORSE = 2.0  # a candidate estimated to take that many times as long is not compiled; none at 1.5 or more has won
_MAX_PERSISTENT_HIDDEN = 1024  # of cuDNN's persistent algorithm, as torch takes it
_CLEAR_WIN = 0.3  # estimates were up to 4.5 times too low beside 2.5 times too high: DeepBench in float32, H 2048 and 2560


def cudnn_us(case: Case) -> float:
    """Estimated us of a call on the device by cuDNN."""
    gates, precision = GATES[case.cell], _precision(case)
    size: int = getattr(torch, case.dtype).itemsize
    weights = gates * case.hidden_size**2
    product = max(weights * size / _L2_BYTES_PER_US, 2 * case.batch * weights / _STEP_FLOP_PER_US[precision])
    per_layer = _LAUNCH_US + case.steps * (_CUDNN_STEP_US + product)
    forward = case.layers * case.directions * per_layer + input_product_us(case)
    return forward * (_TRAINING if case.training else 1.0)


def persistent_us(case: Case, device: torch.device) -> float | None:
    """Estimated us of a call on the device by persistent_gpu, or None where no form fits."""
    return persistent_us_on(case, Device.of(device))


def persistent_us_on(case: Case, chip: Device) -> float | None:
    """As `persistent_us`, of a chip that need not be there."""
    arithmetic, total = MathMode.of(case.dtype, case.precision), 0.0
    for is_backward in (False, True)[: 1 + case.training]:
        form = select_config(ProblemSize(case.cell, case.hidden_size, case.batch, arithmetic, is_backward), chip)
        if isinstance(form, str):
            return None
        at_once = 1 if fits_both_directions(form, chip) else case.directions
        total += case.layers * (_LAUNCH_US + case.steps * at_once * estimated_us_with_queueing(form, chip))
    return total + input_product_us(case) * (3 if case.training else 1)


def is_linear(case: Case) -> bool:
    """Whether cuDNN's time is linear in T: it has one algorithm for all T and B.

    In float16 torch takes cuDNN's persistent algorithm of one layer in one direction for some T and B (RNN.cpp).
    """
    sizes = case.input_size, case.hidden_size
    may_persist = case.dtype == "float16" and case.layers == case.directions == 1 and not any(size % 128 for size in sizes)
    return not may_persist or case.hidden_size > _MAX_PERSISTENT_HIDDEN


def input_product_us(case: Case) -> float:
    """Estimated us of W_ih x of all layers."""
    width = case.input_size + (case.layers - 1) * case.directions * case.hidden_size
    products = 2 * case.steps * case.batch * GATES[case.cell] * case.hidden_size * width * case.directions
    return products / _GEMM_FLOP_PER_US[_precision(case)]


def pruned(times_us: Mapping[str, float]) -> dict[str, str]:
    """Why candidates cannot win, by name, from estimated times."""
    least = min(times_us.values(), default=0.0)
    return {name: f"estimated at {us / least:.1f} times the fastest" for name, us in times_us.items() if us > _WORSE * least}


def is_clear_win(us: float, other_us: float) -> bool:
    """Whether a time is so much less than another that further candidates are not worth compiling."""
    return us < _CLEAR_WIN * other_us


def _precision(case: Case) -> str:
    return case.precision if case.precision != "ieee" else case.dtype
