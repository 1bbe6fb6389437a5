"""Gradients of gradients that lack a part, where the graph of a backward pass is asked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pytest_ecornn.contract.cells import GateTensors
from pytest_ecornn.selfcheck._correct_layers import Loop, Parameters
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, RecomputedWithGraph, Tensors
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: second_derivatives")
class BackwardWithoutAGraph(RecomputedWithGraph):
    """The backward pass is plain code: its gradients are constants wherever they are used."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.detach() for one in gradients)


class _Tanh(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.tanh(x)
        ctx.y = y.detach().clone()  # a copy that is no saved tensor: a constant to the backward pass
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * (1 - ctx.y * ctx.y)


@mutant("property: second_derivatives", cell="rnn_tanh")
class GatesSavedAsConstants(Loop):
    """The backward pass takes gates that forward saved outside of autograd's care: no gradient goes through them."""

    def step(self, x: GateTensors, h: GateTensors, state: GateTensors, parameters: Parameters) -> GateTensors:
        activation: Tensor = _Tanh.apply(x[0] + h[0])  # type: ignore[no-untyped-call]
        return (activation,)


@mutant("property: second_derivatives", cell="gru")
class IncomingWithoutItsGraph(RecomputedWithGraph):
    """Incoming gradients are converted without their graph: a loss that is not linear lacks its own second derivative."""

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        return tuple(None if one is None else one.detach() for one in gradients)


@mutant("property: second_derivatives", cell="gru")
class LengthsForgottenWithAGraph(RecomputedWithGraph):
    """The path that create_graph takes computes all steps of every sequence; the usual path ends where they end."""

    _has_graph = False

    def needed(self, needs: tuple[bool, ...]) -> tuple[bool, ...]:
        self._has_graph = torch.is_grad_enabled()
        return needs

    def run(self, tensors: Tensors, lengths: Tensor | None) -> Tensors:
        is_backward = torch._C._current_graph_task_id() >= 0
        return super().run(tensors, None if is_backward and self._has_graph else lengths)


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(h, weight)
        return h @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        h, weight = ctx.saved_tensors
        return gradient @ weight.detach(), gradient.T @ h


@mutant("property: second_derivatives", cell="rnn_relu")
class RecurrentWeightAsAConstant(Loop):
    """The backward pass multiplies by a copy of W_hh, which no gradient of a gradient reaches."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        product: Tensor = _Product.apply(h, parameters["weight_hh"])  # type: ignore[no-untyped-call]
        return product + parameters.get("bias_hh", 0)


@mutant("property: second_derivatives")
class StateSavedWithoutItsGraph(RecomputedWithGraph):
    """The initial state is saved detached: second derivatives with respect to it lack what the backward pass reads there."""

    def saved(self, ctx: Any) -> Tensors:
        x, *states = super().saved(ctx)
        return x, *(one.detach().requires_grad_(one.requires_grad) for one in states)


@mutant("property: second_derivatives", cell="minlstm")
class WeightGradientsWithoutAGraph(RecomputedWithGraph):
    """Gradients of weights are sums by a kernel of their own, which leaves no graph; those of x have one."""

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        count = len(given.tensors)
        return *gradients[:count], *(None if one is None else one.detach() for one in gradients[count:])
