"""Wrong where two sizes happen to be equal: what is told apart by its shape is mistaken. And wrong of very many sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, PackedLoop, Parameters, with_gradient
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: output", cell="gru")
class BatchFirstByTheState(AroundLoop):
    """x is taken for batch-first where its first dimension is the state's batch, which T may be as well."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        states = cells.unpack_state(state)
        if case.batch_first or not states or x.shape[0] != states[0].shape[1]:
            return layer(x, state, lengths)
        output, final = layer(x.transpose(0, 1), state, lengths)
        return output.transpose(0, 1), final


@mutant("equivalence: output")
class BiasAlongTheBatch(Loop):
    """The bias is added along the first dimension whose size is the bias's: B where it is G*H."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        gates, bias = x @ parameters["weight_ih"].T, parameters.get("bias_ih")
        if bias is None:
            return gates
        return gates + (bias[:, None] if gates.shape[1] == len(bias) else bias)


@mutant("equivalence: output", cell="gru")
class ConcatenatedWeightSquare(Loop):
    """W_ih beside W_hh is one matrix, transposed where it has G*H columns: a square one is left as it is."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        if "weight_ih" not in found:
            return found
        inputs, both = found["weight_ih"].shape[1], torch.cat([found["weight_ih"], found["weight_hh"]], 1)
        both = both.T if both.shape[0] == both.shape[1] else both
        return {**found, "weight_ih": both[:, :inputs], "weight_hh": both[:, inputs:]}


@mutant("equivalence: output")
class FirstLayerTakenForALaterOne(Loop):
    """The first of several layers, where its input is as wide as theirs, takes their kernel, whose bias is added elsewhere."""

    def one_layer(self, weights: Weights, lengths: Tensor | None, suffix: str, x: Tensor, *arguments: Any) -> Any:
        wide = self.case.directions * self.case.hidden_size
        self.lacks_bias = suffix.startswith("_l0") and self.case.layers > 1 and x.shape[-1] == wide
        return super().one_layer(weights, lengths, suffix, x, *arguments)

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        return x @ parameters["weight_ih"].T if self.lacks_bias else super().x_gates(x, parameters)


@mutant("equivalence: grad weight_ih", cell="gru")
class GradientByItsRows(Recomputed):
    """Gradients lie in buffers by number of rows: where T*B is G*H, the gradient of W_ih is that of x."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        found = dict(zip(given.parameters, gradients[len(given.tensors) :], strict=True))
        of_x, of_weight = gradients[0], found.get("weight_ih_l0")
        if of_x is None or of_weight is None or of_x.flatten(0, 1).shape != of_weight.shape:
            return gradients
        return *gradients[: len(given.tensors)], *(found | {"weight_ih_l0": of_x.flatten(0, 1)}).values()


MAX_GRID_Y = 65535


@mutant("equivalence: output", cell="rnn_tanh")
class GridOf65535(Loop):
    """A block computes a sequence, and a grid's second dimension has 65,535 blocks at most: later ones are left at zero."""

    def store(self, outputs: Sequence[Tensor]) -> Tensor:
        output = super().store(outputs)
        return output * (torch.arange(output.shape[1]) < MAX_GRID_Y)[:, None]


@mutant("equivalence: grad x", cell="minlstm")
class GridOf65535Backward(Loop):
    """The same of the backward pass alone: later sequences send no gradient to x."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        is_written = (torch.arange(x.shape[1]) < MAX_GRID_Y)[:, None]
        return super().x_gates(with_gradient(x, lambda gradient: gradient * is_written), parameters)


@mutant("equivalence: output")
class InputWeightByItsRows(Loop):
    """W_ih is taken for stored as [I, G*H] where it has I rows."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        weight = parameters["weight_ih"]
        return x @ (weight if len(weight) == x.shape[-1] else weight.T) + parameters.get("bias_ih", 0)


@mutant("equivalence: output", cell="gru")
class MaskBroadcastOverUnits(Loop):
    """The mask of sequences that have not ended is broadcast over the last dimension where it fits: H where it is B."""

    def kept(self, alive: Tensor, new: GateTensors, state: GateTensors) -> GateTensors:
        return super().kept(self.broadcast(alive), new, state)

    def padded(self, alive: Tensor, output: Tensor) -> Tensor:
        return super().padded(self.broadcast(alive), output)

    def broadcast(self, alive: Tensor) -> Tensor:
        return alive.squeeze(-1) if len(alive) == self.case.hidden_size else alive


@mutant("equivalence: output")
class PreActivationsByWidth(Loop):
    """Inputs as wide as the gates are taken for pre-activations."""

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        return x if x.shape[-1] == len(parameters["weight_ih"]) else super().x_gates(x, parameters)


@mutant("equivalence: output", cell="mingru")
class ResetsByShape(PackedLoop):
    """Resets are taken for [B, T] where their first dimension is B, which T may be as well."""

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return super().apply_reset(state, resets.T if len(resets) == len(state[0]) else resets, t)


@mutant("equivalence: output", cell="gru")
class StateOfAColumn(Loop):
    """An initial state of H rows is taken for stored as [H, B]."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return tuple(s.T if len(s) == self.case.hidden_size else s for s in super().first_state(x, given))


@mutant("equivalence: output")
class StatesBySequence(AroundLoop):
    """Initial states of B rows are taken for [B, L*D, H], which L*D may be as well."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        states = cells.unpack_state(state)
        if states and states[0].shape[0] == states[0].shape[1]:
            states = tuple(one.transpose(0, 1) for one in states)
            state = states if len(states) > 1 else states[0]
        return layer(x, state, lengths)
