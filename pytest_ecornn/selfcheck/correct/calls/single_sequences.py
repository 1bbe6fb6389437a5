"""Each sequence runs alone, over its own steps only, cut where it is reset."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class SingleSequences(RightLayer):
    takes_resets = True

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        outputs, finals = list[Tensor](), list[GateTensors]()
        for b in range(x.shape[1]):
            length = len(x) if lengths is None else int(lengths[b])
            starts = set() if resets is None else {t for t in range(length) if resets[t, b]}
            output, final = self._sequence(
                x[:length, b : b + 1], tuple(s[b : b + 1] for s in state), parameters, starts, reverse
            )
            outputs.append(pad(output, (0, 0, 0, 0, 0, len(x) - length)))
            finals.append(final)
        return torch.cat(outputs, 1), tuple(torch.cat(one) for one in zip(*finals, strict=True))

    def _sequence(
        self, x: Tensor, state: GateTensors, parameters: Parameters, starts: set[int], reverse: bool
    ) -> tuple[Tensor, GateTensors]:
        outputs, gates = list[Tensor](), x_gates(x, parameters)
        for t in order(len(x), reverse):
            state = self.advance(gates[t], self.zeros(x) if t in starts else state, parameters)
            outputs.append(state[0])
        return torch.stack(outputs[::-1] if reverse else outputs), state
