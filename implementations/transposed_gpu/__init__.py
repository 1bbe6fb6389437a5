"""EcoRNN's transposed layout: states [H, B], W h^T by cuBLAS, one kernel for all gates, the whole sequence in a CUDA graph.

The default launches some ten kernels a step and multiplies h W^T; here a step is two launches, replayed, and the layout is what
a microbenchmark finds faster for the shape. Source: EcoRNN, arXiv 1805.08899.
"""

from __future__ import annotations

import torch

from pytest_ecornn.contract import Case, Cost, Layer, Weights, cells
from pytest_ecornn.implementations._common.noted import Noted
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.implementations._cuda.compile import skip_reason, with_index
from pytest_ecornn.reference.precision import tf32_refusal


class TransposedGpu(Noted):
    """`layouts`: True for batch-minor states, False for row-major ones; the faster is chosen where there are both."""

    carry = "float32"
    gate_gradients = "storage"
    deterministic = True
    layouts: tuple[bool, ...] = (True, False)

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in NN_CELLS:
            return f"no {case.cell}: {', '.join(NN_CELLS)} only"
        if reason := tf32_refusal(case):
            return reason
        if case.batch * case.hidden_size >= 2**31:
            return f"B * H must be below 2^31, got {case.batch * case.hidden_size}"
        return skip_reason(device)

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations.transposed_gpu.autotune import autotune
        from pytest_ecornn.implementations.transposed_gpu.buffers import Form
        from pytest_ecornn.implementations.transposed_gpu.layer import Plan
        from pytest_ecornn.implementations.transposed_gpu.ops import make_layer

        device = with_index(case.device)
        with torch.cuda.device(device):
            choice = autotune(case, device, self.layouts)
            layer = make_layer(Plan(Form(case, device, choice.is_batch_minor), choice.library), weights)
        self._notes = str(choice)
        return layer

    def cost(self, case: Case) -> Cost:
        """The floor's, plus the recurrent weights in every step and the arrays of gates and states between the kernels."""
        floor, cell = cells.minimum_cost(case), cells.get(case.cell)
        size = getattr(torch, case.dtype).itemsize
        wide, passes = max(size, 4), 2 if case.training else 1
        gates, elements = len(cell.gates), case.batch * case.hidden_size
        a_step = gates * case.hidden_size**2 * size + elements * (wide * (3 * gates + 3) + 2 * size)
        return Cost(floor.bytes + passes * case.steps * case.layers * case.directions * a_step, floor.operations)
