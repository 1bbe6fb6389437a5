"""torch.nn.RNN, LSTM and GRU on any device: what they refuse, a module with the given weights, its layer and its cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from pytest_ecornn.contract import Case, Cost, Layer, State, cells
from pytest_ecornn.system.dispatch import DispatchMode

_MODULES = {"rnn_tanh": nn.RNN, "rnn_relu": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def skip_reason(case: Case) -> str | None:
    """Why torch.nn will not run the case on any device, or None."""
    if case.cell not in _MODULES:
        return f"torch.nn has no {case.cell}"
    if case.projected:
        return "torch.nn makes the input product itself and cannot be given its result"
    if case.density < 1 and case.training:
        return "torch.nn computes dense gradients of sparse recurrent weights"
    return None


def build_module(case: Case, weights: Mapping[str, nn.Parameter]) -> nn.RNNBase:
    """A module of torch.nn whose parameters are the ones given, so that updates in place are seen."""
    extra = {"nonlinearity": case.cell.removeprefix("rnn_")} if case.cell.startswith("rnn") else {}
    # Built on "meta", so that no random numbers are drawn for weights that are replaced.
    module: nn.RNNBase = _MODULES[case.cell](
        case.input_size, case.hidden_size, case.layers, bias=case.bias, batch_first=case.batch_first,
        bidirectional=case.bidirectional, dtype=getattr(torch, case.dtype), device="meta", **extra,
    )  # fmt: skip
    for name, parameter in weights.items():
        setattr(module, name, parameter)
    return module


def make_layer(case: Case, module: nn.RNNBase) -> Layer:
    """The module as a layer: sequences with lengths are packed, and their outputs padded with zeros."""

    def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        if lengths is None:
            output, final = module(x, state)
            return output, final
        packed = pack_padded_sequence(x, lengths, case.batch_first, enforce_sorted=False)
        output, final = module(packed, state)
        padded, _ = pad_packed_sequence(output, case.batch_first, total_length=case.steps)
        return padded, final

    return layer


def cost(case: Case) -> Cost:
    """The floor's cost, plus the gate pre-activations of every layer, written by one product and read by the steps."""
    floor, cell = cells.minimum_cost(case), cells.get(case.cell)
    size = torch.empty((), dtype=getattr(torch, case.dtype)).element_size()
    gates = case.steps * case.batch * case.layers * case.directions * len(cell.gates) * case.hidden_size
    return Cost(floor.bytes + 2 * gates * size * (2 if case.training else 1), floor.operations)


class OperatorRecorder(DispatchMode):
    """Records the names of the operators that run, which show the library that torch uses."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def probe(case: Case, module: nn.RNNBase, most_steps: int) -> Tensor:
    """The module's output for the case's first `most_steps` steps at most, with zeros in x; packed where the case is ragged."""
    steps = min(case.steps, most_steps)
    x: Any = torch.zeros(steps, case.batch, case.input_size, dtype=getattr(torch, case.dtype), device=case.device)
    x = x.transpose(0, 1) if case.batch_first else x
    if case.ragged:
        x = pack_padded_sequence(x, torch.tensor([steps] + [1] * (case.batch - 1)), case.batch_first)
    with torch.set_grad_enabled(case.training):
        output, _ = module(x)
    return output.data if isinstance(output, PackedSequence) else output
