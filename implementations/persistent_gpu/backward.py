"""The backward pass of all layers and directions of persistent_gpu: its launches, products and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations._common.input_projection import held
from pytest_ecornn.implementations._common.padded_gemm import matmul_nn, matmul_tn
from pytest_ecornn.implementations._common.padding import shifted_states, zero_padding
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations._common.weight_gradients import WeightGradients
from pytest_ecornn.implementations._cuda.bias_gradients import bias_gradients
from pytest_ecornn.implementations._cuda.memory import ZeroedPool, address
from pytest_ecornn.implementations._cuda.padded_rows import zero_padding_in_one_launch
from pytest_ecornn.implementations._cuda.parameter_gradients import LayerTensors, may_share_launch
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim, shape_of
from pytest_ecornn.implementations._cuda.streams import launch_concurrently
from pytest_ecornn.implementations.persistent_gpu.forward import SavedTensors
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, get_layer_kernel
from pytest_ecornn.implementations.persistent_gpu.parameters import PER_PSEUDO_LAYER, aligned
from pytest_ecornn.implementations.persistent_gpu.plan import (
    ExecutionPlan,
    PendingLaunch,
    RNNOptions,
    RNNShape,
    allocate,
    check_tensor,
    get_plan,
    hidden_size_of,
    state_addresses,
)
from pytest_ecornn.implementations.persistent_gpu.single_step import SingleStepBackwardConfig, get_single_step_backward

_DIMENSIONS = 3  # of one direction's gradients


def backward(
    wanted: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], kept: SavedTensors,
    d_results: Sequence[Tensor | None], lengths: Tensor | None, how: RNNOptions, overwrites: bool = False,
    plan: ExecutionPlan | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of x, the initial states and the weights, in that order, None where none is wanted.

    d_results: gradients of the results of `forward`, None for zeros. overwrites: saved tensors are no longer needed, so their
    memory is reused. plan: the forward pass's, None where it is not at hand. Raises ValueError.
    """
    x = contiguous_last_dim(x)
    way = plan or get_plan(how, x.shape, len(weights), hidden_size_of(weights), x.dtype, x.device, True, lengths is not None)
    stack, kind = way.stack, way.kind.backward
    d_output, *d_finals = d_results
    d_output = x.new_zeros(stack.output) if d_output is None else contiguous_last_dim(d_output)
    check_tensor("the output's gradient", d_output, stack.output, x.dtype, x.device)
    of_first, of_weights = wanted[1 : 1 + len(first)], wanted[1 + len(first) :]
    if lengths is not None and not how.projected and any(of_weights[: PER_PSEUDO_LAYER * stack.directions : PER_PSEUDO_LAYER]):
        masked = None if how.batch_first else zero_padding_in_one_launch(x, lengths)
        x = zero_padding(x, lengths, how.batch_first) if masked is None else masked
    grad_initial_states: list[Tensor | None]
    if way.is_single_step_backward:
        grad_initial_states = [allocate(kind, stack.state) if is_wanted else None for is_wanted in of_first]
    else:  # kernels write those that are not given, too: all to the same address, as nobody reads them
        grad_initial_states = [allocate(kind, stack.state) for _ in first] or [allocate(kind, stack.state)] * stack.num_states
    one = _Backward(
        stack, kind, [state.contiguous() for state in first], weights, kept,
        [one if one is None else one.contiguous() for one in d_finals], grad_initial_states, lengths, overwrites, of_weights,
        [None] * len(weights), way.weight_gradients, way.is_single_step_backward,
        ZeroedPool(stack.pseudo_layers, kind.device), {},
    )  # fmt: skip
    layers, d_inputs = stack.pseudo_layers // stack.directions, d_output
    with held(x, how.tf32):
        for layer in reversed(range(layers)):
            d_inputs = one.layer(layer, kept.outputs[layer - 1] if layer else x, d_inputs, layer > 0 or wanted[0])
        one.finish()
    of_states = [state if is_wanted else None for state, is_wanted in zip(grad_initial_states, of_first, strict=False)]
    return [d_inputs if wanted[0] else None, *of_states, *one.d_weights]


class _Backward(NamedTuple):
    stack: RNNShape
    kind: KernelSpec
    initial_states: Sequence[Tensor]
    weights: Sequence[Tensor | None]
    kept: SavedTensors
    grad_final_states: Sequence[Tensor | None]
    grad_initial_states: Sequence[Tensor | None]
    lengths: Tensor | None
    may_overwrite_saved: bool
    needs_input_grad: Sequence[bool]  # of the weights
    d_weights: list[Tensor | None]
    all_directions: WeightGradients | None  # computes gradients of weights of both directions at once; None: apart
    is_single_step: bool
    zeroed: ZeroedPool
    pending: dict[int, LayerTensors]  # of layers whose weights' gradients wait for others', by their first weight

    def layer(self, layer: int, inputs: Tensor, d_output: Tensor, wants_inputs: bool) -> Tensor:
        """Computes the gradients of a layer's weights; returns that of its inputs, where it is wanted."""
        gradients = self.all_directions
        if gradients is not None and self._suits(gradients, layer, inputs):
            return self._layer_at_once(gradients, layer, inputs, d_output, wants_inputs)
        found: list[Tensor] = []
        for direction, (d_gates, d_product) in enumerate(self._launch_directions(layer, d_output)):
            track = layer * self.stack.directions + direction
            weight_ih = self.weights[PER_PSEUDO_LAYER * track]
            self._weight_gradients(track, d_gates.flatten(0, 1), d_product, inputs)
            if not wants_inputs:
                continue
            if weight_ih is None:
                found.append(d_gates)
            elif found:
                found[0].flatten(0, 1).addmm_(d_gates.flatten(0, 1), weight_ih)
            else:
                found.append(matmul_nn(d_gates, weight_ih, self.kind.tf32))
        return torch.cat(found, 2) if len(found) > 1 else found[0] if found else d_output

    def _suits(self, gradients: WeightGradients, layer: int, inputs: Tensor) -> bool:
        """Whether the gradients of all of a layer's weights are wanted, and computed from tensors as these."""
        size = PER_PSEUDO_LAYER * self.stack.directions
        starts_apart = self.lengths is not None and self.stack.directions > 1  # in reverse, each sequence at its own end
        takes_states = not self.initial_states or (gradients.take_initial_states(inputs.shape[2]) and not starts_apart)
        return takes_states and inputs.is_contiguous() and all(self.needs_input_grad[layer * size : (layer + 1) * size])

    def _layer_at_once(
        self, gradients: WeightGradients, layer: int, inputs: Tensor, d_output: Tensor, wants_inputs: bool
    ) -> Tensor:
        """`layer` by memory that its directions share."""
        stack, gates = self.stack, self.kept.gates[layer * self.stack.directions]
        is_over = self.may_overwrite_saved and stack.directions == 1 and gates.shape[2] == stack.wide
        d_gates = gates if is_over else gradients.gates()
        d_product = gradients.product() if stack.how.cell == "gru" else None
        launches = [self._launch(layer, direction, d_output, d_gates, d_product) for direction in range(stack.directions)]
        if stack.directions > 1 and launches[0].may_run_concurrently:
            launch_concurrently(launches[0].launch, launches[1].launch, d_output.device)
        else:
            for launch in launches:
                launch.launch()
        first, size = layer * stack.directions * PER_PSEUDO_LAYER, stack.directions * PER_PSEUDO_LAYER
        of_input = [one for one in self.weights[first : first + size : PER_PSEUDO_LAYER] if one is not None and wants_inputs]
        initial = self.initial_states[0].narrow(0, layer * stack.directions, stack.directions) if self.initial_states else None
        if initial is not None and stack.directions == 1:
            initial = initial[0]
        tensors = LayerTensors(d_gates, d_product, inputs, self.kept.outputs[layer], initial)
        if gradients.suit_one_launch(inputs.shape[2]):
            if not may_share_launch([*self.pending.values()], tensors):
                self.finish()
            self.pending[first] = tensors
            of_inputs = gradients.of_inputs(d_gates, inputs.shape[2], of_input)
        else:
            found, of_inputs = gradients.for_layer(*tensors, of_input, may_have_gaps=layer > 0)
            self.d_weights[first : first + size] = found
        return d_output if of_inputs is None else of_inputs

    def finish(self) -> None:
        """Computes the gradients of the weights of all layers that wait for it, in one launch."""
        if self.all_directions is None or not self.pending:
            return
        size = PER_PSEUDO_LAYER * self.stack.directions
        found = self.all_directions.in_one_launch([*self.pending.values()])
        for first, gradients in zip(self.pending, found, strict=True):
            self.d_weights[first : first + size] = gradients
        self.pending.clear()

    def _launch_directions(self, layer: int, d_output: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields each direction's gradients: after both launches where they run at once, else before the other's launch."""
        if self.is_single_step:
            yield from ((self._single_step(layer, direction, d_output), None) for direction in range(self.stack.directions))
            return
        one, found = self._pseudo_layer_launch(layer, 0, d_output)
        if self.stack.directions > 1 and one.may_run_concurrently:
            other, others = self._pseudo_layer_launch(layer, 1, d_output)
            launch_concurrently(one.launch, other.launch, d_output.device)
            yield found
            yield others
            return
        one.launch()
        yield found
        if self.stack.directions > 1:
            other, others = self._pseudo_layer_launch(layer, 1, d_output)
            other.launch()
            yield others

    def _single_step(self, layer: int, direction: int, d_output: Tensor) -> Tensor:
        """Computes a track's gradients where T is 1, but for those by its inputs; returns that of its pre-activations."""
        stack, kind, output = self.stack, self.kind, self.kept.outputs[layer]
        track, offset = layer * stack.directions + direction, direction * stack.hidden * output.itemsize
        at, has_initial = PER_PSEUDO_LAYER * track, bool(self.initial_states)
        _, of_weight_hh, *of_biases = self.needs_input_grad[at : at + PER_PSEUDO_LAYER]
        d_gates = allocate(kind, stack.gates)
        d_recurrent = allocate(kind, stack.gates) if has_initial and stack.how.cell == "gru" else None
        biases = [allocate(kind, (stack.wide,)) if is_wanted else None for is_wanted in of_biases]
        zeros = allocate(kind, (stack.wide, stack.hidden)) if of_weight_hh and not has_initial else None
        form = SingleStepBackwardConfig(stack.how.cell, stack.hidden, stack.batch, zeros is not None)
        strides = stack.output_strides[1], stack.strides_of(d_output)[1]
        get_single_step_backward(form, kind, *strides)((
            self.kept.gates[track].data_ptr(), self.kept.cells[track].data_ptr(), output.data_ptr() + offset,
            *state_addresses(self.initial_states, stack, track), d_output.data_ptr() + offset,
            *state_addresses(self.grad_final_states, stack, track), d_gates.data_ptr(), address(d_recurrent),
            *state_addresses(self.grad_initial_states, stack, track), *map(address, biases), address(zeros),
        ))  # fmt: skip
        self.d_weights[at + 1 : at + PER_PSEUDO_LAYER] = zeros, *biases
        if has_initial:
            self._by_initial_state(track, (d_gates if d_recurrent is None else d_recurrent).flatten(0, 1), of_weight_hh)
        return d_gates

    def _by_initial_state(self, track: int, rows: Tensor, of_weight_hh: bool) -> None:
        """The products with h0 and W_hh where T is 1. rows: gradients of W_hh h0."""
        at, d_h0 = PER_PSEUDO_LAYER * track + 1, self.grad_initial_states[0]
        weight_hh = self.weights[at]
        assert weight_hh is not None
        if of_weight_hh:
            self.d_weights[at] = matmul_tn(rows, self.initial_states[0][track], self.kind.tf32)
        if d_h0 is not None:  # of GRU its kernel has stored what passes by the gates; `out` may not be used in grad mode
            d_h0[track].addmm_(rows, weight_hh, beta=int(self.stack.how.cell == "gru"))

    def _pseudo_layer_launch(
        self, layer: int, direction: int, d_output: Tensor
    ) -> tuple[PendingLaunch, tuple[Tensor, Tensor | None]]:
        """A track's launch, and the gradients that it writes: of its pre-activations, and of GRU's product for n."""
        stack, gates = self.stack, self.kept.gates[layer * self.stack.directions + direction]
        is_over = self.may_overwrite_saved and gates.shape[2] == stack.wide
        d_gates = gates if is_over else allocate(self.kind, stack.gates)
        d_product = allocate(self.kind, shape_of(stack, stack.hidden)) if stack.how.cell == "gru" else None
        return self._launch(layer, direction, d_output, d_gates, d_product), (d_gates, d_product)

    def _launch(self, layer: int, direction: int, d_output: Tensor, d_gates: Tensor, d_product: Tensor | None) -> PendingLaunch:
        """A track's launch. d_gates, d_product: what it writes, of both directions where they have a dimension more."""
        stack, output = self.stack, self.kept.outputs[layer]
        track, offset = layer * stack.directions + direction, direction * stack.hidden * output.itemsize
        gates, cells, weight_hh = self.kept.gates[track], self.kept.cells[track], self.weights[PER_PSEUDO_LAYER * track + 1]
        assert weight_hh is not None
        launch = get_layer_kernel(stack.shape, self.kind, direction > 0, stack.output_strides, stack.strides_of(d_output))
        weight = aligned(weight_hh, launch.width)
        addresses = (
            gates.data_ptr(), cells.data_ptr(), output.data_ptr() + offset, weight.data_ptr(),
            *state_addresses(self.initial_states, stack, track), d_output.data_ptr() + offset,
            *state_addresses(self.grad_final_states, stack, track),
            _address_of_direction(d_gates, direction), 0 if d_product is None else _address_of_direction(d_product, direction),
            *state_addresses(self.grad_initial_states, stack, track), address(self.lengths),
            *self.zeroed.take(launch.zeroed_bytes),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, launch.is_beside, (weight,))

    def _weight_gradients(self, track: int, rows: Tensor, d_product: Tensor | None, inputs: Tensor) -> None:
        """Computes the gradients of a track's weights. rows: gradients of its pre-activations."""
        at = PER_PSEUDO_LAYER * track
        of_input, of_states, of_bias_ih, of_bias_hh = self.needs_input_grad[at : at + PER_PSEUDO_LAYER]
        # GRU multiplies by W_hn before r does, so that this product's gradient is another than the pre-activation's.
        found, of_product = self.d_weights, None if d_product is None else d_product.flatten(0, 1)
        if of_input:
            found[at] = matmul_tn(rows, inputs.flatten(0, 1), self.kind.tf32)
        if self.is_single_step:  # its kernel has computed the others
            return
        if of_states:
            found[at + 1] = self._weight_hh_gradient(track, rows, of_product)
        if of_bias_ih or of_bias_hh:
            of_ih, of_hh = bias_gradients(rows, of_product)
            found[at + 2], found[at + 3] = of_ih if of_bias_ih else None, of_hh if of_bias_hh else None

    def _weight_hh_gradient(self, track: int, rows: Tensor, of_product: Tensor | None) -> Tensor:
        """The gradient of weight_hh: rows^T h, h before each step."""
        stack = self.stack
        layer, reverse = divmod(track, stack.directions)
        output = self.kept.outputs[layer]
        if stack.directions > 1:
            output = output.narrow(2, reverse * stack.hidden, stack.hidden)
        if stack.batch_first or self.initial_states:
            initial = self.initial_states[0][track] if self.initial_states else None
            before = shifted_states(output, initial, self.lengths, stack.batch_first, bool(reverse)).flatten(0, 1)
        else:  # the first step starts from zeros, which lie after a sequence's end too
            later, earlier = slice(stack.batch, None), slice(-stack.batch)
            before, own = output.flatten(0, 1)[later if reverse else earlier], earlier if reverse else later
            rows, of_product = rows[own], None if of_product is None else of_product[own]
        if of_product is None:
            return matmul_tn(rows, before, self.kind.tf32)
        cut, found = stack.hidden * 2, allocate(self.kind, (stack.wide, stack.hidden))
        matmul_tn(rows[:, :cut], before, self.kind.tf32, into=found[:cut])
        matmul_tn(of_product, before, self.kind.tf32, into=found[cut:])
        return found


def _address_of_direction(of_both: Tensor, direction: int) -> int:
    """The address of a direction's part of a tensor [2, T, B, ..]; of [T, B, ..], of one direction, its own."""
    if of_both.dim() == _DIMENSIONS:
        return of_both.data_ptr()
    return of_both.data_ptr() + direction * of_both.stride(0) * of_both.itemsize


def differentiable_gradients(
    wanted: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None,
    d_results: Sequence[Tensor | None], how: RNNOptions,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of `backward` from a loop over time, by torch's own operators in float32. None also where none is left.

    They support double backward. A backward pass with create_graph=True makes them. It computes the results once more, from
    what the call was given. The second backward pass multiplies in the process's precision. d_results: gradients of the
    results of `_loop`.
    """
    with torch.enable_grad(), held(x.float(), how.tf32):
        # Aliases, so that a gradient stops at them: one input may depend on another, or be the same tensor.
        aliases = [None if one is None else one.view_as(one) for one in (x, *first, *weights)]
        inputs = [one for one, is_wanted in zip(aliases, wanted, strict=True) if is_wanted and one is not None]
        of_states, of_weights = aliases[1 : 1 + len(first)], aliases[1 + len(first) :]
        assert aliases[0] is not None
        results = _loop(aliases[0], [one for one in of_states if one is not None], of_weights, lengths, how)
        pairs = [(result, gradient) for result, gradient in zip(results, d_results, strict=True) if gradient is not None]
        if not pairs:
            return [None] * len(wanted)
        outputs, gradients = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=True, allow_unused=True))
    return [next(found) if is_wanted else None for is_wanted in wanted]


def _loop(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, how: RNNOptions
) -> list[Tensor]:
    """Output and final states [L*D, B, H] of all layers and directions.

    x: [T, B, I], or [B, T, I] with batch_first; W_ih x without biases where projected. first: [L*D, B, H] each, () for zeros.
    weights: of each layer and direction weight_ih (None where x is projected), weight_hh, bias_ih and bias_hh (None for none).
    """
    cell, batch_first, bidirectional, is_projected, _ = how
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    _, weight_hh, *_ = weights
    assert weight_hh is not None
    hidden, directions = weight_hh.shape[1], 2 if bidirectional else 1
    case = Case(
        cell=cell, steps=steps, batch=batch, hidden_size=hidden, input_size=hidden if is_projected else x.shape[2],
        layers=len(weights) // PER_PSEUDO_LAYER // directions, bidirectional=bidirectional, batch_first=batch_first,
        projected=is_projected,
    )  # fmt: skip
    names = [name + suffix for _, _, suffix in cells.parameter_suffixes(case) for name in PARAMETERS]
    parameters = {name: weight.float() for name, weight in zip(names, weights, strict=True) if weight is not None}
    rows = x.float() if lengths is None else zero_padding(x.float(), lengths, batch_first)
    if is_projected:  # the reference adds no bias to what is projected
        zeros = rows.new_zeros(weight_hh.shape[0])
        rows = rows + torch.cat([parameters.get(f"bias_ih_l0{end}", zeros) for end in ("", "_reverse")[:directions]])
    output, final = cells.reference(case, parameters, rows, tuple(state.float() for state in first) or None, lengths)
    return [one.to(x.dtype) for one in (output, *cells.unpack_state(final))]
