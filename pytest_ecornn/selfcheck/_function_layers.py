"""Correct layers in the form of one autograd Function, which planted faults of its backward pass change."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pytest_ecornn.contract import Case, Layer, State, Weights, cells
from pytest_ecornn.reference.loop import ReferenceLoop

Tensors = tuple[Tensor, ...]
Gradients = tuple[Tensor | None, ...]


class Inputs(NamedTuple):
    """One call's arguments. tensors: x and the initial states; parameters: the weights' names and values."""

    lengths: Tensor | None
    tensors: Tensors
    parameters: dict[str, Tensor]

    @property
    def all(self) -> Tensors:
        return *self.tensors, *self.parameters.values()


class Recomputed(ReferenceLoop):
    """The plain loop as one Function: the backward pass computes it again. A fault replaces a part of that pass."""

    takes_resets = False

    def build(self, case: Case, weights: Weights) -> Layer:
        self.case = case
        self.loop = super().build(case, weights)

        def layer(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
            given = Inputs(lengths, (x, *cells.unpack_state(state)), dict(weights))
            output, *finals = self.applied(given)
            return output, tuple(finals) if len(finals) > 1 else finals[0]

        return layer

    def applied(self, given: Inputs) -> Tensors:
        results: Tensors = _FunctionOnce.apply(self, given, *given.all)  # type: ignore[no-untyped-call]
        return results

    def save(self, ctx: Any, tensors: Tensors) -> None:
        """Saves x and the initial states for backward."""
        ctx.save_for_backward(*tensors)

    def saved(self, ctx: Any) -> Tensors:
        """The tensors as `save` stored them."""
        return tuple(ctx.saved_tensors)

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        """The gradients of output and final states, as the backward pass takes them."""
        return gradients

    def needed(self, needs: tuple[bool, ...]) -> tuple[bool, ...]:
        """Flags of the gradients that are computed: of x, the states and the weights, in this order."""
        return needs

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        """The gradients of x, the states and the weights, as autograd gets them."""
        return gradients

    def run(self, tensors: Tensors, lengths: Tensor | None) -> Tensors:
        state = tensors[1:]
        output, final = self.loop(tensors[0], (state if len(state) > 1 else state[0]) if state else None, lengths)
        return output, *cells.unpack_state(final)


class RecomputedWithGraph(Recomputed):
    """The same, whose gradients have right gradients of their own; `Recomputed` refuses these."""

    def applied(self, given: Inputs) -> Tensors:
        results: Tensors = _Function.apply(self, given, *given.all)  # type: ignore[no-untyped-call]
        return results


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, owner: Recomputed, given: Inputs, *tensors: Tensor) -> Tensors:
        ctx.owner, ctx.given = owner, given
        ctx.set_materialize_grads(False)
        owner.save(ctx, given.tensors)
        return owner.run(given.tensors, given.lengths)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        owner, given, has_graph = ctx.owner, ctx.given, torch.is_grad_enabled()  # by create_graph
        needs = owner.needed(ctx.needs_input_grad[2:])
        pairs = zip(owner.saved(ctx), needs, strict=False)
        leaves = tuple(one if has_graph else one.detach().requires_grad_(is_needed) for one, is_needed in pairs)
        with torch.enable_grad():
            results = owner.run(leaves, given.lengths)
        incoming = owner.incoming(ctx, gradients)
        used = [(result, gradient) for result, gradient in zip(results, incoming, strict=True) if gradient is not None]
        inputs = [one for one, is_needed in zip((*leaves, *given.parameters.values()), needs, strict=True) if is_needed]
        outputs, seeds = [result for result, _ in used], [gradient for _, gradient in used]
        computed = iter(torch.autograd.grad(outputs, inputs, seeds, create_graph=has_graph, allow_unused=True))
        found = tuple(next(computed) if is_needed else None for is_needed in needs)
        return None, None, *owner.returned(given, found)


class _FunctionOnce(_Function):
    backward = staticmethod(once_differentiable(_Function.backward))  # type: ignore[assignment]
