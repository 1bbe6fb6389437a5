"""Wrong equations of the gates."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import hardsigmoid, leaky_relu, linear

from pytest_ecornn.contract import cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: output", cell="rnn_tanh")
class BiasTwice(Loop):
    """The input's bias is added twice."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        return super().x_gates(x, parameters) + parameters.get("bias_ih", 0)


@mutant("equivalence: output", cell="mingru_positive")
class CandidateNotPositive(Loop):
    """The candidate is taken as it is, without the positive g."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return cells.get("mingru").step(x, h, state, parameters)


@mutant("equivalence: output")
class ForgetBiasAdded(Loop):
    """One is added to the forget gate, as some frameworks do."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return super().step((x[0], x[1] + 1, x[2], x[3]), h, state, parameters)


@mutant("equivalence: output", cell="gru")
class HardSigmoid(Loop):
    """The update gate is a piecewise linear sigmoid."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), hardsigmoid(x[1] + h[1])
        n = torch.tanh(x[2] + r * h[2])
        return (n + z * (state[0] - n),)


@mutant("equivalence: output", cell="rnn_relu")
class LeakyRelu(Loop):
    """relu lets a hundredth of what is negative through."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return (leaky_relu(x[0] + h[0], 0.01),)


@mutant("equivalence: output", cell="minlstm")
class NotNormalised(Loop):
    """The forget and input gates are not divided by their sum."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return (torch.sigmoid(x[0]) * state[0] + torch.sigmoid(x[1]) * x[2],)


@mutant("equivalence: output")
class OutputWithoutTanh(Loop):
    """The cell state reaches the output without its tanh."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        _, c = super().step(x, h, state, parameters)
        return torch.sigmoid(x[3] + h[3]) * c, c


@mutant("equivalence: output")
class RecurrentBiasIgnored(Loop):
    """The bias of the recurrent product is left out."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        return h @ parameters["weight_hh"].T


@mutant("equivalence: output", cell="gru")
class ResetBeforeProduct(Loop):
    """The reset gate is applied to the state before the product, as in the GRU's first paper, not to the product."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
        weight, bias = (parameters[n].chunk(3)[2] if n in parameters else None for n in ("weight_hh", "bias_hh"))
        assert weight is not None
        n = torch.tanh(x[2] + linear(r * state[0], weight, bias))
        return (n + z * (state[0] - n),)


@mutant("equivalence: output", cell="gru")
class ResetWithoutBias(Loop):
    """The reset gate is applied to the product, but not to the bias that was added to it."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
        bias = parameters["bias_hh"].chunk(3)[2] if "bias_hh" in parameters else 0
        n = torch.tanh(x[2] + r * (h[2] - bias) + bias)
        return (n + z * (state[0] - n),)


@mutant("equivalence: output")
class Swapped(Loop):
    """The input gate and the forget gate are swapped."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        order = (1, 0, 2, 3)
        return super().step(tuple(x[k] for k in order), tuple(h[k] for k in order), state, parameters)


@mutant("equivalence: output", cell="gru")
class UpdateInverted(Loop):
    """The update gate keeps the new value where it should keep the old."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
        n = torch.tanh(x[2] + r * h[2])
        return (state[0] + z * (n - state[0]),)


@mutant("equivalence: output")
class WrongActivation(Loop):
    """The candidate goes through a sigmoid in place of tanh."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        i, f, g, o = (torch.sigmoid(a + b) for a, b in zip(x, h, strict=True))
        c = f * state[1] + i * g
        return o * torch.tanh(c), c
