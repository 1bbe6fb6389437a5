"""The yardstick's problems: indices in another order, values moved by some units in the last place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_ecornn.cases.contents import Problem, generator
from pytest_ecornn.contract import Case, Weights, cells


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
        found = [(0, _blocks(self.hidden[layer], rows))]
        if name == "weight_hh":
            found.append((1, self.hidden[layer]))
        if name == "weight_ih":
            before = self.x if layer == 0 else _blocks(self.hidden[layer - 1], self.case.directions)
            found.append((1, before))
        return found

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

    def problem(self, given: Problem, units: int = 1) -> Problem:
        """`given` permuted, with its values moved by so many units in the last place."""
        random = generator(self.case.seed, f"last place {self.number}") if units else None

        def permuted(values: Tensor) -> Tensor:
            return moved(values, random, units)

        weights = {
            name: torch.nn.Parameter(permuted(self.apply(name, p.detach())), p.requires_grad)
            for name, p in given.weights.items()
        }
        masks = {name: self.apply(name, mask) for name, mask in given.weights.masks.items()}
        loss = given.output_gradients
        if loss:
            loss = (self.apply("output", loss[0]), *(self._states(weight) for weight in loss[1:]))
        return replace(
            given,
            weights=Weights(weights, masks),
            x=permuted(self.apply("x", given.x)),
            state=tuple(permuted(self._states(state)) for state in given.state),
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
