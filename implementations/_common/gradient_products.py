"""A layer's gradients by torch's products, on views and copies whose sizes are computed once.

Rows that the tensor cores read slowly, and states before each step that do not lie side by side, are copied in one launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.gradient_sizes import GradientSizes
from pytest_ecornn.implementations._common.tensor_views import View
from pytest_ecornn.implementations._cuda.bias_gradients import bias_gradients
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations._cuda.padded_rows import MatrixSizes, get_padded_rows


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
