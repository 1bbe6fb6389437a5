"""LSTM, GRU and RNN with pruned recurrent weights, whose non-zeros stay on chip for the whole sequence, in one launch.

After one product for the inputs of all steps the blocks of a grid take the sequences through time. Each owns some hidden units,
and keeps the non-zeros of their rows of W_hh in its registers and shared memory; new states carry their own timestamps from
block to block. Backward each keeps those of W_hh^T. Source: Zhu et al., Sparse Persistent RNNs, ICLR 2018.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, State, Weights, cells
from pytest_ecornn.contract import Layer as ContractLayer
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.input_projection import gate_products, product_cost
from pytest_ecornn.implementations._common.noted import OwnKernels
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, values_per_step
from pytest_ecornn.implementations._cuda.compile import skip_reason, with_index
from pytest_ecornn.implementations._cuda.rows import index_overflow_reason
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.sparse_persistent_gpu.config import ALL, Techniques
from pytest_ecornn.implementations.sparse_persistent_gpu.heuristics import expected_counts, select_config
from pytest_ecornn.implementations.sparse_persistent_gpu.layer import Layer, LayerInputs
from pytest_ecornn.reference.precision import tf32_refusal


class SparsePersistentGpu(OwnKernels):
    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in GATES:
            return f"no {case.cell}: {', '.join(GATES)} only"
        if case.density == 1:
            return "runs pruned recurrent weights, of a density below 1"
        if case.dtype not in ("bfloat16", "float16", "float32"):
            return f"runs bfloat16, float16 and float32, not {case.dtype}"
        if reason := tf32_refusal(case) or index_overflow_reason(case) or skip_reason(device):
            return reason
        return _does_not_fit_reason(case, device)

    def build(self, case: Case, weights: Weights) -> ContractLayer:
        layer, self._notes = make_layer(case, weights, with_index(case.device))
        return layer

    def cost(self, case: Case) -> Cost:
        """The inputs' products, and of each layer its non-zeros, their product and output; what is kept, and gradients."""
        product, gates, hidden = product_cost(case), GATES[case.cell], case.hidden_size
        size, tracks, rows = getattr(torch, case.dtype).itemsize, case.layers * case.directions, case.steps * case.batch
        elements = max(1, round(case.density * gates * hidden**2))
        passes = 2 if case.training else 1
        moved = tracks * (passes * elements * (size + 2) + rows * values_per_step(case) * hidden * size)
        operations = passes * 2 * tracks * rows * elements
        if case.training:  # W_hh's gradient, of which the non-zeros are kept
            moved, operations = moved + tracks * gates * hidden**2 * size, operations + 2 * tracks * rows * gates * hidden**2
        return Cost(product.bytes + moved, product.operations + operations)


def _does_not_fit_reason(case: Case, device: torch.device) -> str | None:
    """Asked of a random pattern of the case's density: another may still not fit."""
    spec = KernelSpec(getattr(torch, case.dtype), device)
    for one in (spec, spec.backward)[: 1 + case.training]:
        problem = one.problem(case.cell, case.hidden_size, case.batch)
        found = select_config(problem, expected_counts(problem, case.density), Device.of(device))
        if isinstance(found, str):
            return f"{found}{' backward' * one.is_backward}"
    return None


def make_layer(case: Case, weights: Weights, device: torch.device, techniques: Techniques = ALL) -> tuple[ContractLayer, str]:
    """All layers and directions of the case on `device`, and what they run. Raises Unsupported where a pattern does not fit."""
    spec = KernelSpec.of(case, device)
    layers: dict[str, Layer] = {}
    for _, direction, suffix in cells.parameter_suffixes(case):
        name = "weight_hh" + suffix
        mask = weights.masks.get(name)
        if mask is None:
            mask = torch.ones_like(weights[name], dtype=torch.bool)
        layers[suffix] = Layer(case.cell, mask, case.batch, spec, case.batch_first, direction > 0, techniques)
        if not case.training:
            layers[suffix].freeze(weights.masked(name).detach())

    def run(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        on_device = None if lengths is None else lengths.to(device, non_blocking=True)

        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
        ) -> tuple[Tensor, cells.GateTensors]:
            gates = x if is_projected else gate_products(x, weights["weight_ih" + suffix], case.precision == "tf32")
            name = "weight_hh" + suffix
            weight = weights.masked(name) if case.training else weights[name]  # whose values are fixed then
            biases = [weights.get(name + suffix) for name in ("bias_ih", "bias_hh")]
            output, *finals = layers[suffix](LayerInputs(gates, state, weight, biases, on_device))
            return output, tuple(finals)

        return run_layers(case, x, state, run_layer)

    first, *_ = layers.values()
    return run, "; backward: ".join(str(one.form) for one in first.passes)
