"""Calls of several threads at once, of one layer or of two."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: calls_at_once")
class ArgumentsOnTheLayer(AroundLoop):
    """A call's arguments are stored on the layer: a call of another thread in between puts its own in their place."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        self._given = arguments
        output, final = layer(*arguments)
        again = layer(*self._given)  # as what backward would compute anew
        return output + (again[0] - output).detach(), final


@mutant("property: calls_at_once", cell="gru")
class LocalOfTheBuilder(AroundLoop):
    """What build prepares lies in storage of its thread, where no other thread's call finds it."""

    def build(self, case: Case, weights: Weights) -> Layer:
        self._local = threading.local()
        self._local.scale = 1.0
        return super().build(case, weights)

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        return output * self._local.scale, final


_workspace: dict[Case, Tensor] = {}


@mutant("property: calls_at_once", cell="rnn_tanh")
class WorkspaceOfAllLayers(AroundLoop):
    """x is laid out in a workspace that all layers of a case share, which a call has to itself while no other thread calls."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        _workspace[case] = x + 0.0
        shape = x.detach().abs().amax()  # what comes before it is read
        return layer(_workspace[case] + 0.0 * shape.isnan(), *arguments)


@mutant("property: calls_at_once", cell="gru")
class WorkspaceOfBackward(Recomputed):
    """The backward pass begins with its incoming gradient in a place of the layer, and reads it there at its end."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        self._pass = ctx
        return gradients

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        is_own = self._pass.given is given
        return gradients if is_own else tuple(None if one is None else torch.zeros_like(one) for one in gradients)
