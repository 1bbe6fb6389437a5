"""LSTM, GRU and RNN with pruned recurrent weights by cuSPARSE: in every step a product of CSR and dense, and the cell by torch.

What a program gets that stores its pruned weights as torch's sparse CSR tensors: a baseline. Inference alone.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common.input_projection import gate_products, product_cost
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS
from pytest_ecornn.reference.precision import tf32_refusal


class CusparseGpu(Implementation):
    carry = "float32"
    products = "storage"
    deterministic = False  # cuSPARSE promises it of some of its algorithms alone, and torch picks one

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "cuSPARSE runs on a CUDA device"
        if case.cell not in NN_CELLS:
            return f"no {case.cell}: {', '.join(NN_CELLS)} only"
        if case.density == 1:
            return "runs pruned recurrent weights, of a density below 1"
        if case.training:
            return "runs inference alone: torch has no gradient of the non-zeros alone"
        return tf32_refusal(case)

    def build(self, case: Case, weights: Weights) -> Layer:
        cell, dtype = cells.get(case.cell), getattr(torch, case.dtype)
        compute = torch.promote_types(dtype, torch.float32)
        pruned = {name: _csr(weights.masked(name).detach()) for name in weights if name.startswith("weight_hh")}

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            on_device = None if lengths is None else lengths.to(x.device)

            def run_layer(
                suffix: str, x: Tensor, is_projected: bool, state: cells.GateTensors, reverse: bool
            ) -> tuple[Tensor, cells.GateTensors]:
                x = x.transpose(0, 1) if case.batch_first else x
                gates = (
                    x if is_projected else gate_products(x, weights["weight_ih" + suffix].detach(), case.precision == "tf32")
                )
                zero = x.new_zeros((), dtype=compute)
                found = [weights.get(name + suffix) for name in ("bias_ih", "bias_hh")]  # projected there is the second alone
                biases = [zero if one is None else one.detach().to(compute) for one in found]
                initial = state or (x.new_zeros(x.shape[1], case.hidden_size),) * len(cell.states)
                start = tuple(one.to(compute) for one in initial)
                output, final = _loop(cell, gates, pruned["weight_hh" + suffix], biases, start, on_device, reverse)
                return output.transpose(0, 1) if case.batch_first else output, final

            return run_layers(case, x, state, run_layer)

        return layer

    def cost(self, case: Case) -> Cost:
        """The input products, and in every step the non-zeros with their columns, the product and the states."""
        product, gates, size = product_cost(case), len(cells.get(case.cell).gates), getattr(torch, case.dtype).itemsize
        elements, values = max(1, round(case.density * gates * case.hidden_size**2)), case.batch * case.hidden_size
        steps = case.steps * case.layers * case.directions
        moved = steps * (elements * (size + 4) + values * size * (2 * gates + 2))
        return Cost(product.bytes + moved, product.operations + steps * 2 * case.batch * elements)


def _csr(weight: Tensor) -> Tensor:
    """Converts a weight to CSR with 32-bit indices, which take fewer bytes to read than 64-bit ones."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse (CSR tensor support is in beta|invariant checks are implicitly disabled)")
        found = weight.to_sparse_csr()
        rows, columns = (one.to(torch.int32) for one in (found.crow_indices(), found.col_indices()))
        return torch.sparse_csr_tensor(rows, columns, found.values(), found.shape)


def _loop(
    cell: cells.Cell,
    gates: Tensor,
    weight: Tensor,
    biases: list[Tensor],
    state: cells.GateTensors,
    lengths: Tensor | None,
    reverse: bool,
) -> tuple[Tensor, cells.GateTensors]:
    """gates [T, B, G*H], weight [G*H, H] in CSR, state [B, H] each -> output [T, B, H] and final states, of the gates' type."""
    count, dtype, compute, outputs = len(cell.gates), gates.dtype, state[0].dtype, []
    of_x, of_h = biases
    steps = list(enumerate((gates.to(compute) + of_x).unbind(0)))
    for t, x_t in reversed(steps) if reverse else steps:
        product = torch.sparse.mm(weight, state[0].to(dtype).T).T.to(compute)
        new = cell.step(x_t.chunk(count, -1), (product + of_h).chunk(count, -1), state, {})
        output = new[0]
        if lengths is not None:
            alive = (lengths > t).unsqueeze(-1)  # [B, 1]
            new = tuple(torch.where(alive, a, b) for a, b in zip(new, state, strict=True))
            output = torch.where(alive, output, 0)
        state = new
        outputs.append(output.to(dtype))
    return torch.stack(outputs[::-1] if reverse else outputs), tuple(one.to(dtype) for one in state)
