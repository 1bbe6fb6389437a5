"""torch.nn.RNN, LSTM and GRU on a CPU: what most programs run, and the baseline where it exists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ecornn import cells
from pytest_ecornn.contract import Case, Cost, Implementation, Layer, State, Weights

_MODULES = {"rnn_tanh": nn.RNN, "rnn_relu": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


class TorchCpu(Implementation):
    carry = "storage"
    deterministic = True

    def __init__(self) -> None:
        self._library = ""

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        if case.cell not in _MODULES:
            return f"torch.nn has no {case.cell}"
        if device.type != "cpu":
            return "torch_cpu runs on a CPU"
        if case.precision != "ieee":
            return "TF32 is a GPU's precision"
        if case.projected:
            return "torch.nn makes the input product itself and cannot be given its result"
        if case.density < 1 and case.training:
            return "torch.nn computes dense gradients of sparse recurrent weights"
        return _no_16_bit(case)

    def build(self, case: Case, weights: Weights) -> Layer:
        module = _module(case, weights)
        self._library = _library(case, module)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            if lengths is None:
                output, final = module(x, state)
                return output, final
            packed = pack_padded_sequence(x, lengths, case.batch_first, enforce_sorted=False)
            output, final = module(packed, state)
            padded, _ = pad_packed_sequence(output, case.batch_first, total_length=case.steps)
            return padded, final

        return layer

    def cost(self, case: Case) -> Cost:
        """The floor's, plus the gate pre-activations of every layer, written by one product and read by the steps."""
        floor, cell = cells.floor_cost(case), cells.get(case.cell)
        size = torch.empty((), dtype=getattr(torch, case.dtype)).element_size()
        gates = case.steps * case.batch * case.layers * case.directions * len(cell.gates) * case.hidden_size
        return Cost(floor.bytes + 2 * gates * size * (2 if case.training else 1), floor.operations)

    def notes(self) -> str:
        return self._library


def _no_16_bit(case: Case) -> str | None:
    """What torch.nn keeps of a step in 16 bits is too coarse: sums and gates in ATen, saved gates (1 - f) in oneDNN."""
    if case.dtype == "float16" or (case.dtype == "bfloat16" and (case.cell != "lstm" or case.ragged)):
        return f"torch.nn computes gates in {case.dtype} on a CPU"
    if case.dtype == "bfloat16" and case.training:
        return "oneDNN's LSTM saves its gates for the backward pass in bfloat16"
    return None


def _module(case: Case, weights: Weights) -> nn.RNNBase:
    """A module of torch.nn that has adopted the weights, so that updates in place are seen."""
    extra = {"nonlinearity": case.cell.removeprefix("rnn_")} if case.cell.startswith("rnn") else {}
    module: nn.RNNBase = _MODULES[case.cell](
        case.input_size, case.hidden_size, case.layers, bias=case.bias, batch_first=case.batch_first,
        bidirectional=case.bidirectional, dtype=getattr(torch, case.dtype), **extra,
    )  # fmt: skip
    for name, parameter in weights.items():
        setattr(module, name, parameter)
    return module


class _Operators(TorchDispatchMode):
    """Records the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def _library(case: Case, module: nn.RNNBase) -> str:
    """Which library torch takes for such a case, seen on two steps of zeros: it depends on dtype, machine and packing."""
    steps = min(case.steps, 2)
    x: Any = torch.zeros(steps, case.batch, case.input_size, dtype=getattr(torch, case.dtype))
    x = x.transpose(0, 1) if case.batch_first else x
    if case.ragged:
        lengths = torch.tensor([steps] + [1] * (case.batch - 1))
        x = pack_padded_sequence(x, lengths, case.batch_first)
    with _Operators() as operators, torch.set_grad_enabled(case.training):
        module(x)
    return "oneDNN" if any("mkldnn_rnn" in name for name in operators.names) else "ATen"
