"""Gates moved by some units in the last place, as by another library's exponential; what bends at 0 on either side of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.overrides import TorchFunctionMode

from pytest_ecornn.cases.contents import generator
from pytest_ecornn.contract import Case, Precision, cells
from pytest_ecornn.verification import rounding_shares
from pytest_ecornn.verification.layer_rules import precision_eps, summation_length
from pytest_ecornn.verification.permutation import factors, max_ulps

KINK_ULPS = 3.0  # units in the last place, that a pre-activation may be off by


def _preactivation_eps(case: Case, products: Precision) -> float:
    """The unit in the last place of pre-activations: of a sum in float32 where nothing before them is rounded to 16 bits.

    What may be: the output of a layer below, the state of an earlier step, and products.
    """
    is_recurrent = cells.get(case.cell).recurrent
    is_rounded = products == "storage" and (is_recurrent or not case.projected)
    is_rounded |= case.layers > 1 or (is_recurrent and case.steps > 1)
    is_exact = rounding_shares.is_judged(case.dtype) and not is_rounded
    sum_eps = torch.finfo(torch.float32).eps * max(1, summation_length(case, "output")) ** 0.5
    return sum_eps if is_exact else precision_eps(case)


class PerturbedActivation(torch.autograd.Function):
    """Replaces a gate function's value by a moved one.

    Its slope follows from that value, as in a library whose function errs so.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, moved: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.slope = slope
        ctx.save_for_backward(moved)
        return moved.view_as(moved)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.slope(*ctx.saved_tensors), None, None


def _sigmoid_derivative(value: Tensor) -> Tensor:
    return value * (1 - value)


def _of_tanh(value: Tensor) -> Tensor:
    return 1 - value * value


_SLOPES = {
    torch.sigmoid: _sigmoid_derivative,
    Tensor.sigmoid: _sigmoid_derivative,
    torch.tanh: _of_tanh,
    Tensor.tanh: _of_tanh,
    logsigmoid: lambda value: -torch.expm1(value),
}
# Whose slope autograd computes from the value that they returned, which may be moved where it lies.
_SAVE_THEIR_VALUE = (torch.sigmoid, Tensor.sigmoid, torch.tanh, Tensor.tanh)
_DRAWN_AT_ONCE = 2**14


class PerturbedActivations(TorchFunctionMode):
    """Within it, what sigmoid and its kin return in float32 is `error` times itself up, down, or as it is.

    At least one unit in the last place, more where it `is_searching`. Then pre-activations are moved by units of their own too:
    a large bias rounds off what it is added to. What bends at 0 is moved as far as pre-activations of such `products` may be
    off. saves_values: the backward pass reads the values themselves, not what `saved_tensors_hooks` make of them.
    """

    def __init__(
        self,
        case: Case,
        number: int,
        error: float = 0.0,
        is_searching: bool = False,
        saves_values: bool = False,
        products: Precision = "float32",
    ):
        super().__init__()
        self._random, self._error = generator(case.seed, f"gates {number}"), error
        self._in_place = _SAVE_THEIR_VALUE if saves_values else ()
        self.factors = torch.empty(0)
        self._kink = KINK_ULPS * _preactivation_eps(case, products) if is_searching else 0.0
        self._units = max_ulps(is_searching)
        self._is_open_at_zero = bool(number % 2)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.relu and self._kink:
            return torch.where(self._relu_is_active(args[0]), args[0], 0.0)
        if func is Tensor.ge and self._kink:  # as `cells.positive` asks
            return self._relu_is_active(args[0])
        if func not in _SLOPES:
            return func(*args, **(kwargs or {}))
        if self._kink and args[0].dtype == torch.float32:
            units = factors(args[0].shape, self._random, 0.0, self._units)
            args = (args[0] * units.to(args[0].device), *args[1:])
        if func not in self._in_place:
            return PerturbedActivation.apply(args[0], self._move(func(args[0].detach())), _SLOPES[func])  # type: ignore[no-untyped-call]
        value = func(args[0])
        self._move(value.data)  # behind autograd's back: it then reads the moved value
        return value

    def _move(self, values: Tensor) -> Tensor:
        """Moves float32 values in place and returns the same tensor; other dtypes stay as they are."""
        return values.mul_(self._drawn(values)) if values.dtype == torch.float32 else values

    def _drawn(self, values: Tensor) -> Tensor:
        """Factors that move as many values."""
        count = values.numel()
        if self.factors.numel() < count:
            self.factors = factors((max(count, _DRAWN_AT_ONCE),), self._random, self._error, self._units).to(values.device)
        drawn, self.factors = self.factors[:count], self.factors[count:]
        return drawn.view(values.shape)

    def _relu_is_active(self, x: Tensor) -> Tensor:
        """Whether x is over 0; at random within `_kink` of 0, relative to the elements' root mean square."""
        size = x.detach().abs()
        width = self._kink * size.square().mean().sqrt()
        is_near = size < width * torch.rand(x.shape, generator=self._random).to(x.device)
        return torch.where(size == 0, self._is_open_at_zero, (x > 0) ^ is_near) | x.isnan()
