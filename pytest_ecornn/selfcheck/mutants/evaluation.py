"""Calls without gradients that spoil a training step around them, or are spoilt by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, Parameters, with_value
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed, Tensors
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: evaluations_between")
class ConstantOfTheFirstCall(AroundLoop):
    """A constant is made by the first call: made under inference_mode, no training call may save it for backward."""

    _scale: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        if self._scale is None:
            self._scale = torch.ones(1, dtype=x.dtype, device=x.device)
        output, final = layer(x, *arguments)
        return output * self._scale, final


@mutant("property: evaluations_between")
class FirstTrainingByPackedWeights(Loop):
    """Weights that an evaluation packed before the first training call are what this call computes with."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        packed: dict[str, Parameters] = vars(self).setdefault("_packed", {})
        trained: set[str] = vars(self).setdefault("_trained", set())
        if not torch.is_grad_enabled():
            packed.setdefault(suffix, {name: value.detach().clone() for name, value in found.items()})
        elif suffix not in trained:
            trained.add(suffix)
            shown = packed.get(suffix, found)
            return {name: with_value(value, shown[name]) for name, value in found.items()}
        return found


@mutant("property: evaluations_between", cell="gru")
class FlagOfTheLastCall(Recomputed):
    """Whether gradients are wanted is a flag of the layer: a call under no_grad after forward makes them zeros."""

    _wants = False

    def build(self, case: Case, weights: Weights) -> Layer:
        layer = super().build(case, weights)

        def flagged(*arguments: Any) -> Any:
            self._wants = torch.is_grad_enabled()
            return layer(*arguments)

        return flagged

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        return gradients if self._wants else tuple(None if one is None else torch.zeros_like(one) for one in gradients)


@mutant("property: evaluations_between")
class PackedUntilTrained(Loop):
    """Recurrent weights are packed by an evaluation, and again after a training call: a change in between is not seen."""

    def parameters(self, weights: Weights, suffix: str) -> Parameters:
        found = super().parameters(weights, suffix)
        packed: dict[str, Tensor] = vars(self).setdefault("_packed", {})
        if torch.is_grad_enabled():
            packed.pop(suffix, None)
        elif "weight_hh" in found:
            found["weight_hh"] = packed.setdefault(suffix, found["weight_hh"].detach().clone())
        return found


@mutant("property: evaluations_between", cell="rnn_tanh")
class SavedTensorsAsScratch(Recomputed):
    """An evaluation works in the memory that the last training call saved, as if its backward pass had been made."""

    _last: Tensors = ()

    def build(self, case: Case, weights: Weights) -> Layer:
        layer = super().build(case, weights)

        def scratched(*arguments: Any) -> Any:
            if torch.is_grad_enabled():
                return layer(*arguments)
            for one in self._last:
                one.zero_()
            result = layer(*arguments)
            self._last = ()
            return result

        return scratched

    def save(self, ctx: Any, tensors: Tensors) -> None:
        self._last = ctx.mine = tuple(one.clone() for one in tensors)

    def saved(self, ctx: Any) -> Tensors:
        mine: Tensors = ctx.mine
        return mine


@mutant("property: evaluations_between", cell="gru")
class VersionOfX(AroundLoop):
    """x is known by its address and version, and a tensor of inference_mode has no version."""

    _known: tuple[int, int] = (0, 0)

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        self._known = x.data_ptr(), x._version
        return layer(x, *arguments)
