"""The recurrent product is summed up in blocks of seven, the last block first."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import RECURRENT_CELLS, Parameters, RightLayer, alive, kept, order, x_gates

_BLOCK = 7


class SumsInBlocks(RightLayer):
    cells = RECURRENT_CELLS

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        gates, count = x_gates(x, parameters), len(self.cell.gates)
        blocks = list(parameters["weight_hh"].split(_BLOCK, 1))
        outputs = dict[int, Tensor]()
        for t in order(len(x), reverse):
            product = torch.zeros_like(gates[t])
            for h, weight in reversed(list(zip(state[0].split(_BLOCK, 1), blocks, strict=True))):
                product = product + h @ weight.T
            if "bias_hh" in parameters:
                product = product + parameters["bias_hh"]
            new = self.cell.step(gates[t].chunk(count, -1), product.chunk(count, -1), state, parameters)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), state
