"""torch.nn's RNNCell, LSTMCell and GRUCell in a Python loop over time: what is written where each step needs the one before.

A policy that acts on its own outputs and a decoder that is fed its last word are such loops. Source: torch.nn.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, SupportedCases, Weights, cells
from pytest_ecornn.contract.layer_stack import run_layers
from pytest_ecornn.implementations._common import torch_nn
from pytest_ecornn.implementations._common.recurrent_problem import NN_CELLS, PARAMETERS

_CELLS = {"rnn_tanh": nn.RNNCell, "rnn_relu": nn.RNNCell, "lstm": nn.LSTMCell, "gru": nn.GRUCell}


class TorchCellLoop(Implementation):
    carry = "storage"
    deterministic = True
    supported = SupportedCases(
        NN_CELLS, dtypes=("float32", "float64"), precisions=("ieee",), devices=("cpu",), projected=False
    )  # in 16 bits torch computes gates in 16 bits

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return torch_nn.skip_reason(case)

    def build(self, case: Case, weights: Weights) -> Layer:
        modules = {suffix: make_cell(case, weights, suffix) for _, _, suffix in cells.parameter_suffixes(case)}

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            return run_layers(case, x, state, partial(_run_layer, case, modules, lengths))

        return layer

    def cost(self, case: Case) -> Cost:
        return torch_nn.cost(case)


def make_cell(case: Case, weights: Weights, suffix: str) -> nn.RNNCellBase:
    """A cell whose parameters are the ones given, so that updates in place are seen."""
    extra = {"nonlinearity": case.cell.removeprefix("rnn_")} if case.cell.startswith("rnn") else {}
    inputs = weights["weight_ih" + suffix].shape[1]
    # Built on "meta", so that no random numbers are drawn for weights that are replaced.
    module: nn.RNNCellBase = _CELLS[case.cell](inputs, case.hidden_size, case.bias, device="meta", **extra)
    for name in PARAMETERS if case.bias else PARAMETERS[:2]:
        setattr(module, name, weights[name + suffix])
    return module


def _run_layer(
    case: Case, modules: dict[str, nn.RNNCellBase], lengths: Tensor | None, suffix: str, x: Tensor, is_projected: bool,
    state: cells.GateTensors, reverse: bool,
) -> tuple[Tensor, cells.GateTensors]:  # fmt: skip
    """One layer in one direction: x [T, B, I] or [B, T, I] -> output alike, final states [B, H]."""
    module, has_c, time = modules[suffix], case.cell == "lstm", 1 if case.batch_first else 0
    states = state or (x.new_zeros(case.batch, case.hidden_size),) * (1 + has_c)
    steps, outputs = list(enumerate(x.unbind(time))), list[Tensor]()
    for t, x_t in reversed(steps) if reverse else steps:
        results: cells.GateTensors = module(x_t, states) if has_c else (module(x_t, states[0]),)
        output = results[0]
        if lengths is not None:
            is_step = (lengths > t)[:, None]
            results = tuple(torch.where(is_step, new, old) for new, old in zip(results, states, strict=True))
            output = torch.where(is_step, output, 0)
        states = results
        outputs.append(output)
    return torch.stack(outputs[::-1] if reverse else outputs, time), states
