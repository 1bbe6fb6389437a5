"""Gradients of a layer's parameters and inputs: of small layers in one launch, of others by products.

Their time is the host's where sizes are small. Time comes first, so the state before a step is the output of the step before.
With lengths that holds where gradients are not 0, unless a sequence starts in reverse from a given state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.gradient_sizes import GradientSizes
from pytest_ecornn.implementations._common.tensor_views import View, halves
from pytest_ecornn.implementations._cuda.bias_gradients import bias_gradients
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations._cuda.padded_rows import MatrixSizes, get_padded_rows
from pytest_ecornn.implementations._cuda.parameter_gradients import ParameterGradients, get_parameter_gradients


class GradientProducts:
    """The gradients of a layer's parameters and inputs.

    width: I. has_initial: states start from given ones, of one direction alone. is_padded: copies have rows of whole vectors.
    """

    def __init__(self, sizes: GradientSizes, width: int, has_initial: bool, is_padded: bool):
        self._sizes, self._width = sizes, width
        self._product: Callable[..., Tensor] = torch.mm if sizes.directions == 1 else torch.bmm
        hidden, wide, rows, itemsize = sizes.hidden, sizes.wide, sizes.rows, sizes.dtype.itemsize
        self._inputs_copy = MatrixSizes.of_vectors(rows, width, itemsize)
        self._weight_copy = MatrixSizes.of_vectors(wide, width, itemsize)
        self._states_copy = MatrixSizes.of_vectors(rows, hidden, itemsize, skipped=sizes.batch)
        self._copies_inputs = is_padded and self._inputs_copy.more_width > 0
        self._copies_states = is_padded if self._states_copy.more_width else has_initial
        self._padded_hidden = self._states_copy.padded_width if self._copies_states else hidden
        self._of_all_steps = self._copies_states or has_initial
        gate_rows = wide - hidden if sizes.splits_last else wide
        self._all_gates = self._matrices(rows * wide, (wide, rows), (1, wide))
        self._inputs = self._matrices(0, (rows, width), (width, 1))
        self._state_gates = self._steps_of(wide, gate_rows)
        self._state_product = self._steps_of(hidden, hidden)
        output_width = sizes.directions * hidden
        apart = sizes.batch * output_width + hidden
        self._before = self._matrices(apart, (rows - sizes.batch, hidden), (output_width, 1))
        of_weight = wide * self._padded_hidden, (self._padded_hidden, 1)
        self._first_rows = self._matrices(of_weight[0], (gate_rows, self._padded_hidden), of_weight[1])
        offset = gate_rows * self._padded_hidden
        self._last_rows = self._matrices(of_weight[0], (wide - gate_rows, self._padded_hidden), of_weight[1], offset)

    def _steps_of(self, width: int, columns: int) -> View:
        """The first columns of rows of that width, transposed, of the steps whose states before are multiplied."""
        rows = self._sizes.rows
        skipped = 0 if self._of_all_steps else self._sizes.batch
        return self._matrices(rows * width - skipped * width, (columns, rows - skipped), (1, width), skipped * width)

    def _matrices(self, apart: int, shape: tuple[int, int], strides: tuple[int, int], offset: int = 0) -> View:
        """A matrix a direction, so many elements apart."""
        if self._sizes.directions == 1:
            return View(shape, strides, offset)
        return View((2, *shape), (apart, *strides), offset)

    @cached_property
    def _weight_hh(self) -> EmptyFactory:
        return self._sizes.factory(self._sizes.wide, self._padded_hidden)

    def __call__(
        self, d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor, initial: Tensor | None,
        weights: Sequence[Tensor],
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor | None]:  # fmt: skip
        """The gradients of weight_ih, weight_hh, bias_ih and bias_hh, and of the inputs, None without weights.

        Tensors as WeightGradients has them. weights: weight_ih of each direction, () where no gradient of inputs is wanted.
        """
        rows, before, of_input = self._factors(inputs, output, initial, weights)
        weight_ih = _cropped(self._product(self._all_gates.of(d_gates), rows), self._width)
        if d_product is None:
            weight_hh = self._product(self._state_gates.of(d_gates), before)
        else:  # W_hn is multiplied before r does, so that its product's gradient is another than the pre-activation's
            weight_hh = self._weight_hh()
            self._product(self._state_gates.of(d_gates), before, out=self._first_rows.of(weight_hh))
            self._product(self._state_product.of(d_product), before, out=self._last_rows.of(weight_hh))
        weight_hh = _cropped(weight_hh, self._sizes.hidden)
        gradients = weight_ih, weight_hh, *bias_gradients(d_gates, d_product, self._sizes.directions)
        return gradients, inputs_gradient(self._sizes, d_gates, of_input, self._width) if weights else None

    def _factors(
        self, inputs: Tensor, output: Tensor, initial: Tensor | None, weights: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        """The inputs, the states before each step and weight_ih of each direction, as they are multiplied."""
        if not (self._copies_inputs or self._copies_states):
            return self._inputs.of(inputs), self._states_before(output, initial), weights
        sizes, copied = list[MatrixSizes](), list[Tensor]()
        if self._copies_inputs:
            sizes.append(self._inputs_copy)
            copied.append(inputs)
        if self._copies_inputs and weights:
            sizes.append(self._weight_copy)
            copied.append(weights[0].contiguous())
        above: list[Tensor | None] = [None] * len(copied)
        if self._copies_states:
            sizes.append(self._states_copy)
            copied.append(output)
            above.append(initial)
        copies = get_padded_rows(tuple(sizes), self._sizes.dtype, self._sizes.device)(copied, above)
        before = copies.pop() if self._copies_states else self._states_before(output, initial)
        if not self._copies_inputs:
            return self._inputs.of(inputs), before, weights
        return copies[0], before, copies[1:]

    def _states_before(self, output: Tensor, initial: Tensor | None) -> Tensor:
        before = self._before.of(output)
        return before if initial is None else torch.cat((initial, before))


def inputs_gradient(sizes: GradientSizes, d_gates: Tensor, weights: Sequence[Tensor], width: int) -> Tensor:
    """The gradient of a layer's inputs, [T, B, I]. weights: weight_ih of each direction; they may have padded columns."""
    shape, strides = (sizes.rows, sizes.wide), (sizes.wide, 1)
    gradient = torch.mm(View(shape, strides).of(d_gates), weights[0])
    for weight in weights[1:]:
        gradient.addmm_(View(shape, strides, sizes.rows * sizes.wide).of(d_gates), weight)
    gradient = _cropped(gradient, width)
    return View((sizes.steps, sizes.batch, width), (sizes.batch * width, width, 1)).of(gradient)


def _cropped(product: Tensor, width: int) -> Tensor:
    """The product without the columns that padding added, which those of one direction alone have."""
    padded = product.shape[-1]
    if padded == width:
        return product
    return View((product.shape[0], width), (padded, 1)).of(product).contiguous()


class WeightGradients:
    """The gradients of the parameters of one layer in D directions, and of its inputs.

    d_gates: [D, T, B, G*H], of pre-activations. d_product: [D, T, B, H] of GRU's product for n, None of other cells. inputs,
    output: [T, B, I] and [T, B, D*H]. initial: states before the first step [D, B, H], None for zeros. Of one direction D is
    left out. All are without gaps. is_padded: of products, whose copies have rows of whole vectors.
    """

    def __init__(self, sizes: GradientSizes, is_padded: bool = False):
        self._sizes, self._is_padded = sizes, is_padded
        self._suits_one_launch: dict[int, bool] = {}  # by the width of inputs
        self._products: dict[tuple[int, bool], GradientProducts] = {}  # by that, and whether initial states are given

    @cached_property
    def gates(self) -> EmptyFactory:
        """Allocates d_gates."""
        return self._sizes.factory(self._sizes.steps, self._sizes.batch, self._sizes.wide)

    @cached_property
    def product(self) -> EmptyFactory:
        """Allocates d_product."""
        return self._sizes.factory(self._sizes.steps, self._sizes.batch, self._sizes.hidden)

    def take_initial_states(self, width: int) -> bool:
        """Whether initial states may be given. width: I."""
        return self._sizes.directions == 1 or self._launch_of(width) is not None

    def for_layer(
        self, d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor, initial: Tensor | None,
        weights: Sequence[Tensor],
    ) -> tuple[list[Tensor], Tensor | None]:  # fmt: skip
        """The gradients of weight_ih, weight_hh, bias_ih and bias_hh of each direction, and of the inputs.

        weights: weight_ih of each direction, () where no gradient of inputs is wanted, which then is None.
        """
        width = inputs.shape[2]
        launch = self._launch_of(width)
        if launch is None:
            gradients, of_inputs = self._products_of(width, initial)(d_gates, d_product, inputs, output, initial, weights)
        else:
            gradients = launch(d_gates, d_product, inputs, output, initial)
            of_inputs = inputs_gradient(self._sizes, d_gates, weights, width) if weights else None
        if self._sizes.directions == 1:
            return [*gradients], of_inputs
        return [part for of_direction in zip(*map(halves, gradients), strict=True) for part in of_direction], of_inputs

    def _launch_of(self, width: int) -> ParameterGradients | None:
        """The launch for inputs of that width, None where products take its place."""
        sizes = self._sizes
        if width not in self._suits_one_launch:
            self._suits_one_launch[width] = sizes.suit_one_launch(width)
        if not self._suits_one_launch[width]:
            return None
        columns, hidden, directions = sizes.wide, sizes.hidden, sizes.directions
        return get_parameter_gradients(sizes.rows, sizes.batch, columns, hidden, width, sizes.dtype, sizes.device, directions)

    def _products_of(self, width: int, initial: Tensor | None) -> GradientProducts:
        key = width, initial is not None
        if key not in self._products:
            self._products[key] = GradientProducts(self._sizes, *key, self._is_padded)
        return self._products[key]
