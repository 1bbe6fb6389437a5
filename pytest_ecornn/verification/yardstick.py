"""How far a plain loop in the case's own precision is from the reference: what every candidate's error is measured by.

The loop runs on the same problem with its input and hidden indices permuted: the function is the same, the order of every
sum is not, so the spread of correct answers shows. Where few orders exist (one hidden unit has one), float32 values are
also moved by one unit in the last place, which no sum in float32 can tell from its own rounding; so is every gate, as by
another library's exponential (1 - z loses most of z where the gate is near one). A float64 loop would share the reference's
rounding; there the float32 loop's error is scaled by the ratio of the two precisions.

What a candidate fails by these runs is judged again by more, which also search: values and gates move by two units, as far as
CUDA's own functions may be off, each rounding goes to either neighbour, and what bends at 0 (relu, minGRU's positive candidate)
is on either side at random where the pre-activation is as near to 0 as rounding may take it.

In every other run, of either kind, a step has its other algebra, where the cell names one. There the final state is the last
output, and a state carried in storage the output: autograd then rounds the sum of their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.overrides import TorchFunctionMode

from pytest_ecornn.cases.contents import Problem, generator
from pytest_ecornn.contract import Case, Precision, Weights, cells
from pytest_ecornn.reference.rounding import Dithered, Parted, Rounding
from pytest_ecornn.verification import rounding_shares
from pytest_ecornn.verification.comparison import Error
from pytest_ecornn.verification.layer_rules import precision_eps, summation_length
from pytest_ecornn.verification.rounding_shares import Shares

Errors = dict[str, dict[str, Error]]  # by tensor, by slice

TINY, SMALL, LARGE = 2**6, 2**14, 2**20  # elements of the output
# What is over its limit as many times after MANY_RUNS stays so after the more of a tiny tensor.
MANY_RUNS, DECIDED = 32, 4.0


def converted(problem: Problem, dtype: torch.dtype) -> Problem:
    """The problem with its values in another dtype; its case stays."""
    return problem.map(lambda _, tensor: tensor.detach().to(dtype) if tensor.is_floating_point() else tensor)


def run_counts(size: int) -> tuple[int, ...]:
    """How many permutations to run for an output of `size` elements, then how many in turn where a candidate fails by them.

    In a small tensor one element may carry the whole error, and a few runs may all be lucky in it; in relu's gradients one
    may in a larger tensor too. Of one hidden unit's gradients in 16 bits one run in a hundred errs six times the median. Of
    the largest tensors many runs would take minutes. Half the runs are of the other form.
    """
    if size <= TINY:
        return 3, MANY_RUNS, 128
    fewest, most = (3, MANY_RUNS) if size <= SMALL else (1, 16)
    return fewest, most if size <= LARGE else 4


def run_rounding(case: Case, number: int, is_searching: bool) -> Rounding:
    """Returns a run's rounding: to nearest, or to either neighbour where it `is_searching`.

    Every other run is of the other form.
    """
    is_other_form = bool(number % 2)
    if is_searching:
        return Dithered(generator(case.seed, f"rounding {number}"), is_other_form)
    return Rounding(is_other_form)


def parted(case: Case, number: int) -> Rounding:
    """Returns a run's rounding to nearest, of sums in parts.

    Values rounded to either neighbour have no shares to speak of. Every other run is of the other form.
    """
    return Parted(generator(case.seed, f"parts {number}"), bool(number % 2))


def with_shares(errors: Errors, shares: Errors) -> Errors:
    """`errors`, with the shares of another run of the same number."""
    return {
        tensor: {label: replace(error, shares=shares[tensor][label].shares) for label, error in slices.items()}
        for tensor, slices in errors.items()
    }


def elementwise_max(runs: list[Errors]) -> Errors:
    """Slice by slice the larger of several runs' errors."""
    return {
        tensor: {
            label: Error(
                max(run[tensor][label].rms for run in runs),
                max(run[tensor][label].maximum for run in runs),
                error.count,
                _worst_shares([run[tensor][label].shares for run in runs]),
            )
            for label, error in slices.items()
            if all(label in run[tensor] for run in runs)
        }
        for tensor, slices in runs[0].items()
    }


def _worst_shares(runs: list[Shares]) -> Shares:
    return Shares(max(run.differing for run in runs), max(run.bias for run in runs), runs[0].counted)


@dataclass(frozen=True)
class Permutation:
    """New order of x's elements and of each layer's hidden units; each as an index tensor."""

    case: Case
    number: int
    x: Tensor
    hidden: list[Tensor]

    @classmethod
    def sample(cls, case: Case, number: int) -> Permutation:
        random = generator(case.seed, f"permutation {number}")
        hidden = [torch.randperm(case.hidden_size, generator=random) for _ in range(case.layers)]
        gates = len(cells.get(case.cell).gates) * case.directions
        x = _blocks(hidden[0], gates) if case.projected else torch.randperm(case.input_size, generator=random)
        return cls(case, number, x, hidden)

    def axes(self, tensor: str) -> list[tuple[int, Tensor]]:
        """The (dimension, order) pairs by which a weight or one of `verification.run`'s tensors is permuted."""
        last = _blocks(self.hidden[-1], self.case.directions)
        if tensor in ("x", "grad x"):
            return [(-1, self.x)]
        if tensor == "output":
            return [(-1, last)]
        name, _, position = tensor.removeprefix("grad ").partition("_l")
        layer = int(position.removesuffix("_reverse"))
        rows = cells.parameter_shapes(self.case)[name + "_l" + position][0] // self.case.hidden_size
        pairs = [(0, _blocks(self.hidden[layer], rows))]
        if name == "weight_hh":
            pairs.append((1, self.hidden[layer]))
        if name == "weight_ih":
            before = self.x if layer == 0 else _blocks(self.hidden[layer - 1], self.case.directions)
            pairs.append((1, before))
        return pairs

    def apply(self, tensor: str, value: Tensor) -> Tensor:
        for dimension, order in self.axes(tensor):
            value = value.index_select(dimension, order.to(value.device))
        return value

    def undo(self, tensor: str, value: Tensor) -> Tensor:
        if tensor.startswith(("final", "grad initial")):
            return self._states(value, inverse=True)
        for dimension, order in self.axes(tensor):
            value = torch.empty_like(value).index_copy_(dimension, order.to(value.device), value)
        return value

    def problem(self, original: Problem, units: int = 1) -> Problem:
        """`given` permuted, with its values moved by so many units in the last place."""
        random = generator(self.case.seed, f"last place {self.number}") if units else None

        def permuted(values: Tensor) -> Tensor:
            return moved(values, random, units)

        weights = {
            name: torch.nn.Parameter(permuted(self.apply(name, p.detach())), p.requires_grad)
            for name, p in original.weights.items()
        }
        masks = {name: self.apply(name, mask) for name, mask in original.weights.masks.items()}
        loss = original.output_gradients
        if loss:
            loss = (self.apply("output", loss[0]), *(self._states(weight) for weight in loss[1:]))
        return replace(
            original,
            weights=Weights(weights, masks),
            x=permuted(self.apply("x", original.x)),
            state=tuple(permuted(self._states(state)) for state in original.state),
            output_gradients=loss,
        )

    def _states(self, states: Tensor, inverse: bool = False) -> Tensor:
        """States [L*D, B, H] with each layer's hidden units in its own order."""
        orders = [order.argsort() if inverse else order for order in self.hidden for _ in range(self.case.directions)]
        return torch.stack([state[:, order.to(state.device)] for state, order in zip(states, orders, strict=True)])


def _blocks(order: Tensor, count: int) -> Tensor:
    """Repeats the order in each of `count` consecutive blocks."""
    return torch.cat([order + block * len(order) for block in range(count)])


def moved(values: Tensor, random: torch.Generator | None, most: int) -> Tensor:
    """float32 values `most` units up, down, or less, at random; narrower ones as they are: they are exact in float32."""
    if random is None or values.dtype != torch.float32:
        return values
    return values * factors(tuple(values.shape), random, 0.0, most).to(values.device)


def factors(shape: tuple[int, ...], random: torch.Generator, error: float, most: int) -> Tensor:
    """Random factors that move float32 values by `most` units or less; on the CPU.

    A unit is `error` of the value, where that is more than one in the last place.
    """
    ulps = torch.randint(-most, most + 1, shape, generator=random)
    return 1 + ulps * max(error, torch.finfo(torch.float32).eps)


def max_ulps(is_searching: bool) -> int:
    """Number of units in the last place by which float32 values and gates are moved."""
    return 2 if is_searching else 1


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
