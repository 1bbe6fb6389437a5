"""Nothing but the state of every fourth step is saved for the backward pass, which computes the rest again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, alive, kept, order, x_gates

_STEPS = 4


class RecomputedBackward(RightLayer):
    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        def some(first: int, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            gates, outputs = x_gates(x, parameters), dict[int, Tensor]()
            for t in order(len(x), reverse):
                mask = alive(lengths, first + t, x.shape[1])
                new = self.advance(gates[t], state, parameters)
                state, outputs[t] = kept(mask, new, state), torch.where(mask, new[0], 0.0)
            return torch.stack([outputs[t] for t in range(len(x))]), *state

        parts = dict[int, Tensor]()
        for first in range(0, len(x), _STEPS)[:: -1 if reverse else 1]:
            done: Any = checkpoint(some, first, x[first : first + _STEPS], *state, use_reentrant=False)
            parts[first], state = done[0], tuple(done[1:])
        return torch.cat([parts[first] for first in sorted(parts)]), state
