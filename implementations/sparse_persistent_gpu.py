"""LSTM, GRU and RNN with pruned recurrent weights, whose non-zeros stay on chip for the whole sequence, in one launch.

After one product for the inputs of all steps the blocks of a grid take the sequences through time. Each owns some hidden units,
and keeps the non-zeros of their rows of W_hh in its registers and shared memory; new states carry their own timestamps from
block to block. Backward each keeps those of W_hh^T. Source: Zhu et al., Sparse Persistent RNNs, ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pytest_ecornn import cells
from pytest_ecornn.contract import Case, Cost, Implementation, State, Weights
from pytest_ecornn.contract import Layer as ContractLayer
from pytest_ecornn.implementations._gate_product import gate_products, product_cost
from pytest_ecornn.implementations._persistent_kernel import Kind
from pytest_ecornn.implementations._persistent_problem import GATES, PARAMETERS, Device
from pytest_ecornn.implementations._precision import tf32_refusal
from pytest_ecornn.implementations._sparse_form import ALL, Techniques, choose, expected_counts
from pytest_ecornn.implementations._sparse_layer import Given, Layer
from pytest_ecornn.implementations.cuda.compile import indexed, refusal
from pytest_ecornn.implementations.cuda.rows import too_large


class SparsePersistentGpu(Implementation):
    carry = "float32"
    gate_gradients = "storage"
    saved_gates = "storage"
    products = "storage"
    deterministic = True

    def __init__(self) -> None:
        self._notes = ""

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in GATES:
            return f"no {case.cell}: {', '.join(GATES)} only"
        if case.density == 1:
            return "runs pruned recurrent weights, of a density below 1"
        if case.dtype not in ("bfloat16", "float16", "float32"):
            return f"runs bfloat16, float16 and float32, not {case.dtype}"
        if reason := tf32_refusal(case) or too_large(case) or refusal(device):
            return reason
        return _misfit(case, device)

    def build(self, case: Case, weights: Weights) -> ContractLayer:
        layer, self._notes = make_layer(case, weights, indexed(case.device))
        return layer

    def cost(self, case: Case) -> Cost:
        """The inputs' products, and of each layer its non-zeros, their product and output; what is kept, and gradients."""
        product, gates, hidden = product_cost(case), GATES[case.cell], case.hidden_size
        size, tracks, rows = getattr(torch, case.dtype).itemsize, case.layers * case.directions, case.steps * case.batch
        elements = round(case.density * gates * hidden**2)
        kept = {4: 6, 3: 4, 1: 0}[gates]  # values a unit and step; of LSTM c is one of 4 bytes
        values = 3 * gates + 2 * kept + 4 + (case.cell == "gru") if case.training else gates + 1
        passes = 2 if case.training else 1
        moved = tracks * (passes * elements * (size + 2) + rows * values * hidden * size)
        operations = passes * 2 * tracks * rows * elements
        if case.training:  # W_hh's gradient, of which the non-zeros are kept
            moved, operations = moved + tracks * gates * hidden**2 * size, operations + 2 * tracks * rows * gates * hidden**2
        return Cost(product.bytes + moved, product.operations + operations)

    def notes(self) -> str:
        return self._notes


def _misfit(case: Case, device: torch.device) -> str | None:
    """Asked of a random pattern of the case's density: another may still not fit."""
    kind = Kind(getattr(torch, case.dtype), device)
    for one in (kind, kind.backward)[: 1 + case.training]:
        problem = one.problem(case.cell, case.hidden_size, case.batch)
        found = choose(problem, expected_counts(problem, case.density), Device.of(device))
        if isinstance(found, str):
            return f"{found}{' backward' * one.is_backward}"
    return None


def make_layer(case: Case, weights: Weights, device: torch.device, techniques: Techniques = ALL) -> tuple[ContractLayer, str]:
    """All layers and directions of the case on `device`, and what they run. Raises Unsupported where a pattern does not fit."""
    kind = Kind(getattr(torch, case.dtype), device, case.precision == "tf32", keeps=case.training, lengths=case.ragged)
    parameters: list[list[Callable[[], Tensor] | None]] = []
    layers: list[Layer] = []
    for _, direction, suffix in cells.suffixes(case):
        names = [name + suffix for name in PARAMETERS]
        parameters.append([_reader(weights, name) if name in weights else None for name in names])
        mask = weights.masks.get(names[1])
        if mask is None:
            mask = torch.ones_like(weights[names[1]], dtype=torch.bool)
        layers.append(Layer(case.cell, mask, case.batch, kind, case.batch_first, direction > 0, techniques))
        if not case.training:
            layers[-1].fix(weights.masked(names[1]).detach())

    def run(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        states = cells.unpack_state(state)
        on_device = None if lengths is None else lengths.to(device, non_blocking=True)
        finals: list[list[Tensor]] = []
        for first in range(0, len(layers), case.directions):
            tracks = range(first, first + case.directions)
            found = []
            for track in tracks:
                weight_ih, weight_hh, *biases = [one and one() for one in parameters[track]]
                assert weight_hh is not None
                gates = _gates(case, x, weight_ih, track)
                found.append(layers[track](Given(gates, [one[track] for one in states], weight_hh, biases, on_device)))
            x = torch.cat([one[0] for one in found], 2) if len(found) > 1 else found[0][0]
            finals += [one[1:] for one in found]
        final = tuple(torch.stack(one) for one in zip(*finals, strict=True))
        return x, final if len(final) > 1 else final[0]

    return run, "; backward: ".join(str(one.form) for one in layers[0].passes)


def _reader(weights: Weights, name: str) -> Callable[[], Tensor]:
    return lambda: weights.masked(name)


def _gates(case: Case, x: Tensor, weight_ih: Tensor | None, track: int) -> Tensor:
    if weight_ih is None:
        wide = GATES[case.cell] * case.hidden_size
        return x.narrow(2, track % case.directions * wide, wide)
    return gate_products(x, weight_ih, case.precision == "tf32")
