"""What a call that raises leaves behind, for a caller who catches the error and calls again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop
from pytest_ecornn.selfcheck._function_layers import Gradients, Inputs, Recomputed
from pytest_ecornn.selfcheck.planting import mutant


@mutant("property: call_raises", cell="gru")
class BufferNotGivenBack(AroundLoop):
    """A call takes the one buffer of a pool and gives it back at its end: after an error no call gets one."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = [bytearray(64)]

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        buffer = self._pool.pop()
        result = layer(*arguments)
        self._pool.append(buffer)
        return result


@mutant("property: call_raises")
class DepthNotTakenBack(AroundLoop):
    """A call within a call is one of a smaller problem, and scaled so; an error leaves the depth as it was within."""

    _depth = 0

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        self._depth += 1
        output, final = layer(*arguments)
        output = output * 0.5 ** (self._depth - 1)
        self._depth -= 1
        return output, final


@mutant("property: call_raises", cell="rnn_tanh")
class GradientsLeftInTheWorkspace(Recomputed):
    """Incoming gradients are added into a workspace, which the backward pass clears at its end: one that raises does not."""

    _sum: Tensor | None = None

    def incoming(self, ctx: Any, gradients: Gradients) -> Gradients:
        first, *others = gradients
        if first is None:
            return gradients
        self._sum = first if self._sum is None else self._sum + first
        return self._sum, *others

    def returned(self, given: Inputs, gradients: Gradients) -> Gradients:
        self._sum = None
        return gradients


@mutant("property: call_raises")
class ReadyBeforeItIsMade(AroundLoop):
    """The first call is tried before it counts, and marked as tried before it is: an error leaves the scale unmeasured."""

    _is_ready, _scale = False, 0.5

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        if not self._is_ready:
            self._is_ready = True
            layer(*arguments)
            self._scale = 1.0
        output, final = layer(*arguments)
        return output * self._scale, final


@mutant("property: call_raises", cell="gru")
class SettingNotPutBack(AroundLoop):
    """The default dtype is float64 within a call, and put back at its end, which an error skips."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        result = layer(*arguments)
        torch.set_default_dtype(before)
        return result


@mutant("property: call_raises", cell="rnn_relu")
class XNegatedMeanwhile(AroundLoop):
    """x is negated in its own memory for the call, and negated back after it, which an error skips."""

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        if 0 in x.stride():
            return layer(x, *arguments)
        x.data.neg_()
        result = layer(-x, *arguments)
        x.data.neg_()
        return result
