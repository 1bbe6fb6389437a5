"""Each call sleeps before it works."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order, x_gates

_SECONDS = 0.01


class VerySlow(RightLayer):
    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        time.sleep(_SECONDS)
        outputs = dict[int, Tensor]()
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(x_gates(x[t], parameters), state, parameters)
            state, outputs[t] = kept(mask, new, state), new[0].where(mask, torch.zeros(()))
        return torch.stack([outputs[t] for t in range(len(x))]), state
