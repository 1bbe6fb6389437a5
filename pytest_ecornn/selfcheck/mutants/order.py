"""Results that depend on earlier calls, on chance or on a stream."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights
from pytest_ecornn.selfcheck._correct_layers import AroundLoop, Loop, Parameters, with_value
from pytest_ecornn.selfcheck.planting import mutant


@mutant("equivalence: output", cell="rnn_tanh")
class ProductRememberedByAddress(Loop):
    """The input product is kept by x's address, though weights change in place."""

    _kept: tuple[int, Tensor] | None = None

    def x_gates(self, x: Tensor, parameters: Parameters) -> Tensor:
        product = super().x_gates(x, parameters)
        if self._kept is None or self._kept[0] != x.data_ptr() or self._kept[1].shape != product.shape:
            self._kept = x.data_ptr(), product.detach()
        return with_value(product, self._kept[1])


_CHANCE = random.Random(3)


@mutant("equivalence: output", profile="default")
class RaceOneInTwenty(AroundLoop):
    """One call in twenty, at random, returns an element that another thread has overwritten."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        output, final = layer(*arguments)
        if _CHANCE.random() < 1 / 20:
            output.data[-1, -1, -1] += 0.5
        return output, final


@mutant("property: stateless")
class RememberedByAddress(AroundLoop):
    """In inference the result is kept by x's address: new contents in the same memory get the old result."""

    _kept: tuple[int, Any] = (0, None)

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        if case.training:
            return layer(x, *arguments)
        if self._kept[0] != x.data_ptr():
            self._kept = x.data_ptr(), layer(x, *arguments)
        output, final = self._kept[1]
        return output.clone(), final


@mutant("equivalence: output", cell="rnn_relu")
class RightForTheFirstCall(AroundLoop):
    """Only the first call of a layer applies the first step's input."""

    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        self._calls += 1
        return layer(x if self._calls == 1 else x * 0.5, *arguments)


@mutant("property: repeats", cell="gru")
class RightForTwoCalls(AroundLoop):
    """From its third call on a layer halves its input."""

    _calls = 0

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        self._calls += 1
        return layer(x if self._calls < 3 else x * 0.5, *arguments)


_SHIFTS = random.Random(1)


@mutant("property: repeats")
class SumInAnyOrder(Loop):
    """The recurrent product is summed up in an order that differs from call to call, and bit-equal repeats are claimed."""

    def h_gates(self, h: Tensor, parameters: Parameters) -> Tensor:
        shift = _SHIFTS.randrange(h.shape[-1])
        return super().h_gates(h.roll(shift, -1), parameters | {"weight_hh": parameters["weight_hh"].roll(shift, -1)})


@mutant("property: capture", device="cuda")
class WrongAfterReplay(AroundLoop):
    """What a graph reads is a copy of x made by the call before its capture; on a CPU: order_remembered_by_address."""

    _kept: Tensor | None = None

    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, *arguments: Any) -> Any:
        if self._kept is not None and not case.training and torch.cuda.is_current_stream_capturing():
            return layer(self._kept, *arguments)
        self._kept = x.detach().clone()
        return layer(x, *arguments)


@mutant("property: current_stream", device="cuda")
class WrongStream(AroundLoop):
    """Work is launched on a stream of its own, and the caller's is not told to wait."""

    def call(self, layer: Layer, case: Case, weights: Weights, *arguments: Any) -> Any:
        with torch.cuda.stream(torch.cuda.Stream()):
            return layer(*arguments)
