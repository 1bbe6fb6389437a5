"""Gradients of a layer's parameters and inputs: of small layers in one launch, of others by products.

Their time is the host's where sizes are small. Time comes first, so the state before a step is the output of the step before.
With lengths that holds where gradients are not 0, unless a sequence starts in reverse from a given state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.gradient_sizes import GradientSizes
from pytest_ecornn.implementations._common.tensor_views import View, halves
from pytest_ecornn.implementations._cuda.bias_gradients import bias_gradients
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations._cuda.padded_rows import MatrixSizes, get_padded_rows
from pytest_ecornn.implementations._cuda.parameter_gradients import LayerTensors, get_parameter_gradients

Gradient = Tensor | list[Tensor]  # of both directions a tensor, or one each


class _Copies(NamedTuple):
    """Sizes of the matrices that are multiplied as copies with rows of whole vectors, None for those that are not copied.

    In 16 bits a column that this adds to inputs and states is ones, whose product is a bias's gradient.
    """

    gates: MatrixSizes | None
    product: MatrixSizes | None
    inputs: MatrixSizes | None
    weight: MatrixSizes | None
    states: MatrixSizes | None

    @classmethod
    def of(cls, sizes: GradientSizes, width: int, has_initial: bool, is_padded: bool) -> _Copies:
        """Arguments as of GradientProducts."""
        rows, gate_width, hidden, itemsize = sizes.rows, sizes.gate_width, sizes.hidden, sizes.dtype.itemsize
        of_vectors = partial(MatrixSizes.of_vectors, itemsize=itemsize)
        each = of_vectors(rows, gate_width), of_vectors(rows, hidden), of_vectors(rows, width, has_ones=itemsize == 2)
        gates, product, inputs = [size if is_padded and size.more_width else None for size in each]
        weight = of_vectors(gate_width, width, pads_rows=True) if gates or inputs else None
        states = of_vectors(rows, hidden, skipped=sizes.batch, has_ones=itemsize == 2)
        copies_states = is_padded if states.more_width else has_initial
        return cls(gates, product if sizes.splits_last else None, inputs, weight, states if copies_states else None)

    def make(self, sizes: GradientSizes, matrices: Sequence[Tensor | None], initial: Tensor | None) -> list[Any]:
        """The matrices, or their copies in one launch. initial: the states before the first step, None for zeros."""
        copied = [
            (size, matrix) for size, matrix in zip(self, matrices, strict=True) if size is not None and matrix is not None
        ]
        if not copied:
            return [*matrices]
        needed, originals = zip(*copied, strict=True)
        above = [None] * (len(copied) - 1) + [initial if self.states else None]
        copies = iter(get_padded_rows(needed, sizes.dtype, sizes.device)(originals, above))
        return [matrix if size is None or matrix is None else next(copies) for size, matrix in zip(self, matrices, strict=True)]


class _Part(NamedTuple):
    """Columns of a product that are a result. source, place: numbers of both. shape: of the columns' copy."""

    source: int
    place: int
    columns: View
    sizes: MatrixSizes
    shape: View

    @classmethod
    def of(cls, source: int, place: int, rows: int, width: int, padded_width: int, is_bias: bool = False) -> _Part:
        """The first `width` columns; of a bias the one after them."""
        columns, first, shape = (1, width, View((rows,), (1,))) if is_bias else (width, 0, View((rows, width), (width, 1)))
        sizes = MatrixSizes.of_part(rows, columns, padded_width)
        return cls(source, place, View((rows, columns), (padded_width, 1), first), sizes, shape)


class GradientProducts:
    """The gradients of a layer's parameters and inputs.

    width: I. has_initial: states start from given ones, of one direction alone. is_padded: copies have rows of whole vectors.
    """

    def __init__(self, sizes: GradientSizes, width: int, has_initial: bool, is_padded: bool):
        self._sizes, self._width = sizes, width
        self._product: Callable[..., Tensor] = torch.bmm if sizes.are_batched else torch.mm
        self._copies = copies = _Copies.of(sizes, width, has_initial, is_padded)
        self._of_all_steps = copies.states is not None or has_initial
        hidden, rows = sizes.hidden, sizes.rows
        pairs = (copies.gates, sizes.gate_width), (copies.product, hidden), (copies.inputs, width), (copies.states, hidden)
        gates, product, inputs, states = (unpadded if copied is None else copied.padded_width for copied, unpadded in pairs)
        self._gates_width, self._inputs_width, self._states_width = gates, inputs, states
        self._all_gates = self._matrices(rows * gates, (gates, rows), (1, gates))
        self._inputs = self._matrices(0, (rows, inputs), (inputs, 1))
        output_width = sizes.directions * hidden
        apart = sizes.batch * output_width + hidden
        self._before = self._matrices(apart, (rows - sizes.batch, hidden), (output_width, 1))
        # Rows of weight_hh's gradient, where it is two products: of the first those that padding adds are overwritten.
        gate_rows = sizes.gate_width - hidden if sizes.splits_last else gates
        padded_rows, all_rows = gate_rows + (-gate_rows % sizes.vector if copies.gates else 0), gate_rows + product
        self._state_gates, self._state_product = self._steps_of(gates, padded_rows), self._steps_of(product, product)
        self._first_rows = self._matrices(all_rows * states, (padded_rows, states), (states, 1))
        self._last_rows = self._matrices(all_rows * states, (product, states), (states, 1), gate_rows * states)
        self._weight_hh = sizes.factory(all_rows, states)

    def _steps_of(self, width: int, columns: int) -> Sequence[View]:
        """The first columns of rows of that width, transposed, of the steps whose states before are multiplied."""
        rows = self._sizes.rows
        skipped = 0 if self._of_all_steps else self._sizes.batch
        return self._matrices(rows * width - skipped * width, (columns, rows - skipped), (1, width), skipped * width)

    def _matrices(self, apart: int, shape: tuple[int, int], strides: tuple[int, int], offset: int = 0) -> Sequence[View]:
        """A matrix a direction, so many elements apart; of those that are multiplied at once one view."""
        if self._sizes.are_batched:
            return [View((2, *shape), (apart, *strides), offset)]
        return [View(shape, strides, offset + apart * direction) for direction in range(self._sizes.directions)]

    @cached_property
    def _sources_of_biases(self) -> Sequence[int]:
        """The products of which a column is the gradient of bias_ih and bias_hh: 0 the inputs', 1 the states'; () for none."""
        copies = self._copies.inputs, self._copies.states
        sources = [number for number, size in enumerate(copies) if size is not None and size.has_ones]
        return (sources[0], sources[-1]) if len(sources) > self._sizes.splits_last else ()

    @cached_property
    def _parts(self) -> list[_Part]:
        """The results that are parts of products: both weights', both biases', the inputs'."""
        rows, width, padded_width = self._sizes.gate_width, self._width, self._inputs_width
        weights = (rows, width, padded_width), (rows, self._sizes.hidden, self._states_width)
        parts = [_Part.of(i, i, *of) for i, of in enumerate(weights) if self._copies.gates or of[1] < of[2]]
        parts += [_Part.of(i, place, *weights[i], is_bias=True) for place, i in enumerate(self._sources_of_biases, 2)]
        return [*parts, _Part.of(4, 4, self._sizes.rows, width, padded_width)] if width < padded_width else parts

    def __call__(
        self, d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor, initial: Tensor | None,
        weights: Sequence[Tensor], may_have_gaps: bool = False,
    ) -> tuple[list[Any], Tensor | None]:  # fmt: skip
        """The gradients of weight_ih, weight_hh, bias_ih and bias_hh, and of the inputs, None without weights.

        Tensors as WeightGradients has them. weights: weight_ih of each direction, () where no gradient of inputs is wanted.
        """
        sizes, copies = self._sizes, self._copies
        weight = weights[0].contiguous() if weights and copies.weight else None
        matrices = d_gates, d_product, inputs, weight, output
        gates, product, rows, weight, states = copies.make(sizes, matrices, initial)
        before = [states] if copies.states else self._states_before(output, initial)
        weight_ih = self._products(self._all_gates, gates, [view.of(rows) for view in self._inputs])
        weight_hh = self._weight_hh_gradient(gates, product, before)
        biases = (None, None) if self._sources_of_biases else bias_gradients(d_gates, d_product, sizes.directions)
        multiplied = weights if weight is None else (weight,)
        of_inputs = inputs_product(sizes, gates, multiplied, self._gates_width) if weights else None
        has_gaps = may_have_gaps or of_inputs is None
        *gradients, of_inputs = self._without_padding((weight_ih, weight_hh, *biases, of_inputs), has_gaps)
        if of_inputs is None:
            return gradients, None
        return gradients, inputs_view(sizes, self._width, self._inputs_width if has_gaps else self._width).of(of_inputs)

    def _products(
        self, views: Sequence[View], gates: Tensor, factors: Sequence[Tensor], out: Sequence[Tensor | None] = (None, None)
    ) -> Gradient:
        """The product of each direction, or that of both."""
        operands = zip(views, factors, out, strict=False)
        products = [self._product(view.of(gates), factor, out=place) for view, factor, place in operands]
        return products[0] if len(products) == 1 else products

    def _weight_hh_gradient(self, gates: Tensor, product: Tensor | None, before: Sequence[Tensor]) -> Gradient:
        if product is None:
            return self._products(self._state_gates, gates, before)
        # W_hn is multiplied before r does, so that its product's gradient is another than the pre-activation's.
        weight_hh = self._weight_hh()
        self._products(self._state_gates, gates, before, [view.of(weight_hh) for view in self._first_rows])
        self._products(self._state_product, product, before, [view.of(weight_hh) for view in self._last_rows])
        return weight_hh

    def _without_padding(self, products: Sequence[Any], without_inputs: bool) -> list[Any]:
        """Products, of which those that padding made wider are copied in one launch; with biases' gradients from columns."""
        results, parts = [*products], self._parts
        if without_inputs and parts and parts[-1].place == 4:
            parts = parts[:-1]
        if not parts:
            return results
        sources = [part.columns.of(products[part.source]) for part in parts]
        copies = get_padded_rows(tuple([part.sizes for part in parts]), self._sizes.dtype, self._sizes.device)(sources)
        for part, copied in zip(parts, copies, strict=True):
            results[part.place] = part.shape.of(copied)
        return results

    def _states_before(self, output: Tensor, initial: Tensor | None) -> Sequence[Tensor]:
        before = [view.of(output) for view in self._before]
        return before if initial is None else [torch.cat((initial, *before))]


def inputs_product(sizes: GradientSizes, d_gates: Tensor, weights: Sequence[Tensor], width: int) -> Tensor:
    """The gradient of a layer's inputs [T*B, I]. weights: weight_ih of each direction. width: of rows of d_gates."""
    shape, strides = (sizes.rows, width), (width, 1)
    gradient = torch.mm(View(shape, strides).of(d_gates), weights[0])
    for weight in weights[1:]:
        gradient.addmm_(View(shape, strides, sizes.rows * width).of(d_gates), weight)
    return gradient


def inputs_view(sizes: GradientSizes, width: int, padded_width: int) -> View:
    """Rows of a gradient of inputs as [T, B, I]. padded_width: from one row to the next."""
    return View((sizes.steps, sizes.batch, width), (sizes.batch * padded_width, padded_width, 1))


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
        return self._sizes.factory(self._sizes.steps, self._sizes.batch, self._sizes.gate_width)

    @cached_property
    def product(self) -> EmptyFactory:
        """Allocates d_product."""
        return self._sizes.factory(self._sizes.steps, self._sizes.batch, self._sizes.hidden)

    def take_initial_states(self, width: int) -> bool:
        """Whether initial states may be given. width: I."""
        return self._sizes.directions == 1 or self.suit_one_launch(width)

    def for_layer(
        self, d_gates: Tensor, d_product: Tensor | None, inputs: Tensor, output: Tensor, initial: Tensor | None,
        weights: Sequence[Tensor], may_have_gaps: bool = False,
    ) -> tuple[list[Tensor], Tensor | None]:  # fmt: skip
        """The gradients of weight_ih, weight_hh, bias_ih and bias_hh of each direction, and of the inputs, by products.

        weights: weight_ih of each direction, () where no gradient of inputs is wanted, which then is None. may_have_gaps: the
        rows of the inputs' gradient, between them.
        """
        products = self._products_of(inputs.shape[2], initial)
        gradients, of_inputs = products(d_gates, d_product, inputs, output, initial, weights, may_have_gaps)
        return self._of_directions(gradients), of_inputs

    def of_inputs(self, d_gates: Tensor, width: int, weights: Sequence[Tensor]) -> Tensor | None:
        """The gradient of a layer's inputs. width: I. weights: weight_ih of each direction, () for none, and None."""
        if not weights:
            return None
        return inputs_view(self._sizes, width, width).of(inputs_product(self._sizes, d_gates, weights, self._sizes.gate_width))

    def in_one_launch(self, layers: Sequence[LayerTensors]) -> list[list[Tensor]]:
        """The gradients of weight_ih, weight_hh, bias_ih and bias_hh of each direction, for each of some layers at once.

        They are those that `may_share_launch`.
        """
        sizes, widths = self._sizes, tuple([layer.inputs.shape[2] for layer in layers])
        settings = sizes.dtype, sizes.device, sizes.directions
        of_layers = get_parameter_gradients(sizes.rows, sizes.batch, sizes.gate_width, sizes.hidden, widths, *settings)(layers)
        return of_layers if sizes.directions == 1 else [self._of_directions(gradients) for gradients in of_layers]

    def _of_directions(self, gradients: list[Any]) -> list[Tensor]:
        """The gradients of each direction, one after the other."""
        if self._sizes.directions == 1:
            return gradients
        pairs = [gradient if isinstance(gradient, list) else halves(gradient) for gradient in gradients]
        return [part for of_direction in zip(*pairs, strict=True) for part in of_direction]

    def suit_one_launch(self, width: int) -> bool:
        """Whether a layer's gradients are computed in a launch, beside others'. width: I."""
        if width not in self._suits_one_launch:
            self._suits_one_launch[width] = self._sizes.suit_one_launch(width)
        return self._suits_one_launch[width]

    def _products_of(self, width: int, initial: Tensor | None) -> GradientProducts:
        key = width, initial is not None
        if key not in self._products:
            self._products[key] = GradientProducts(self._sizes, *key, self._is_padded)
        return self._products[key]
