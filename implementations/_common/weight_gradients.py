"""Gradients of a layer's parameters and inputs: of small layers in one launch, of others by products.

Their time is the host's where sizes are small. Time comes first, and no sequence has a length: so the state before a step is
the output of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from torch import Tensor

from pytest_ecornn.implementations._common.gradient_products import GradientProducts, inputs_gradient
from pytest_ecornn.implementations._common.gradient_sizes import GradientSizes
from pytest_ecornn.implementations._common.tensor_views import halves
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations._cuda.parameter_gradients import ParameterGradients, get_parameter_gradients


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
