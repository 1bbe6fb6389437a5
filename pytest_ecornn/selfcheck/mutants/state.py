"""Wrong initial, final or carried states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, PackedLoop
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: output", cell="gru")
class CarriedBetweenCalls(AroundLoop):
    """A call that is given no initial state begins where the last call ended."""

    _last: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, self._last if state is None else state, lengths)
        assert isinstance(final, Tensor)
        self._last = final.detach()
        return output, final


@mutant("property: same_state")
class CopiedByAddress(Loop):
    """In inference the states are copied once an address: where one tensor is both, c overwrites h within the first step."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        states = super().first_state(x, given)
        if len(given) < 2 or torch.is_grad_enabled() or given[0].data_ptr() != given[1].data_ptr():
            return states
        return (states[0] * 0.5, states[1])


@mutant("equivalence: output")
class DirectionsSwapped(AroundLoop):
    """The reverse direction's output stands before the forward direction's."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        return torch.cat(output.chunk(case.directions, -1)[::-1], -1), final


@mutant("equivalence: final c")
class FinalCIsItsTanh(AroundLoop):
    """The final cell state is returned after its tanh."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        assert isinstance(final, tuple)
        return output, (final[0], final[1].tanh())


@mutant("equivalence: final h")
class FinalFromPaddedEnd(Loop):
    """The forward direction's final state is that after the padding, not that at the sequence's end."""

    def kept(self, alive: Tensor, new: GateTensors, state: GateTensors) -> GateTensors:
        return super().kept(alive, new, state) if self.is_reverse else new


@mutant("equivalence: final h")
class FinalLayersSwapped(AroundLoop):
    """Final states stand in the wrong order of layers."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        return output, tuple(s.flip(0) for s in cells.unpack_state(final))


@mutant("equivalence: final h", cell="gru")
class FinalStale(AroundLoop):
    """The final state is that before the last step."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        output, final = layer(x, state, lengths)
        if case.steps == 1 or case.bidirectional:
            return output, final
        shorter = x[:, :-1] if case.batch_first else x[:-1]
        return output, layer(shorter, state, None if lengths is None else lengths.clamp(max=case.steps - 1))[1]


@mutant("equivalence: final h")
class HAndCSwapped(AroundLoop):
    """The final states are returned in the order (c, h)."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        assert isinstance(final, tuple)
        return output, final[::-1]


@mutant("equivalence: output")
class InitialCIgnored(Loop):
    """The initial cell state is taken as zero, the initial output as it is."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        h, c = super().first_state(x, given)
        return h, c * 0


@mutant("equivalence: output")
class InitialIgnored(Loop):
    """Every sequence begins at zero."""

    def first_state(self, x: Tensor, given: GateTensors) -> GateTensors:
        return super().first_state(x, ())


@mutant("equivalence: output")
class LayersSwapped(AroundLoop):
    """The first layer begins at the last layer's state, and the last at the first's."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        return layer(x, tuple(s.flip(0) for s in cells.unpack_state(state)) or None, lengths)


@mutant("property: globals_unchanged")
class RandomNumbersDrawn(AroundLoop):
    """A call draws from torch's global random numbers, and does not use them."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        torch.rand(1)
        return layer(*arguments)


@mutant("equivalence: output")
class ResetKeepsC(PackedLoop):
    """A reset clears h and leaves c."""

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return super().apply_reset(state, resets, t)[0], state[1]


@mutant("equivalence: output", cell="gru")
class ResetsIgnored(PackedLoop):
    """No step begins anew: the mask of resets is not looked at."""

    def apply_reset(self, state: GateTensors, resets: Tensor, t: int) -> GateTensors:
        return state


@mutant("equivalence: output", cell="minlstm")
class ReverseRunsForward(Loop):
    """The reverse direction reads the sequence from its beginning too."""

    def one_layer(self, *arguments: Any) -> Any:
        return super().one_layer(*(*arguments[:-1], False))


@mutant("property: globals_unchanged", cell="gru")
class ThreadCountChanged(AroundLoop):
    """A call sets the number of torch's threads and leaves it so."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        torch.set_num_threads(torch.get_num_threads() % 2 + 1)
        return layer(*arguments)
