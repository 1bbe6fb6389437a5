"""Wrong gradients where `.grad` is there already, where one step alone is used, or of two layers at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed, Tensors
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: grad_untouched")
class AddedWhereGradIs(Recomputed):
    """Where a weight has a `.grad`, its gradient is added there in place, and autograd gets none of it."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        others, added = gradients[: len(given.tensors)], list[Tensor | None]()
        for weight, gradient in zip(given.parameters.values(), gradients[len(given.tensors) :], strict=True):
            is_fused = weight.grad is not None and gradient is not None
            if is_fused:
                weight.grad.add_(gradient)  # type: ignore[union-attr, arg-type]
            added.append(None if is_fused else gradient)
        return *others, *added


@mutant("property: grad_untouched", cell="gru")
class LaidOutAsGrad(Recomputed):
    """A gradient is written into memory with the strides of `.grad` as if it were contiguous."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        found = list(gradients)
        for position, weight in enumerate(given.parameters.values(), len(given.tensors)):
            gradient = found[position]
            if gradient is not None and weight.grad is not None and not weight.grad.is_contiguous():
                found[position] = gradient.contiguous().as_strided(gradient.shape, weight.grad.stride())
        return tuple(found)


@mutant("property: grad_untouched", cell="rnn_tanh")
class SkippedWhereGradIsNan(Recomputed):
    """A weight whose `.grad` is not finite gets no gradient, as the step will be skipped."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        found = list(gradients)
        for position, weight in enumerate(given.parameters.values(), len(given.tensors)):
            if weight.grad is not None and not weight.grad.isfinite().all():
                found[position] = None
        return tuple(found)


_ROOMS = 2
_ring: list[Tensors] = []


@mutant("property: layers_apart or backward_twice")
class SavedInARingOfAll(Recomputed):
    """What forward saves lies in two workspaces that take turns among all layers: enough for two calls, not for two each."""

    def save(self, ctx: Any, tensors: Tensors) -> None:
        ctx.mine = tuple(one.clone() for one in tensors)
        if tensors[0].is_inference():
            return
        _ring.append(ctx.mine)
        if len(_ring) > _ROOMS:
            for old in _ring.pop(0):
                old.zero_()

    def saved(self, ctx: Any) -> Tensors:
        mine: Tensors = ctx.mine
        return mine


_made: dict[tuple[Case, int], Tensors] = {}


@mutant("property: layers_apart", cell="gru")
class SavedByCaseAndCall(Recomputed):
    """What forward saves is kept by the case and the number of the layer's call: a second layer of that case overwrites it."""

    _calls = 0

    def save(self, ctx: Any, tensors: Tensors) -> None:
        self._calls += 1
        ctx.key = self.case, self._calls
        _made[ctx.key] = tuple(one.clone() for one in tensors)

    def saved(self, ctx: Any) -> Tensors:
        return _made[ctx.key]


_given: set[tuple[int, int]] = set()


@mutant("property: layers_apart", cell="rnn_tanh")
class SharedWeightOnce(Recomputed):
    """A weight's gradient is given to autograd once a backward pass: of a weight that two layers share, one's is lost."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        found, task = list(gradients), torch._C._current_graph_task_id()
        for position, weight in enumerate(given.parameters.values(), len(given.tensors)):
            if (task, id(weight)) in _given:
                found[position] = None
            _given.add((task, id(weight)))
        return tuple(found)


@mutant("property: unused_results or incoming_sizes")
class StopsAtZeroSteps(Recomputed):
    """Steps whose output has an incoming gradient of zeros are taken for padding: where one step alone has one, all is lost."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        output, *finals = gradients
        if output is None or self.case.steps == 1:
            return gradients
        used = output.abs().sum(-1).sum(0 if self.case.batch_first else 1)  # [T]
        return (torch.zeros_like(output) if int((used != 0).sum()) == 1 else output), *finals
