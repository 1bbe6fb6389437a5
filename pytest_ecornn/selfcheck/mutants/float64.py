"""Parts of a float64 layer that pass through float32."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, Parameters, with_value
from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: rounding", dtype="float64")
class BiasByFloat32(Loop):
    """The biases are added in float32 once, as the layer's one bias, and that is widened."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {name: one.float().to(one.dtype) if name.startswith("bias") else one for name, one in found.items()}


@mutant("equivalence: rounding", dtype="float64")
class FinalByFloat32(AroundLoop):
    """Final states are stored in a buffer of float32; the output is not."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        return output, tuple(one.float().to(one.dtype) for one in cells.unpack_state(final))


@mutant("equivalence: rounding", cell="gru", dtype="float64")
class IncomingGradientByFloat32(Recomputed):
    """Incoming gradients pass through a buffer of float32; the rest of the backward pass is in float64."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.float().to(one.dtype) for one in gradients)


@mutant("equivalence: rounding", cell="mingru", dtype="float64")
class StateByFloat32(Loop):
    """The initial state passes through a buffer of float32 in the forward pass; its gradient does not."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return tuple(with_value(one, one.float().to(one.dtype)) for one in super().first_state(x, given))
