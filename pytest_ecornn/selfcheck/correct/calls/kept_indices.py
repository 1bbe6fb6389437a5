"""Index tensors are made at a length's first call and kept: what depends on lengths alone is no value of x or of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, order, x_gates


class KeptIndices(RightLayer):
    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], list[Tensor]] = {}

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        ends = [len(x)] * x.shape[1] if lengths is None else lengths.tolist()
        rows = self._rows(tuple(ends), len(x))
        gates, outputs = x_gates(x, parameters), list[Tensor]()
        for t in order(len(x), reverse):
            new = self.advance(gates[t, rows[t]], tuple(one[rows[t]] for one in state), parameters)
            state = tuple(one.index_copy(0, rows[t], part) for one, part in zip(state, new, strict=True))
            outputs.append(torch.zeros_like(state[0]).index_copy(0, rows[t], new[0]))
        return torch.stack(outputs[::-1] if reverse else outputs), state

    def _rows(self, ends: tuple[int, ...], steps: int) -> list[Tensor]:
        """Indices of the sequences that have each step, a tensor a step."""
        if ends not in self._kept:
            self._kept[ends] = [
                torch.tensor([b for b, end in enumerate(ends) if end > t], dtype=torch.int64) for t in range(steps)
            ]
        return self._kept[ends]
