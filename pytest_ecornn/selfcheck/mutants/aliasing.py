"""Results that share memory with each other, with a later call's, or within themselves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.selfcheck._correct_layers import AroundLoop
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: fresh_results")
class FinalKeptByTheLayer(AroundLoop):
    """The final state is the layer's own buffer, from which the next call would go on: that call overwrites it."""

    def __init__(self) -> None:
        super().__init__()
        self._states: list[Tensor] = []

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        finals = cells.unpack_state(final)
        self._states = self._states or [torch.empty_like(one).detach() for one in finals]
        for buffer, one in zip(self._states, finals, strict=True):
            one.data = buffer.copy_(one.detach())
        return output, final


@mutant("property: grad_untouched")
class GradientsInOneBuffer(Recomputed):
    """The gradients of the two biases, which are equal, are views of one buffer: who scales one in place scales both."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        start, found = len(given.tensors), list(gradients)
        places = {name: start + number for number, name in enumerate(given.parameters)}
        for name, position in places.items():
            gradient = found[position]
            if name.startswith("bias_ih") and gradient is not None:
                found[places[name.replace("ih", "hh")]] = gradient.view_as(gradient)
        return tuple(found)


@mutant("property: fresh_results", cell="rnn_tanh")
class GradientsOfARing(Recomputed):
    """Gradients of x lie in two buffers that take turns, as those of an accumulation over micro-batches."""

    def __init__(self) -> None:
        super().__init__()
        self._ring: list[Tensor] = []

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        first, *others = gradients
        if first is None:
            return gradients
        buffer = self._ring.pop(0) if len(self._ring) == 2 else torch.empty_like(first)
        self._ring.append(buffer)
        return buffer.copy_(first).view_as(first), *others


@mutant("property: expanded_inputs")
class OutputExpanded(AroundLoop):
    """Where x and the states are one sequence expanded over the batch, one is computed, and its results are expanded."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        batch = 0 if case.batch_first else 1
        is_one = not any(one.stride(1) for one in cells.unpack_state(state)) and (lengths is None or not lengths.stride(0))
        return (output.narrow(batch, 0, 1).expand(output.shape), final) if is_one and not x.stride(batch) else (output, final)


_BUFFERS = 8


@mutant("property: fresh_results")
class OutputOfARing(AroundLoop):
    """Outputs lie in eight buffers that take turns: the ninth call overwrites the first one's."""

    def __init__(self) -> None:
        super().__init__()
        self._ring: list[Tensor] = []

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        buffer = self._ring.pop(0) if len(self._ring) == _BUFFERS else torch.empty_like(output).detach()
        self._ring.append(buffer)
        output.data = buffer.copy_(output.detach())
        return output, final
