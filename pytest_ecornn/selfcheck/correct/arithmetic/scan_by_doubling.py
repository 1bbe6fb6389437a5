"""minGRU and minLSTM by Hillis and Steele's scan: in as many passes as T has binary digits, each over all steps.

The gradient is a scan in the other direction.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import logsigmoid, pad

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck.correct._right import Parameters, RightLayer, x_gates


class ScanByDoubling(RightLayer):
    cells = ("mingru", "mingru_positive", "minlstm", "minlstm_positive")
    refuses_infinities = True  # 0 times infinity, where a product of what is kept underflows

    def run(
        self,
        x: Tensor,
        state: GateTensors,
        parameters: Parameters,
        lengths: Tensor | None,
        resets: Tensor | None,
        reverse: bool,
    ) -> tuple[Tensor, GateTensors]:
        *gates, candidate = x_gates(x, parameters).chunk(len(self.cell.gates), -1)
        take = gates[0] if len(gates) == 1 else logsigmoid(gates[1]) - logsigmoid(gates[0])
        if self.case.cell.endswith("positive"):
            candidate = torch.where(candidate < 0, candidate.sigmoid(), candidate + 0.5)
        decay, add = torch.sigmoid(-take), torch.sigmoid(take) * candidate
        mask = None
        if lengths is not None:  # a step of padding keeps all and adds nothing
            mask = (torch.arange(len(x))[:, None] < lengths)[..., None]
            decay, add = torch.where(mask, decay, 1.0), torch.where(mask, add, 0.0)
        if reverse:
            decay, add = decay.flip(0), add.flip(0)
        states: Tensor = _Scan.apply(decay, add, state[0])  # type: ignore[no-untyped-call]
        output = states.flip(0) if reverse else states
        return output if mask is None else torch.where(mask, output, 0.0), (states[-1],)


def _scan(decay: Tensor, add: Tensor) -> Tensor:
    """h of h[t] = keep[t] h[t - 1] + add[t], from zeros."""
    distance = 1
    while distance < len(add):
        add = add + decay * _later(add, distance)
        decay = decay * _later(decay, distance, 1.0)
        distance *= 2
    return add


def _later(values: Tensor, steps: int, filled: float = 0.0) -> Tensor:
    return pad(values[:-steps], (0, 0, 0, 0, steps, 0), value=filled)


class _Scan(Function):
    @staticmethod
    def forward(ctx: Any, keep: Tensor, add: Tensor, first: Tensor) -> Tensor:
        states = _scan(keep, torch.cat([add[:1] + keep[:1] * first, add[1:]]))
        ctx.save_for_backward(keep, torch.cat([first[None], states[:-1]]))
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        decay, before = ctx.saved_tensors
        d_add = _scan(_later(decay.flip(0), 1), gradient.flip(0)).flip(0)
        return d_add * before, d_add, d_add[0] * decay[0]
