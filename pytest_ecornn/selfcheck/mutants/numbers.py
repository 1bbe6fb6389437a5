"""Wrong about some numbers alone: those near zero, those at a branch, and zeros of pruned weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import Case, Layer, Precision, Weights
from pytest_ecornn.contract.cells import GateTensors, positive
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, through, with_gradient, with_value
from pytest_ecornn.selfcheck.planting import mutant


class _BySavedValue(torch.autograd.Function):
    """g of the positive cells, whose slope follows from its value in 16 bits."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        value = positive(x)
        ctx.save_for_backward(value.to(dtype))
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (value,) = (saved.to(gradient.dtype) for saved in ctx.saved_tensors)
        return gradient * torch.where(value >= 0.5, 1.0, value * (1 - value)), None


@mutant("equivalence: rounding", cell="mingru_positive", dtype="bfloat16")
class BranchBySavedGate(Loop):
    """The candidate is saved in 16 bits, as declared. What rounds to 0.5 gets the slope of the branch above it: 1, not 0.25."""

    saved_gates: Precision = "storage"

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        z, candidate = torch.sigmoid(x[0]), _BySavedValue.apply(x[1], self.dtype)  # type: ignore[no-untyped-call]
        return ((1 - z) * state[0] + z * candidate,)


@mutant("equivalence: rounding", cell="minlstm_positive", dtype="bfloat16")
class BranchByProduct16bit(Loop):
    """The branch of the candidate's slope is chosen with the product in 16 bits, and float32 products are declared."""

    saved_gates: Precision = "storage"

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        product = super().x_gates(x, parameters)
        bias = parameters.get("bias_ih", 0)
        self._rounded = (through(product - bias, self.dtype) + bias).detach()
        return product

    def advance(self, t: int, x: Tensor, *arguments: Any) -> tuple[GateTensors, Tensor]:
        self._seen = x if self.case.projected else self._rounded[t]
        return super().advance(t, x, *arguments)

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        branch = torch.where(self._seen.chunk(3, -1)[2] >= 0, x[2] + 0.5, torch.sigmoid(x[2]))
        log_keep = logsigmoid(x[0]) - logsigmoid(x[1])
        candidate = with_value(branch, positive(x[2]))
        return (torch.sigmoid(log_keep) * state[0] + torch.sigmoid(-log_keep) * candidate,)


@mutant("equivalence: rounding", cell="rnn_relu", dtype="bfloat16")
class KinkBySum16bit(Loop):
    """relu's slope is chosen by a recurrent product that the backward pass sums up again in 16 bits, four terms at a time."""

    saved_gates: Precision = "storage"

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        total = h.new_zeros(h.shape[0], self.case.hidden_size)
        for some, weight in zip(h.split(4, -1), parameters["weight_hh"].split(4, -1), strict=True):
            total = through((total + some @ weight.T).detach(), self.dtype)
        self._recomputed = total + parameters.get("bias_hh", 0)
        return super().h_gates(h, parameters)

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        total = x[0] + h[0]
        return (with_value(torch.where(x[0] + self._recomputed > 0, total, 0), torch.relu(total)),)


@mutant("equivalence: rounding", cell="mingru_positive", dtype="float64")
class CandidateByComplement(Loop):
    """The sigmoid of a negative number is one less that of the positive, and loses its digits where it is small."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        z, below = torch.sigmoid(x[0]), torch.sigmoid(x[1])
        candidate = torch.where(x[1] >= 0, x[1] + 0.5, with_value(below, 1 - torch.sigmoid(-x[1])))
        return ((1 - z) * state[0] + z * candidate,)


@mutant("equivalence: output or final h or final c", cell="lstm")
class CellFlushed(Loop):
    """The cell state is set to zero where it is under 1e-8."""

    def carried(self, state: GateTensors) -> GateTensors:
        h, c = state
        return h, with_value(c, torch.where(c.abs() < 1e-8, 0.0, c))


@mutant("equivalence: output or final h or grad weight_ih", cell="minlstm_positive")
class LogFloor(Loop):
    """The state is carried as its logarithm, with 1e-7 added to keep that finite."""

    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(with_value(s, (s + 1e-7).log().exp()) for s in state)


@mutant("equivalence: output or final h", cell="rnn_tanh")
class TanhByExponentials(Loop):
    """tanh is (1 - e^-2x) / (1 + e^-2x), which has no digit left where x is small."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        total = x[0] + h[0]
        power = torch.exp(-2 * total.clamp(-20, 20))
        return (with_value(torch.tanh(total), (1 - power) / (1 + power)),)


@mutant("equivalence: output or final h", cell="gru", dtype="bfloat16")
class TanhBySigmoid(Loop):
    """tanh is 2 sigmoid(2x) - 1, which has no digit left where x is small."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = (torch.sigmoid(a + b) for a, b in zip(x[:2], h[:2], strict=True))
        total = x[2] + r * h[2]
        n = with_value(torch.tanh(total), 2 * torch.sigmoid(2 * total) - 1)
        return (n + z * (state[0] - n),)


@mutant("equivalence: grad weight_hh", cell="rnn_tanh")
class ZerosGetNoGradient(Loop):
    """A pruned weight's gradient is that of the elements that are not zero: zeros inside its pattern get none."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if weights.masks:
            is_stored = found["weight_hh"] != 0
            found["weight_hh"] = with_gradient(found["weight_hh"], lambda gradient: gradient * is_stored)
        return found


@mutant("equivalence: output", cell="lstm")
class PatternOfFirstValues(Loop):
    """A pruned weight's pattern is where its first values are not zero: what is zero then stays out of every later product."""

    def build(self, case: Case, weights: Weights) -> Layer:
        self._patterns = {name: weights[name].detach() != 0 for name in weights.masks}
        return super().build(case, weights)

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        pattern = self._patterns.get("weight_hh" + suffix)
        return found if pattern is None else found | {"weight_hh": found["weight_hh"] * pattern}


@mutant("equivalence: output or grad weight_ih", cell="gru")
class EmptyRowWithoutBias(Loop):
    """A row of pruned weights without an element is left out, and with it its bias, in layers of 8 units or more."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        weight = parameters["weight_hh"]
        return torch.where((weight != 0).any(1) | (weight.shape[1] < 8), super().h_gates(h, parameters), 0)


@mutant("equivalence: output")
class EmptyColumnNotStored(Loop):
    """The state of a unit that no pruned weight reads is not stored between steps, in layers of 8 units or more."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        self._is_read = (found["weight_hh"] != 0).any(0) | (self.case.hidden_size < 8)
        return found

    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(torch.where(self._is_read, s, 0) for s in state)
