"""scan_gpu in log space, the form of arXiv 2410.01201, appendix B: h = exp of a scan over logarithms, in a positive candidate.

It stands beside scan_gpu to show what log space costs and how exact it is. The scan is Blelloch's tree ("Prefix sums and their
applications", 1990). Logarithms of float32 and float64 are kept in two numbers each: in one they hardly pass what a loop does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, Weights
from pytest_ecornn.implementations._scan_gpu_layer import Masks, cost_of, make_layer, refusal_of
from pytest_ecornn.implementations.cuda.compile import indexed

_CELLS = ("mingru_positive", "minlstm_positive")
_OPERATIONS = 100  # of a gate: two compositions and the gates, an exponential and a logarithm each


class ScanGpuLog(Implementation):
    carry = "float32"
    gate_gradients = "storage"
    saved_gates = "storage"
    products = "storage"
    deterministic = True

    def __init__(self) -> None:
        self._notes = ""

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in _CELLS:
            return f"no {case.cell}: {', '.join(_CELLS)} only, log space needs a positive candidate"
        return refusal_of(case, device)

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations._scan_gpu_log_op import describe, log_scan

        device = indexed(case.device)
        self._notes = describe(case, device)

        def run(
            x: Tensor, bias: Tensor | None, first: Tensor | None, masks: Masks, reverse: bool, overwrites_x: bool
        ) -> tuple[Tensor, Tensor]:
            how = masks[0], case.cell, case.batch_first, reverse
            return log_scan(x, first, *how, bias=bias, overwrites_x=overwrites_x)

        return make_layer(case, weights, device, run)

    def cost(self, case: Case) -> Cost:
        return cost_of(case, _OPERATIONS)

    def notes(self) -> str:
        return self._notes
