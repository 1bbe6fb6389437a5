"""Gradients of a layer's weights: of small layers in one launch, of others by views and products, both directions at once.

Their time is the host's where sizes are small. States start from zeros, time comes first, and no sequence has a length: so the
state before a step is the output of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.long_sums import MIN_TERMS
from pytest_ecornn.implementations._common.padded_gemm import is_never_padded
from pytest_ecornn.implementations._common.recurrent_problem import HOPPER
from pytest_ecornn.implementations._cuda.bias_gradients import bias_gradients
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations._cuda.parameter_gradients import ParameterGradients, get_parameter_gradients, launch_us

# Time of cuBLAS's products and a sum on an H100, us and us a GFLOP (TF32's), by the size of an element; GRU has one more.
_PRODUCTS_US = {4: (13.0, 10.0), 2: (9.0, 5.0)}
_ANOTHER_PRODUCT_US = 4.0
_MAX_BATCHED_FLOP = 1e9  # of a product; two larger ones take the device longer than the host
_MAX_BATCHED_ROWS = 512  # longer sums are split among blocks in a product of its own alone
_reinterpret: Any = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", None)


class View(NamedTuple):
    """A view of a tensor without gaps. offset: in elements from its first."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    def of(self, base: Tensor) -> Tensor:
        """Returns the view, in half the time where torch has a function for that which autograd does not record."""
        if _reinterpret is None or torch._C._len_torch_dispatch_stack():
            return base.as_strided(self.shape, self.strides, base.storage_offset() + self.offset)
        view: Tensor = _reinterpret(base, self.shape, self.strides, self.offset)
        return view


class GradientSizes(NamedTuple):
    """T time steps, B sequences, H units, D directions. wide: G*H. splits_last: of GRU, whose last H rows are apart."""

    steps: int
    batch: int
    hidden: int
    wide: int
    directions: int
    splits_last: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def rows(self) -> int:
        return self.steps * self.batch

    def suit_one_launch(self, width: int) -> bool:
        """Whether all gradients are computed in one launch. width: of the inputs."""
        if not self.rows or (self.device.type == "cuda" and torch.cuda.get_device_capability(self.device) != HOPPER):
            return False
        flop = 2 * self.directions * self.rows * self.wide * (width + self.hidden)
        least_us, us_a_gflop = _PRODUCTS_US[self.dtype.itemsize]
        products_us = least_us + us_a_gflop * flop / 1e9 + self.splits_last * _ANOTHER_PRODUCT_US
        return launch_us(self.rows, self.wide, self.hidden, width, self.directions) <= products_us

    def suit_weight_gradients(self, widths: Sequence[int], tf32: bool) -> bool:
        """Whether WeightGradients may run: no sums that are split, nothing that is padded, two directions only if small.

        widths: of the inputs of all layers.
        """
        if self.steps == 1 or (self.rows >= MIN_TERMS and self.dtype.itemsize == 2):
            return False
        products = self.rows * self.wide * max((self.hidden, *widths))
        if self.directions > 1:
            return 2 * products < _MAX_BATCHED_FLOP and self.rows <= _MAX_BATCHED_ROWS
        return is_never_padded((self.hidden, self.wide, *widths), products, self.dtype, tf32)


class WeightGradients:
    """The gradients of the weights of one layer in D directions, and of its inputs.

    d_gates: [D, T, B, G*H], of the pre-activations. d_product: [D, T, B, H] of GRU's product for n, None of other cells. Of one
    direction D is left out. All are without gaps.
    """

    def __init__(self, sizes: GradientSizes):
        self._sizes = sizes
        self._product: Callable[..., Tensor] = torch.mm if sizes.directions == 1 else torch.bmm
        self._inputs: dict[int, View] = {}
        self._suits_one_launch: dict[int, bool] = {}  # by the width of inputs
        rows, hidden, wide, width = sizes.rows, sizes.hidden, sizes.wide, sizes.directions * sizes.hidden
        gate_rows = wide - hidden if sizes.splits_last else wide
        self._all_gates = self._matrices(rows * wide, (wide, rows), (1, wide))
        self._later_gates = self._of_later_steps(wide, gate_rows)
        self._later_product = self._of_later_steps(hidden, hidden)
        later = rows - sizes.batch
        self._before = self._matrices(sizes.batch * width + hidden, (later, hidden), (width, 1))
        self._first_rows = self._matrices(wide * hidden, (gate_rows, hidden), (hidden, 1))
        self._last_rows = self._matrices(wide * hidden, (wide - gate_rows, hidden), (hidden, 1), gate_rows * hidden)

    def _of_later_steps(self, width: int, columns: int) -> View:
        """The first columns of rows of that width, transposed, of the steps that have one before them in a direction."""
        skipped, rows = self._sizes.batch * width, self._sizes.rows
        return self._matrices(rows * width - skipped, (columns, rows - self._sizes.batch), (1, width), skipped)

    def _matrices(self, apart: int, shape: tuple[int, int], strides: tuple[int, int], offset: int = 0) -> View:
        """A matrix a direction, so many elements apart."""
        if self._sizes.directions == 1:
            return View(shape, strides, offset)
        return View((2, *shape), (apart, *strides), offset)

    @cached_property
    def gates(self) -> EmptyFactory:
        """Allocates d_gates."""
        return self._factory(self._sizes.steps, self._sizes.batch, self._sizes.wide)

    @cached_property
    def product(self) -> EmptyFactory:
        """Allocates d_product."""
        return self._factory(self._sizes.steps, self._sizes.batch, self._sizes.hidden)

    @cached_property
    def _weight_hh(self) -> EmptyFactory:
        return self._factory(self._sizes.wide, self._sizes.hidden)

    def _factory(self, *shape: int) -> EmptyFactory:
        shape = shape if self._sizes.directions == 1 else (2, *shape)
        return EmptyFactory(shape, self._sizes.dtype, self._sizes.device)

    def for_weights(self, d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor) -> list[Tensor]:
        """The gradients of weight_ih, weight_hh, bias_ih and bias_hh of each direction.

        inputs, output: [T, B, I] and [T, B, D*H], without gaps.
        """
        launch = self._launch_of(inputs.shape[2])
        gradients = (launch or self._by_products)(d_gates, d_product, inputs, output)
        if self._sizes.directions == 1:
            return [*gradients]
        return [part for of_direction in zip(*map(_halves, gradients), strict=True) for part in of_direction]

    def _launch_of(self, width: int) -> ParameterGradients | None:
        """The launch for inputs of that width, None where products take its place."""
        sizes = self._sizes
        if width not in self._suits_one_launch:
            self._suits_one_launch[width] = sizes.suit_one_launch(width)
        if not self._suits_one_launch[width]:
            return None
        columns, hidden, directions = sizes.wide, sizes.hidden, sizes.directions
        return get_parameter_gradients(sizes.rows, sizes.batch, columns, hidden, width, sizes.dtype, sizes.device, directions)

    def _by_products(
        self, d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The gradients of all directions by torch's products."""
        of_input = self._product(self._all_gates.of(d_gates), self._inputs_of(inputs.shape[2]).of(inputs))
        before = self._before.of(output)
        if d_product is None:
            of_state = self._product(self._later_gates.of(d_gates), before)
        else:  # W_hn is multiplied before r does, so that its product's gradient is another than the pre-activation's
            of_state = self._weight_hh()
            self._product(self._later_gates.of(d_gates), before, out=self._first_rows.of(of_state))
            self._product(self._later_product.of(d_product), before, out=self._last_rows.of(of_state))
        return of_input, of_state, *bias_gradients(d_gates, d_product, self._sizes.directions)

    def _inputs_of(self, width: int) -> View:
        """The view of inputs [T, B, width] as rows, the same for each direction."""
        view = self._inputs.get(width)
        if view is None:
            view = self._inputs[width] = self._matrices(0, (self._sizes.rows, width), (width, 1))
        return view

    def for_inputs(self, d_gates: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """The gradient of the inputs, [T, B, I]. weights: weight_ih of each direction."""
        steps, batch, wide, width = self._sizes.steps, self._sizes.batch, self._sizes.wide, weights[0].shape[1]
        shape = self._sizes.rows, wide
        gradient = torch.mm(View(shape, (wide, 1)).of(d_gates), weights[0])
        for weight in weights[1:]:
            gradient.addmm_(View(shape, (wide, 1), self._sizes.rows * wide).of(d_gates), weight)
        return View((steps, batch, width), (batch * width, width, 1)).of(gradient)


def _halves(stacked: Tensor) -> tuple[Tensor, Tensor]:
    """Both parts of a tensor without gaps."""
    first, second = _half_views(stacked.shape)
    return first.of(stacked), second.of(stacked)


@lru_cache(maxsize=4096)
def _half_views(shape: torch.Size) -> tuple[View, View]:
    _, *sizes = shape
    strides = tuple(prod(sizes[place + 1 :]) for place in range(len(sizes)))
    return View((*sizes,), strides), View((*sizes,), strides, prod(sizes))
