"""The state crosses steps in the storage type, as is declared; sums are float32."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order, x_gates


class StorageCarry(RightLayer):
    carry = "storage"

    def build(self, case: Case, weights: Weights) -> Layer:
        self._storage: torch.dtype = getattr(torch, case.dtype)
        return super().build(case, weights)

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
        stored = tuple(one.to(self._storage) for one in state)
        for t in order(len(x), reverse):
            mask = alive(lengths, t, x.shape[1])
            new = tuple(
                one.to(self._storage) for one in self.advance(gates[t], tuple(one.to(x.dtype) for one in stored), parameters)
            )
            stored, outputs[t] = kept(mask, new, stored), torch.where(mask, new[0], 0.0)
        return torch.stack([outputs[t] for t in range(len(x))]), stored
