"""Rows of equal length: final h is a copy of the stored output's last step, through which autograd sums both gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class FinalIsLastOutput(RightLayer):
    refused = {"ragged": True, "bidirectional": True}

    def unsupported(self, case: Case, device: torch.device) -> str | None:
        return super().unsupported(case, device) or ("runs one layer" if case.layers > 1 else None)

    def build(self, case: Case, weights: Weights) -> Layer:
        whole = super().build(case, weights)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            output, final = whole(x, state, lengths)
            last = (output[:, -1:].transpose(0, 1) if case.batch_first else output[-1:]).clone()
            return output, (last, final[1]) if isinstance(final, tuple) else last

        return layer

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        gates, outputs = x_gates(x, parameters), list[Tensor]()
        for t in order(len(x), reverse):
            state = self.advance(gates[t], state, parameters)
            outputs.append(state[0])
        return torch.stack(outputs), state
