"""minGRU and minLSTM on a GPU: one product for the gates of all steps, then one kernel for all else.

Activations, recurrence and state stay on chip: each pre-activation is read once, each output written once. scan_cpu is the
same for a CPU. Linear space, not logarithms, and a state in float32. Source: arXiv 2410.01201, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, Weights
from pytest_ecornn.implementations._scan_gpu_layer import Masks, cost_of, make_layer, refusal_of
from pytest_ecornn.implementations.cuda.compile import indexed

_CELLS = ("mingru", "mingru_positive", "minlstm", "minlstm_positive")
_OPERATIONS = 20  # of a gate: an exponential, a reciprocal, the recurrence


class ScanGpu(Implementation):
    carry = "float32"
    gate_gradients = "storage"
    saved_gates = "storage"
    products = "storage"
    deterministic = True
    takes_resets = True

    def __init__(self) -> None:
        self._notes = ""

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in _CELLS:
            return f"no {case.cell}: {', '.join(_CELLS)} only, whose state is linear in the one before"
        return refusal_of(case, device)

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations._scan_gpu_op import describe, scan

        device = indexed(case.device)
        self._notes = describe(case, device)

        def run(
            x: Tensor, bias: Tensor | None, first: Tensor | None, masks: Masks, reverse: bool, overwrites_x: bool
        ) -> tuple[Tensor, Tensor]:
            return scan(x, bias, first, *masks, case.cell, case.batch_first, reverse, overwrites_x)

        return make_layer(case, weights, device, run)

    def cost(self, case: Case) -> Cost:
        return cost_of(case, _OPERATIONS)

    def notes(self) -> str:
        return self._notes
