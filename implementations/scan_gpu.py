"""minGRU and minLSTM on a GPU: one product for the gates of all steps, then one kernel for all else.

Activations, recurrence and state stay on chip: each pre-activation is read once, each output written once. scan_cpu is the
same for a CPU. Linear space, not logarithms, and a state in float32. Source: arXiv 2410.01201, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn import cells
from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, Weights
from pytest_ecornn.implementations._precision import tf32_refusal
from pytest_ecornn.implementations._stack import run_layers
from pytest_ecornn.implementations.cuda.compile import indexed, refusal

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
        if reason := tf32_refusal(case):
            return reason
        largest = max(case.steps, len(cells.get(case.cell).gates) * case.batch * case.hidden_size)
        if largest >= 2**30:
            return f"T and G * B * H must be below 2^30, got {largest}"
        return refusal(device)

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations._gate_product import gate_products
        from pytest_ecornn.implementations._scan_gpu_op import describe, scan

        device = indexed(case.device)
        self._notes = describe(case, device)

        def layer(x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
            on_device = None if lengths is None else lengths.to(device, non_blocking=True)
            marks = None if resets is None else resets.view(torch.uint8)

            def run_layer(
                suffix: str, x: Tensor, is_projected: bool, state: cells.Blocks, reverse: bool
            ) -> tuple[Tensor, cells.Blocks]:
                bias = None
                if not is_projected:
                    x = gate_products(x, weights["weight_ih" + suffix], case.precision == "tf32")
                    bias = weights.get("bias_ih" + suffix)
                first = state[0] if state else None
                output, final = scan(x, bias, first, on_device, marks, case.cell, case.batch_first, reverse)
                return output, (final,)

            with torch.cuda.device(device):
                return run_layers(case, x, state, run_layer)

        return layer

    def cost(self, case: Case) -> Cost:
        """A scan reads the pre-activations and writes the output; backward it reads both and a gradient, and writes one."""
        from pytest_ecornn.implementations._gate_product import product_cost

        product, gates = product_cost(case), len(cells.get(case.cell).gates)
        scans, passes = (3 * gates + 3, 3) if case.training else (gates + 1, 1)
        elements = case.layers * case.directions * case.hidden_size * case.steps * case.batch
        moved = scans * elements * getattr(torch, case.dtype).itemsize
        return Cost(product.bytes + moved, product.operations + passes * elements * gates * _OPERATIONS)

    def notes(self) -> str:
        return self._notes
