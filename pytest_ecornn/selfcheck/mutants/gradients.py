"""Wrong gradients of right values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import (
    AroundLoop,
    AroundScan,
    Loop,
    PackedLoop,
    Parameters,
    with_gradient,
    with_value,
)
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: grad bias_ih")
class BiasDoubled(Loop):
    """The gradient of the input's bias is doubled, as where both biases share an accumulator."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {n: with_gradient(p, lambda g: g * 2) if n == "bias_ih" else p for n, p in found.items()}


@mutant("equivalence: grad bias_hh", cell="gru")
class BiasHhAsBiasIh(Loop):
    """The candidate's recurrent bias gets a gradient in which the reset gate has no part."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        r, z = torch.sigmoid(x[0] + h[0]), torch.sigmoid(x[1] + h[1])
        n = torch.tanh(x[2] + r * (h[2] - self._bias(parameters).detach()) + self._through(parameters, r))
        return (n + z * (state[0] - n),)

    def _bias(self, parameters: Parameters) -> Tensor:
        none = parameters["weight_hh"].new_zeros(3 * self.case.hidden_size)
        return parameters.get("bias_hh", none).chunk(3)[2]

    def _through(self, parameters: Parameters, r: Tensor) -> Tensor:
        """r times the bias; the bias gets the gradient whole on top of its own."""
        bias = self._bias(parameters)
        return with_value(r * bias.detach() + bias, r * bias.detach())


LARGEST = torch.finfo(torch.float16).max


def clamped(gradient: Tensor) -> Tensor:
    return gradient.clamp(-LARGEST, LARGEST)


@mutant("property: incoming_sizes")
class ClampedToHalfRange(Loop):
    """Gradients are clamped to float16's range on their way back: wrong where a loss is scaled by 65,536."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return super().step(tuple(with_gradient(one, clamped) for one in x), h, state, parameters)


@mutant("equivalence: grad initial c")
class Dc0Detached(Loop):
    """The initial cell state is detached: it gets no gradient."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        h, c = super().first_state(x, given)
        return h, c.detach()


@mutant("equivalence: grad initial h", cell="gru")
class Dh0Dropped(Loop):
    """The gradient of the initial state is zero."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return tuple(with_gradient(s, lambda g: g * 0) for s in super().first_state(x, given))


@mutant("equivalence: grad x", cell="mingru")
class FirstStepMissing(AroundScan):
    """The scan's backward pass ends before the first step: its gradient stays zero."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        def shortened(gradient: Tensor) -> Tensor:
            gradient = gradient.clone()
            gradient.select(1 if case.batch_first else 0, 0).zero_()
            return gradient

        return layer(with_gradient(x, shortened), *arguments)


@mutant("equivalence: grad x")
class LengthsIgnored(Loop):
    """The backward pass runs over the padding too."""

    def padded(self, alive: Tensor, output: Tensor) -> Tensor:
        return with_value(output, torch.where(alive, output, 0))


@mutant("equivalence: grad x")
class OfFinalStateIgnored(AroundLoop):
    """What is given for the final cell state does not reach the backward pass."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        assert isinstance(final, tuple)
        return output, (final[0], with_gradient(final[1], lambda g: g * 0))


@mutant("equivalence: grad weight_hh", cell="rnn_tanh")
class OfPrunedWeights(Loop):
    """Pruned weights, which are zero, get a gradient."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        return {name: p.to(self.compute) for name, p in cells.layer_parameters(weights, suffix).items()}


@mutant("equivalence: grad x or grad initial h", cell="minlstm_positive")
class PassAReset(PackedLoop):
    """A reset stops the state and lets its gradient pass."""

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return tuple(with_value(s, shown) for s, shown in zip(state, super().apply_reset(state, resets, t), strict=True))


@mutant("equivalence: grad x or grad weight_ih", cell="rnn_relu")
class ReluOpen(Loop):
    """relu lets the gradient through where it is shut."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        return (with_value(x[0] + h[0], (x[0] + h[0]).relu()),)


@mutant("equivalence: grad x")
class Truncated(Loop):
    """The backward pass through time ends at every eighth step."""

    def advance(self, t: int, x: Tensor, state: GateTensors, *arguments: Any) -> tuple[GateTensors, Tensor]:
        state = tuple(s.detach() for s in state) if t and t % 8 == 0 else state
        return super().advance(t, x, state, *arguments)


@mutant("equivalence: grad weight_hh")
class WeightHhMissing(Loop):
    """The recurrent weight is detached: it gets no gradient."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return found | {"weight_hh": found["weight_hh"].detach()}


@mutant("equivalence: grad weight_hh")
class WeightHhTransposed(Loop):
    """Each gate's block of the recurrent weight's gradient is transposed."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return found | {"weight_hh": with_gradient(found["weight_hh"], self._transposed)}

    def _transposed(self, gradient: Tensor) -> Tensor:
        blocks = gradient.chunk(len(self.cell.gates))
        return torch.cat([block.T for block in blocks])


@mutant("equivalence: grad weight_ih", cell="gru")
class WeightIhScaled(Loop):
    """The gradient of the input's weight is one part in a hundred too large."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        return {n: with_gradient(p, lambda g: g * 1.01) if n == "weight_ih" else p for n, p in found.items()}


@mutant("equivalence: grad x", cell="rnn_tanh")
class XOfUpperLayerScaled(Loop):
    """What an upper layer gives back to the one below is one part in a thousand too small."""

    def one_layer(self, weights: Weights, lengths: Tensor | None, suffix: str, x: Tensor, *arguments: Any) -> Any:
        x = x if suffix.startswith("_l0") else with_gradient(x, lambda g: g * 0.999)
        return super().one_layer(weights, lengths, suffix, x, *arguments)
