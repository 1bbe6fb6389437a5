"""Hidden and input sizes are rounded up to multiples of 16 with zeros; outputs are slices of what was computed.

Padded channels are set to zero after each step: a zero weight times an infinite input is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import RECURRENT_CELLS, Parameters, RightLayer, alive, kept, order

_MULTIPLE = 16


class PaddedChannels(RightLayer):
    cells = RECURRENT_CELLS
    refused = {"projected": True}

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        hidden, count, outputs = self.case.hidden_size, len(self.cell.gates), dict[int, Tensor]()
        wide = {name: self._widened(value) for name, value in parameters.items()}
        gates = linear(_padded(x), wide["weight_ih"], wide.get("bias_ih"))
        state = tuple(map(_padded, state))
        for t in order(len(x), reverse):
            h_gates = linear(state[0], wide["weight_hh"], wide.get("bias_hh"))
            computed = self.cell.step(gates[t].chunk(count, -1), h_gates.chunk(count, -1), state, wide)
            new = tuple(_padded(one[:, :hidden]) for one in computed)
            mask = alive(lengths, t, x.shape[1])
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        output = torch.stack([outputs[t] for t in range(len(x))])
        return output[..., :hidden], tuple(one[:, :hidden] for one in state)

    def _widened(self, parameter: Tensor) -> Tensor:
        """Each gate's rows by themselves."""
        blocks = parameter.unflatten(0, (-1, self.case.hidden_size))
        extra = -self.case.hidden_size % _MULTIPLE
        if parameter.ndim == 1:
            return pad(blocks, (0, extra)).flatten()
        return pad(blocks, (0, -parameter.shape[1] % _MULTIPLE, 0, extra)).flatten(0, 1)


def _padded(values: Tensor) -> Tensor:
    return pad(values, (0, -values.shape[-1] % _MULTIPLE))
