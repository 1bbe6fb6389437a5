"""LSTM, GRU and RNN whose recurrent weights stay on chip for the whole sequence: one launch for all steps.

One GEMM multiplies the inputs of all steps. Then a cluster of blocks runs all steps of some sequences. Each block holds the
rows of W_hh of its hidden units and publishes the new states to the others through shared memory. Backward each block publishes
what the gradients of its gates contribute to those of all states. Layers that do not fit in a cluster, and GPUs without
clusters, use the whole grid. In small layers each block has all of W_hh, and sequences of its own. One step of few sequences
has a kernel of its own. With few steps and sequences each launch computes the input product too. Source: Diamos et al.,
Persistent RNNs, ICML 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Layer, State, Weights, cells
from pytest_ecornn.implementations._common.compile_threads import compile_threads
from pytest_ecornn.implementations._common.noted import OwnKernels
from pytest_ecornn.implementations._common.recurrent_problem import (
    GATES,
    PARAMETERS,
    Device,
    MathMode,
    ProblemSize,
    values_per_step,
)
from pytest_ecornn.implementations._cuda.compile import skip_reason, with_index
from pytest_ecornn.implementations._cuda.rows import index_overflow_reason
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.reference.precision import tf32_refusal


class PersistentGpu(OwnKernels):
    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in GATES:
            return f"no {case.cell}: {', '.join(GATES)} only"
        if case.dtype not in ("bfloat16", "float16", "float32"):
            return f"runs bfloat16, float16 and float32, not {case.dtype}"
        if reason := tf32_refusal(case) or index_overflow_reason(case) or skip_reason(device):
            return reason
        return _does_not_fit_reason(case, device)

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations.persistent_gpu.describe import describe, kernel_codes
        from pytest_ecornn.implementations.persistent_gpu.plan import plan_of_case

        device = with_index(case.device)
        plan = plan_of_case(case, device)
        self._notes = describe(plan)
        compile_threads().compile(kernel_codes(plan))
        return make_layer(case, weights, device)

    def cost(self, case: Case) -> Cost:
        """Cost of the input products, and of each layer's recurrent weights, product, output, saved tensors and gradients."""
        from pytest_ecornn.implementations._common.input_projection import product_cost

        product, gates, hidden = product_cost(case), len(cells.get(case.cell).gates), case.hidden_size
        size, rows = getattr(torch, case.dtype).itemsize, case.steps * case.batch
        pseudo_layers, passes = case.layers * case.directions, 3 if case.training else 1
        moved = pseudo_layers * (passes * gates * hidden**2 + rows * values_per_step(case) * hidden) * size
        return Cost(product.bytes + moved, product.operations + passes * 2 * pseudo_layers * rows * gates * hidden**2)


def _does_not_fit_reason(case: Case, device: torch.device) -> str | None:
    for is_backward in (False, True)[: 1 + case.training]:
        arithmetic = MathMode.of(case.dtype, case.precision)
        problem = ProblemSize(case.cell, case.hidden_size, case.batch, arithmetic, is_backward)
        form = select_config(problem, Device.of(device))
        if isinstance(form, str):
            return form
    return None


def make_layer(case: Case, weights: Weights, device: torch.device) -> Layer:
    """All layers and directions of the case on `device`."""
    from pytest_ecornn.implementations.persistent_gpu.ops import run
    from pytest_ecornn.implementations.persistent_gpu.parameters import FrozenParameters
    from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions

    options = RNNOptions.of(case)
    names = [name + suffix for _, _, suffix in cells.parameter_suffixes(case) for name in PARAMETERS]

    parameters: list[Tensor | None] = [weights.get(name) for name in names]
    sparse = [(i, name) for i, name in enumerate(names) if name in weights.masks]

    def masked_parameters() -> list[Tensor | None]:
        masked = parameters.copy()
        for i, name in sparse:
            masked[i] = weights.masked(name)
        return masked

    frozen = None
    if not case.training:
        frozen = FrozenParameters([None if weight is None else weight.detach() for weight in masked_parameters()])

    def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        on_device = None if lengths is None else lengths.to(device, non_blocking=True)
        output, *final = run(x, cells.unpack_state(state), frozen or masked_parameters(), on_device, options)
        return output, tuple(final) if len(final) > 1 else final[0]

    return layer
