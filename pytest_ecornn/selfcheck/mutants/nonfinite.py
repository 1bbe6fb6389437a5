"""Infinities and NaN that appear, vanish or spread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, PackedLoop, Parameters, with_value
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: non-finite", cell="minlstm")
class GatesUnderflow(Loop):
    """Both gates underflow to zero, and their quotient is NaN."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        (keep,) = super().step(x, h, state, parameters)
        f, i = torch.sigmoid(x[0]), torch.sigmoid(x[1])
        return (torch.where(f + i == 0, (f + i).detach() / (f + i).detach(), keep),)


@mutant("equivalence: non-finite", cell="rnn_relu")
class InfiniteInputMadeFinite(AroundLoop):
    """Infinities in x become the largest finite numbers, as nan_to_num makes them; NaN stays."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        largest = torch.finfo(x.dtype).max
        return layer(x.clamp(-largest, largest), *arguments)


@mutant("equivalence: non-finite", cell="rnn_relu")
class InfiniteWeightSplit(Loop):
    """W_ih is split in a 16-bit part and the rest, and the rest of an infinity is NaN."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        weight = parameters["weight_ih"]
        large = weight.to(torch.bfloat16).to(weight.dtype)
        return linear(x, large, parameters.get("bias_ih")) + linear(x, weight - large)


@mutant("equivalence: non-finite", cell="mingru")
class InfinityClipped(Loop):
    """The state is clipped to the largest finite number."""

    def carried(self, state: GateTensors) -> GateTensors:
        largest = torch.finfo(self.compute).max
        return tuple(s.clamp(-largest, largest) for s in state)

    def first_state(self, x: torch.Tensor, given: GateTensors) -> GateTensors:
        return self.carried(super().first_state(x, given))


@mutant("equivalence: non-finite", cell="rnn_relu")
class MaximumSwallowsNan(Loop):
    """relu is a maximum that returns the number where the other is NaN."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        total = x[0] + h[0]
        return (torch.where(total > 0, total, 0),)


@mutant("equivalence: non-finite", cell="gru")
class NanOfTheStateSwallowed(Loop):
    """An initial state is held between -4 and 4 by comparisons, which are false of NaN."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return tuple(torch.where(s.abs() >= 0, s, 0.0) for s in super().first_state(x, given))


@mutant("equivalence: non-finite", cell="gru")
class NanSpreads(Loop):
    """NaN in one sequence spreads to the others of its batch."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        gates = super().x_gates(x, parameters)
        return gates + 0 * gates.sum(1, keepdim=True)


@mutant("equivalence: non-finite")
class NanSwallowed(AroundLoop):
    """NaN in x is taken as zero."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        return layer(torch.where(x.isnan(), 0, x), *arguments)


def _nonzero(weight: Tensor) -> Tensor:
    return torch.where(weight.abs() > 0, weight, 0.0)


@mutant("equivalence: non-finite")
class NanWeightSkipped(Loop):
    """Weights that are no larger than zero either way are skipped, as of a sparse matrix, and NaN is not larger."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        return {name: with_value(weight, _nonzero(weight)) for name, weight in super().parameters(weights, suffix).items()}


@mutant("equivalence: non-finite", cell="mingru")
class NegativeInfinityClipped(Loop):
    """The state is kept above the lowest finite number; what is over the largest passes."""

    def carried(self, state: GateTensors) -> GateTensors:
        return tuple(s.clamp(min=torch.finfo(self.compute).min) for s in state)

    def first_state(self, x: torch.Tensor, given: GateTensors) -> GateTensors:
        return self.carried(super().first_state(x, given))


@mutant("equivalence: non-finite", cell="mingru")
class ResetMultiplies(PackedLoop):
    """A reset multiplies the state by 0, which a NaN or an infinity survives as NaN."""

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return tuple(s * (~resets[t]).to(s.dtype)[:, None] for s in state)


@mutant("equivalence: non-finite", cell="rnn_tanh")
class TanhOverflows(Loop):
    """tanh is a quotient of exponentials, which overflow to NaN."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        total = x[0] + h[0]
        grown = torch.exp(2 * total.detach())
        wrong = torch.where(grown.isinf(), grown / grown, torch.tanh(total))
        return (with_value(torch.tanh(total), wrong),)
