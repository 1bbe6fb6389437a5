"""LSTM, GRU and RNN whose recurrent weights stay on chip for the whole sequence: one launch for all steps.

After one product for the inputs of all steps a cluster of blocks takes some sequences through time; each block keeps the rows
of W_hh of its hidden units and hands the new states to the others through shared memory. So far the forward pass in 16 bits
on Hopper. Source: Diamos et al., Persistent RNNs, ICML 2016.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn import cells
from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, Weights
from pytest_ecornn.implementations._stack import run_layers
from pytest_ecornn.implementations.cuda.compile import indexed, refusal

_CELLS = ("rnn_tanh", "rnn_relu", "lstm", "gru")
_HOPPER = (9, 0)


class PersistentGpu(Implementation):
    carry = "float32"
    products = "storage"
    deterministic = True

    def __init__(self) -> None:
        self._notes = ""

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in _CELLS:
            return f"no {case.cell}: {', '.join(_CELLS)} only"
        if case.training:
            return "has no backward pass yet"
        if case.dtype not in ("bfloat16", "float16"):
            return f"runs bfloat16 and float16, not {case.dtype}"
        if largest := _too_large(case):
            return largest
        if reason := refusal(device):
            return reason
        if (found := torch.cuda.get_device_capability(device)) != _HOPPER:
            return f"runs on compute capability 9.0, not {found[0]}.{found[1]}"
        return _misfit(case, device)

    def build(self, case: Case, weights: Weights) -> Layer:
        from pytest_ecornn.implementations._persistent_op import Shape, plan

        device = indexed(case.device)
        shape = Shape(case.cell, case.steps, case.batch, case.hidden_size, case.batch_first)
        self._notes = str(plan(shape, getattr(torch, case.dtype), device)[0])
        return make_layer(case, {name: weights.masked(name).detach() for name in weights}, device)

    def cost(self, case: Case) -> Cost:
        """The inputs' product, and of each layer its recurrent weights once, its product and its output."""
        from pytest_ecornn.implementations._gate_product import product_cost

        product, gates, hidden = product_cost(case), len(cells.get(case.cell).gates), case.hidden_size
        tracks, rows = case.layers * case.directions, case.steps * case.batch
        moved = tracks * (gates * hidden**2 + rows * (gates + 1) * hidden) * getattr(torch, case.dtype).itemsize
        return Cost(product.bytes + moved, product.operations + 2 * tracks * rows * gates * hidden**2)

    def notes(self) -> str:
        return self._notes


def _too_large(case: Case) -> str | None:
    largest = max(case.steps, len(cells.get(case.cell).gates) * case.batch * case.hidden_size)
    return f"T and G * B * H must be below 2^30, got {largest}" if largest >= 2**30 else None


def _misfit(case: Case, device: torch.device) -> str | None:
    from pytest_ecornn.implementations._persistent_form import Device, choose

    found = choose(case.cell, case.hidden_size, case.batch, Device.of(device))
    return found if isinstance(found, str) else None


def make_layer(case: Case, weights: dict[str, Tensor], device: torch.device) -> Layer:
    """All layers and directions of the case on `device`, one after the other; weights by torch.nn's names."""
    from pytest_ecornn.implementations._gate_product import gate_products
    from pytest_ecornn.implementations._persistent_op import run

    def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        on_device = None if lengths is None else lengths.to(device, non_blocking=True)

        def run_layer(
            suffix: str, x: Tensor, is_projected: bool, state: cells.Blocks, reverse: bool
        ) -> tuple[Tensor, cells.Blocks]:
            gates = x if is_projected else gate_products(x, weights["weight_ih" + suffix], False)
            biases = [weights.get(name + suffix) for name in ("bias_ih", "bias_hh")]
            how = (case.cell, case.batch_first, reverse)
            output, *final = run(gates, weights["weight_hh" + suffix], biases[0], biases[1], state, on_device, *how)
            return output, tuple(final)

        with torch.no_grad(), torch.cuda.device(device):
            return run_layers(case, x, state, run_layer)

    return layer
