"""The candidate's recurrent bias gets a gradient in which the reset gate has no part."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters, with_value

CAUGHT_BY = "equivalence: grad bias_hh"
CELL = "gru"


class Fault(Loop):
    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
        n = torch.tanh(x[2] + r * (h[2] - self._bias(parameters).detach()) + self._through(parameters, r))
        return (n + z * (state[0] - n),)

    def _bias(self, parameters: Parameters) -> Tensor:
        none = parameters["weight_hh"].new_zeros(3 * self.case.hidden_size)
        return parameters.get("bias_hh", none).chunk(3)[2]

    def _through(self, parameters: Parameters, r: Tensor) -> Tensor:
        """r times the bias; the bias gets the gradient whole on top of its own."""
        bias = self._bias(parameters)
        return with_value(r * bias.detach() + bias, r * bias.detach())
