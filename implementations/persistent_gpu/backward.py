"""The backward pass of all layers and directions of persistent_gpu: its launches, products and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.input_projection import held
from pytest_ecornn.implementations._common.padded_gemm import times, transposed_times
from pytest_ecornn.implementations._common.states_before import states_before
from pytest_ecornn.implementations._cuda.rows import adjacent, shape_of
from pytest_ecornn.implementations._cuda.streams import launch_beside
from pytest_ecornn.implementations.persistent_gpu.forward import Kept
from pytest_ecornn.implementations.persistent_gpu.kernel import Kind, launch_of
from pytest_ecornn.implementations.persistent_gpu.parameters import PER_TRACK, aligned
from pytest_ecornn.implementations.persistent_gpu.pending_launch import Ready, address, allocate, state_addresses
from pytest_ecornn.implementations.persistent_gpu.plan import How, Stack, check_tensor, get_plan, hidden_of


def backward(
    wanted: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], kept: Kept,
    d_results: Sequence[Tensor | None], lengths: Tensor | None, how: How, overwrites: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of x, the initial states and the weights, in that order, None where none is wanted.

    d_results: gradients of the results of `forward`, None for zeros. overwrites: saved tensors are no longer needed, so their
    memory is reused. Raises ValueError.
    """
    x = adjacent(x)
    way = get_plan(how, x.shape, len(weights), hidden_of(weights), x.dtype, x.device, True, lengths is not None)
    stack, kind = way.stack, way.kind.backward
    d_output, *d_finals = d_results
    d_output = x.new_zeros(stack.output) if d_output is None else adjacent(d_output)
    check_tensor("the output's gradient", d_output, stack.output, x.dtype, x.device)
    of_first, of_weights = wanted[1 : 1 + len(first)], wanted[1 + len(first) :]
    # Kernels write gradients of initial states that are not given, too: all to the same address, as nobody reads them.
    d_first = [allocate(kind, stack.state) for _ in first] or [allocate(kind, stack.state)] * stack.states
    one = _Backward(
        stack, kind, [state.contiguous() for state in first], weights, kept,
        [one if one is None else one.contiguous() for one in d_finals], d_first, lengths, overwrites, of_weights,
        [None] * len(weights),
    )  # fmt: skip
    layers, d_inputs = stack.tracks // stack.directions, d_output
    with held(x, how.tf32):
        for layer in reversed(range(layers)):
            d_inputs = one.layer(layer, kept.outputs[layer - 1] if layer else x, d_inputs, layer > 0 or wanted[0])
    of_states = [state if is_wanted else None for state, is_wanted in zip(d_first, of_first, strict=False)]
    return [d_inputs if wanted[0] else None, *of_states, *one.d_weights]


class _Backward(NamedTuple):
    stack: Stack
    kind: Kind
    first: Sequence[Tensor]
    weights: Sequence[Tensor | None]
    kept: Kept
    d_finals: Sequence[Tensor | None]
    d_first: Sequence[Tensor]
    lengths: Tensor | None
    overwrites: bool
    wanted: Sequence[bool]  # of the weights
    d_weights: list[Tensor | None]

    def layer(self, layer: int, inputs: Tensor, d_output: Tensor, wants_inputs: bool) -> Tensor:
        """Computes the gradients of a layer's weights; returns that of its inputs, where it is wanted."""
        found: list[Tensor] = []
        for direction, (d_gates, d_product) in enumerate(self._launched(layer, d_output)):
            track = layer * self.stack.directions + direction
            weight_ih = self.weights[PER_TRACK * track]
            self._find(track, d_gates.flatten(0, 1), d_product, inputs)
            if not wants_inputs:
                continue
            if weight_ih is None:
                found.append(d_gates)
            elif found:
                found[0].flatten(0, 1).addmm_(d_gates.flatten(0, 1), weight_ih)
            else:
                found.append(times(d_gates, weight_ih, self.kind.tf32))
        return torch.cat(found, 2) if len(found) > 1 else found[0] if found else d_output

    def _launched(self, layer: int, d_output: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields each direction's gradients: after both launches where they run at once, else before the other's launch."""
        one, found = self._track(layer, 0, d_output)
        if self.stack.directions > 1 and one.is_beside:
            other, others = self._track(layer, 1, d_output)
            launch_beside(one.make, other.make, d_output.device)
            yield found
            yield others
            return
        one.make()
        yield found
        if self.stack.directions > 1:
            other, others = self._track(layer, 1, d_output)
            other.make()
            yield others

    def _track(self, layer: int, direction: int, d_output: Tensor) -> tuple[Ready, tuple[Tensor, Tensor | None]]:
        """A track's launch, and the gradients that it writes: of its pre-activations, and of GRU's product for n."""
        stack, output = self.stack, self.kept.outputs[layer]
        track, offset = layer * stack.directions + direction, direction * stack.hidden * output.itemsize
        gates, cells, weight_hh = self.kept.gates[track], self.kept.cells[track], self.weights[PER_TRACK * track + 1]
        assert weight_hh is not None
        is_over = self.overwrites and gates.shape[2] == stack.wide
        d_gates = gates if is_over else allocate(self.kind, stack.gates)
        d_product = allocate(self.kind, shape_of(stack, stack.hidden)) if stack.how.cell == "gru" else None
        launch = launch_of(stack.shape, self.kind, direction > 0, stack.output_strides, stack.strides_of(d_output))
        weight = aligned(weight_hh, launch.width)
        addresses = (
            gates.data_ptr(), cells.data_ptr(), output.data_ptr() + offset, weight.data_ptr(),
            *state_addresses(self.first, stack, track), d_output.data_ptr() + offset,
            *state_addresses(self.d_finals, stack, track), d_gates.data_ptr(), address(d_product),
            *state_addresses(self.d_first, stack, track), address(self.lengths),
        )  # fmt: skip
        return Ready(launch, addresses, launch.is_beside, (weight,)), (d_gates, d_product)

    def _find(self, track: int, rows: Tensor, d_product: Tensor | None, inputs: Tensor) -> None:
        """Computes the gradients of a track's weights. rows: gradients of its pre-activations."""
        at = PER_TRACK * track
        of_input, of_states, of_bias_ih, of_bias_hh = self.wanted[at : at + PER_TRACK]
        # GRU multiplies by W_hn before r does, so that this product's gradient is another than the pre-activation's.
        found, of_product = self.d_weights, None if d_product is None else d_product.flatten(0, 1)
        if of_input:
            found[at] = transposed_times(rows, inputs.flatten(0, 1), self.kind.tf32)
        if of_states:
            found[at + 1] = self._of_states(track, rows, of_product)
        if of_bias_ih or of_bias_hh:
            of_ih, of_hh = self._of_biases(rows, of_product)
            found[at + 2], found[at + 3] = of_ih if of_bias_ih else None, of_hh if of_bias_hh else None

    def _of_biases(self, rows: Tensor, of_product: Tensor | None) -> tuple[Tensor, Tensor]:
        """The gradients of bias_ih and bias_hh, each in memory of its own."""
        found = rows.sum(0)
        return found, found.clone() if of_product is None else torch.cat((found[: self.stack.hidden * 2], of_product.sum(0)))

    def _of_states(self, track: int, rows: Tensor, of_product: Tensor | None) -> Tensor:
        """The gradient of weight_hh: rows^T h, h before each step."""
        stack = self.stack
        layer, reverse = divmod(track, stack.directions)
        output = self.kept.outputs[layer]
        if stack.directions > 1:
            output = output.narrow(2, reverse * stack.hidden, stack.hidden)
        if stack.batch_first or self.first or self.lengths is not None:
            first = self.first[0][track] if self.first else None
            before = states_before(output, first, self.lengths, stack.batch_first, bool(reverse)).flatten(0, 1)
        else:  # the first step starts from zeros
            later, earlier = slice(stack.batch, None), slice(-stack.batch)
            before, own = output.flatten(0, 1)[later if reverse else earlier], earlier if reverse else later
            rows, of_product = rows[own], None if of_product is None else of_product[own]
        if of_product is None:
            return transposed_times(rows, before, self.kind.tf32)
        cut, found = stack.hidden * 2, allocate(self.kind, (stack.wide, stack.hidden))
        transposed_times(rows[:, :cut], before, self.kind.tf32, into=found[:cut])
        transposed_times(of_product, before, self.kind.tf32, into=found[cut:])
        return found
