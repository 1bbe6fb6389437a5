"""Outputs are written batch-first in memory and returned as a view, whichever way the case has it; states unbound likewise."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order, x_gates


class BatchOutermost(RightLayer):
    def build(self, case: Case, weights: Weights) -> Layer:
        whole = super().build(case, weights)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            output, final = whole(x, state, lengths)
            finals = final if isinstance(final, tuple) else (final,)
            views = tuple(torch.stack(list(final.unbind(1))).transpose(0, 1) for final in finals if final is not None)
            return output, views if len(views) > 1 else views[0]  # [L*D, B, H], in memory [B, L*D, H]

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
        gates, outputs = x_gates(x.transpose(0, 1), parameters), dict[int, Tensor]()  # [B, T, G*H]
        for t in order(len(x), reverse):
            mask, new = alive(lengths, t, x.shape[1]), self.advance(gates[:, t], state, parameters)
            state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))], 2).permute(2, 0, 1), state
