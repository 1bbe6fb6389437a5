"""States that are handed on from call to call: in the graph, or in memory that the caller changes."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.selfcheck._correct_layers import AroundLoop
from pytest_ecornn.selfcheck._function_layers import Gradients, Recomputed, Tensors
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: state_handed_on", cell="gru")
class CutWhereNoLeaf(AroundLoop):
    """An initial state that is no leaf is taken for one that an earlier call returned, and the graph is cut there."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        states = tuple(one if one.is_leaf else one.detach() for one in cells.unpack_state(state))
        return layer(x, (states if len(states) > 1 else states[0]) if states else None, lengths)


@mutant("property: state_handed_on")
class FinalKnownByAddress(AroundLoop):
    """A final state that comes back is known by its address, and what the layer has of it is used: no change is seen."""

    _finals: Tensors = ()
    _values: Tensors = ()

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        states = cells.unpack_state(state)
        is_own = [one.data_ptr() for one in states] == [one.data_ptr() for one in self._finals]
        output, final = layer(x, self._values if states and is_own and not torch.is_grad_enabled() else state, lengths)
        self._finals = cells.unpack_state(final)
        self._values = tuple(one.detach().clone() for one in self._finals)
        return output, final


@mutant("property: state_handed_on", cell="gru")
class FinalSavedByReference(Recomputed):
    """Backward reads the final state where it was returned: a caller who clears it in place changes the gradients."""

    _of_thread = threading.local()

    def save(self, ctx: Any, tensors: Tensors) -> None:
        super().save(ctx, tensors)
        ctx.final = self._of_thread.slot = []

    def run(self, tensors: Tensors, lengths: Tensor | None) -> Tensors:
        results = super().run(tensors, lengths)
        if (slot := getattr(self._of_thread, "slot", None)) == []:  # forward's, not what backward computes again
            slot.append((results[1].detach(), results[1].detach().clone()))
        return results

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        (kept, first), (output, final) = ctx.final[0], gradients
        return output, None if final is None else final + (kept - first)


@mutant("property: state_handed_on")
class InitialHeldWeakly(Recomputed):
    """Backward reads the initial states if they are still there, and zeros otherwise: the caller is taken to hold them."""

    def save(self, ctx: Any, tensors: Tensors) -> None:
        ctx.given = ctx.given._replace(tensors=())
        ctx.mine = tensors[0], [(weakref.ref(one), torch.zeros_like(one)) for one in tensors[1:]]

    def saved(self, ctx: Any) -> Tensors:
        x, states = ctx.mine
        return x, *(zeros if (state := held()) is None else state for held, zeros in states)


@mutant("property: state_handed_on", cell="gru")
class InitialSavedByReference(Recomputed):
    """Initial states are saved outside autograd's care: a caller who overwrites them gets gradients of the new values."""

    def save(self, ctx: Any, tensors: Tensors) -> None:
        ctx.mine = tensors

    def saved(self, ctx: Any) -> Tensors:
        mine: Tensors = ctx.mine
        return mine
