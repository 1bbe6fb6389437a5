"""Wrong conduct towards autograd: what is saved, which gradients are asked for, and how incoming ones are read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, read_in_memory_order
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed, Tensors
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: grad_untouched")
class AccumulatesIntoGrad(Recomputed):
    """The backward pass adds the gradient of W_hh to the weight's `.grad` as well, which autograd.grad must not touch."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        parameters = zip(given.parameters.items(), gradients[len(given.tensors) :], strict=True)
        for (name, weight), gradient in parameters:
            if name.startswith("weight_hh") and gradient is not None:
                weight.grad = gradient.clone() if weight.grad is None else weight.grad + gradient
        return gradients


@mutant("property: backward_twice")
class BackwardConsumesWhatWasSaved(Recomputed):
    """The backward pass works in the memory of what was saved: a second one over the same graph finds it changed."""

    def save(self, ctx: Any, tensors: Tensors) -> None:
        ctx.mine = tuple(one.clone() for one in tensors)

    def saved(self, ctx: Any) -> Tensors:
        copies = tuple(one.clone() for one in ctx.mine)
        ctx.mine[0].mul_(0.5)
        return copies


@mutant("property: backward_twice", cell="gru")
class BackwardFreesWhatWasSaved(Recomputed):
    """The backward pass frees what was saved outside autograd's care, whether the graph is retained or not."""

    def save(self, ctx: Any, tensors: Tensors) -> None:
        ctx.mine = tensors

    def saved(self, ctx: Any) -> Tensors:
        mine: Tensors = ctx.mine
        del ctx.mine
        return mine


@mutant("property: gradients_required", cell="gru")
class FrozenWeightsStopAll(AroundLoop):
    """The weights alone are asked whether a backward pass is needed: where all are frozen, the graph ends at the output."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        wants = not weights or any(weight.requires_grad for weight in weights.values())
        with torch.set_grad_enabled(wants and torch.is_grad_enabled()):
            return layer(*arguments)


@mutant("property: gradients_required")
class FrozenXStopsItsWeights(Recomputed):
    """Where x requires no gradient, the gradient of W_ih is left out with it: both were made where pre-activations have one."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        if given.tensors[0].requires_grad:
            return gradients
        names = [*("x" for _ in given.tensors), *given.parameters]
        return tuple(None if name.startswith("weight_ih") else one for name, one in zip(names, gradients, strict=True))


@mutant("property: gradients_required")
class GradientOfEveryInputAsked(Recomputed):
    """The backward pass asks for every gradient, required or not, and raises where one is not."""

    def needed(self, needs: tuple[bool, ...]) -> tuple[bool, ...]:
        return (True,) * len(needs)


@mutant("property: backward_twice", cell="gru")
class IncomingOfTheFirstPass(Recomputed):
    """The incoming gradients are converted once and stored: a later pass over the retained graph takes the first one's."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        if not hasattr(ctx, "converted"):
            ctx.converted = tuple(None if one is None else one.clone() for one in gradients)
        converted: Gradients = ctx.converted
        return converted


def read(gradient: Tensor) -> Tensor:
    rows = gradient.contiguous()
    return torch.as_strided(rows.detach(), rows.shape, rows.stride(), 0).clone()


@mutant("property: incoming_layouts")
class IncomingReadFromItsStorage(Recomputed):
    """A contiguous incoming gradient is read from the start of its storage: wrong for a part of torch.cat's."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else read(one) for one in gradients)


@mutant("property: incoming_layouts")
class IncomingReadInMemoryOrder(Recomputed):
    """The output's incoming gradient is read in the order of memory, as if it were contiguous."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else read_in_memory_order(one) for one in gradients)


@mutant("property: incoming_layouts", cell="gru")
class IncomingViewedFlat(Recomputed):
    """Incoming gradients are viewed as rows, which raises where they are expanded or transposed."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.view(-1, one.shape[-1]).view(one.shape) for one in gradients)


@mutant("property: unused_results", cell="gru")
class MissingGradientNotExpected(Recomputed):
    """The backward pass takes a gradient of every output for granted, and raises where autograd has none."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(one.contiguous() for one in gradients)  # type: ignore[union-attr]


@mutant("property: unused_results")
class MissingGradientStale(Recomputed):
    """A final state without a gradient is given the one that the last backward pass left in the workspace."""

    _workspace: Tensor | None = None

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        *others, last = gradients
        self._workspace = self._workspace if last is None else last.clone()
        return *others, self._workspace


@mutant("property: incoming_sizes", cell="minlstm")
class OverflowZeroed(Recomputed):
    """What is not finite in incoming gradients becomes zero: a loss scaler sees no overflow."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.nan_to_num(0.0, 0.0, 0.0) for one in gradients)


@mutant("property: calls_interleaved")
class SavedInAWorkspace(Recomputed):
    """What the backward pass needs is saved in a workspace of the layer, which the next forward pass overwrites."""

    _workspace: Tensors = ()

    def save(self, ctx: Any, tensors: Tensors) -> None:
        if not self._workspace:
            self._workspace = tuple(torch.empty_like(one) for one in tensors)
        for buffer, one in zip(self._workspace, tensors, strict=True):
            buffer.copy_(one)

    def saved(self, ctx: Any) -> Tensors:
        return self._workspace


@mutant("property: calls_interleaved", cell="gru")
class SavedOnAStack(Recomputed):
    """What forward saves goes on a stack of the layer: backward passes in the order of their calls get each other's."""

    def __init__(self) -> None:
        super().__init__()
        self._stack: list[Tensors] = []

    def save(self, ctx: Any, tensors: Tensors) -> None:
        self._stack.append(tensors)

    def saved(self, ctx: Any) -> Tensors:
        return self._stack.pop()


@mutant("property: unused_results", cell="rnn_tanh")
class UnusedOutputEndsThePass(Recomputed):
    """The loop over time begins at the output's gradient: where there is none, what the final states send back is lost."""

    _has_output = True

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        self._has_output = gradients[0] is not None
        return gradients

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        return gradients if self._has_output else tuple(None if one is None else torch.zeros_like(one) for one in gradients)


@mutant("property: backward_twice")
class SavedMemoryGivenBack(Recomputed):
    """x is copied for backward, and the first pass gives the copy to the next call: a retained graph reads that call's x."""

    def __init__(self) -> None:
        super().__init__()
        self._free: list[Tensor] = []

    def save(self, ctx: Any, tensors: Tensors) -> None:
        x, *states = tensors
        is_reused = bool(self._free) and self._free[-1].shape == x.shape
        ctx.copy = (self._free.pop() if is_reused else torch.empty_like(x)).copy_(x.detach())
        ctx.save_for_backward(*states)

    def saved(self, ctx: Any) -> Tensors:
        if all(ctx.copy is not free for free in self._free):
            self._free.append(ctx.copy)
        return ctx.copy, *ctx.saved_tensors
