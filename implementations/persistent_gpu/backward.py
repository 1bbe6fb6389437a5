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
from pytest_ecornn.implementations._cuda.memory import ZeroedPool, address, empty
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
    check_tensor,
    get_plan,
    hidden_size_of,
    state_addresses,
)
from pytest_ecornn.implementations.persistent_gpu.single_step import SingleStepBackwardConfig, get_single_step_backward

_DIMENSIONS = 3  # of one direction's gradients


def backward(
    wanted: Sequence[bool], x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], saved: SavedTensors,
    d_results: Sequence[Tensor | None], lengths: Tensor | None, options: RNNOptions, overwrites: bool = False,
    plan: ExecutionPlan | None = None,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of x, the initial states and the weights, in that order, None where none is wanted.

    d_results: gradients of the results of `forward`, None for zeros. overwrites: saved tensors are no longer needed, so their
    memory is reused. plan: the forward pass's, None where it is not at hand. Raises ValueError.
    """
    x = contiguous_last_dim(x)
    if plan is None:
        hidden, has_lengths = hidden_size_of(weights), lengths is not None
        plan = get_plan(options, x.shape, len(weights), hidden, x.dtype, x.device, True, has_lengths)
    shape, spec = plan.shape, plan.spec.backward
    d_output, *d_finals = d_results
    d_output = x.new_zeros(shape.output) if d_output is None else contiguous_last_dim(d_output)
    check_tensor("the output's gradient", d_output, shape.output, x.dtype, x.device)
    of_states, of_weights = wanted[1 : 1 + len(initial_states)], wanted[1 + len(initial_states) :]
    of_first_weight_ih = of_weights[: PER_PSEUDO_LAYER * shape.directions : PER_PSEUDO_LAYER]
    if lengths is not None and not options.projected and any(of_first_weight_ih):
        masked = None if options.batch_first else zero_padding_in_one_launch(x, lengths)
        x = zero_padding(x, lengths, options.batch_first) if masked is None else masked
    grad_initial_states: list[Tensor | None]
    if plan.is_single_step_backward:
        grad_initial_states = [_allocate(spec, shape.state) if is_wanted else None for is_wanted in of_states]
    else:  # kernels write those that are not given, too: all to the same address, as nobody reads them
        grad_initial_states = [_allocate(spec, shape.state) for _ in initial_states]
        grad_initial_states = grad_initial_states or [_allocate(spec, shape.state)] * shape.num_states
    backward_pass = _Backward(
        shape, spec, [state.contiguous() for state in initial_states], weights, saved,
        [None if gradient is None else gradient.contiguous() for gradient in d_finals], grad_initial_states, lengths,
        overwrites, of_weights, [None] * len(weights), plan.weight_gradients, plan.is_single_step_backward,
        ZeroedPool(shape.pseudo_layers, spec.device), {},
    )  # fmt: skip
    layers, d_inputs = shape.pseudo_layers // shape.directions, d_output
    with held(x, options.tf32):
        for layer in reversed(range(layers)):
            inputs = saved.outputs[layer - 1] if layer else x
            d_inputs = backward_pass.layer(layer, inputs, d_inputs, layer > 0 or wanted[0])
        backward_pass.finish()
    d_states = [gradient if is_wanted else None for gradient, is_wanted in zip(grad_initial_states, of_states, strict=False)]
    return [d_inputs if wanted[0] else None, *d_states, *backward_pass.d_weights]


class _Backward(NamedTuple):
    shape: RNNShape
    spec: KernelSpec
    initial_states: Sequence[Tensor]
    weights: Sequence[Tensor | None]
    saved: SavedTensors
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
        d_inputs: list[Tensor] = []
        for direction, (d_gates, d_product) in enumerate(self._launch_directions(layer, d_output)):
            pseudo_layer = layer * self.shape.directions + direction
            weight_ih = self.weights[PER_PSEUDO_LAYER * pseudo_layer]
            self._weight_gradients(pseudo_layer, d_gates.flatten(0, 1), d_product, inputs)
            if not wants_inputs:
                continue
            if weight_ih is None:
                d_inputs.append(d_gates)
            elif d_inputs:
                d_inputs[0].flatten(0, 1).addmm_(d_gates.flatten(0, 1), weight_ih)
            else:
                d_inputs.append(matmul_nn(d_gates, weight_ih, self.spec.tf32))
        return torch.cat(d_inputs, 2) if len(d_inputs) > 1 else d_inputs[0] if d_inputs else d_output

    def _suits(self, gradients: WeightGradients, layer: int, inputs: Tensor) -> bool:
        """Whether the gradients of all of a layer's weights are wanted, and computed from tensors as these."""
        size = PER_PSEUDO_LAYER * self.shape.directions
        starts_apart = self.lengths is not None and self.shape.directions > 1  # in reverse, each sequence at its own end
        takes_states = not self.initial_states or (gradients.take_initial_states(inputs.shape[2]) and not starts_apart)
        return takes_states and inputs.is_contiguous() and all(self.needs_input_grad[layer * size : (layer + 1) * size])

    def _layer_at_once(
        self, gradients: WeightGradients, layer: int, inputs: Tensor, d_output: Tensor, wants_inputs: bool
    ) -> Tensor:
        """`layer` by memory that its directions share."""
        shape, gates = self.shape, self.saved.gates[layer * self.shape.directions]
        overwrites = self.may_overwrite_saved and shape.directions == 1 and gates.shape[2] == shape.gate_width
        d_gates = gates if overwrites else gradients.gates()
        d_product = gradients.product() if shape.options.cell == "gru" else None
        launches = [self._launch(layer, direction, d_output, d_gates, d_product) for direction in range(shape.directions)]
        if shape.directions > 1 and launches[0].may_run_concurrently:
            launch_concurrently(launches[0].launch, launches[1].launch, d_output.device)
        else:
            for launch in launches:
                launch.launch()
        start, size = layer * shape.directions * PER_PSEUDO_LAYER, shape.directions * PER_PSEUDO_LAYER
        weights_ih = self.weights[start : start + size : PER_PSEUDO_LAYER] if wants_inputs else ()
        multiplied = [weight for weight in weights_ih if weight is not None]
        h0 = self.initial_states[0].narrow(0, layer * shape.directions, shape.directions) if self.initial_states else None
        if h0 is not None and shape.directions == 1:
            h0 = h0[0]
        tensors = LayerTensors(d_gates, d_product, inputs, self.saved.outputs[layer], h0)
        if gradients.suit_one_launch(inputs.shape[2]):
            if not may_share_launch([*self.pending.values()], tensors):
                self.finish()
            self.pending[start] = tensors
            d_inputs = gradients.of_inputs(d_gates, inputs.shape[2], multiplied)
        else:
            d_weights, d_inputs = gradients.for_layer(*tensors, multiplied, may_have_gaps=layer > 0)
            self.d_weights[start : start + size] = d_weights
        return d_output if d_inputs is None else d_inputs

    def finish(self) -> None:
        """Computes the gradients of the weights of all layers that wait for it, in one launch."""
        if self.all_directions is None or not self.pending:
            return
        size = PER_PSEUDO_LAYER * self.shape.directions
        of_layers = self.all_directions.in_one_launch([*self.pending.values()])
        for start, gradients in zip(self.pending, of_layers, strict=True):
            self.d_weights[start : start + size] = gradients
        self.pending.clear()

    def _launch_directions(self, layer: int, d_output: Tensor) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yields each direction's gradients: after both launches where they run at once, else before the other's launch."""
        if self.is_single_step:
            yield from ((self._single_step(layer, direction, d_output), None) for direction in range(self.shape.directions))
            return
        launch, gradients = self._pseudo_layer_launch(layer, 0, d_output)
        if self.shape.directions > 1 and launch.may_run_concurrently:
            other_launch, other_gradients = self._pseudo_layer_launch(layer, 1, d_output)
            launch_concurrently(launch.launch, other_launch.launch, d_output.device)
            yield gradients
            yield other_gradients
            return
        launch.launch()
        yield gradients
        if self.shape.directions > 1:
            other_launch, other_gradients = self._pseudo_layer_launch(layer, 1, d_output)
            other_launch.launch()
            yield other_gradients

    def _single_step(self, layer: int, direction: int, d_output: Tensor) -> Tensor:
        """Computes a pseudo-layer's gradients where T is 1, without those by its inputs; returns its pre-activations' one."""
        shape, spec, output = self.shape, self.spec, self.saved.outputs[layer]
        pseudo_layer, offset = layer * shape.directions + direction, direction * shape.hidden * output.itemsize
        start, has_initial = PER_PSEUDO_LAYER * pseudo_layer, bool(self.initial_states)
        _, of_weight_hh, *of_biases = self.needs_input_grad[start : start + PER_PSEUDO_LAYER]
        d_gates = _allocate(spec, shape.gates)
        d_recurrent = _allocate(spec, shape.gates) if has_initial and shape.options.cell == "gru" else None
        biases = [_allocate(spec, (shape.gate_width,)) if is_wanted else None for is_wanted in of_biases]
        zeros = _allocate(spec, (shape.gate_width, shape.hidden)) if of_weight_hh and not has_initial else None
        form = SingleStepBackwardConfig(shape.options.cell, shape.hidden, shape.batch, zeros is not None)
        strides = shape.output_strides[1], shape.strides_of(d_output)[1]
        get_single_step_backward(form, spec, *strides)((
            self.saved.gates[pseudo_layer].data_ptr(), self.saved.cells[pseudo_layer].data_ptr(), output.data_ptr() + offset,
            *state_addresses(self.initial_states, shape, pseudo_layer), d_output.data_ptr() + offset,
            *state_addresses(self.grad_final_states, shape, pseudo_layer), d_gates.data_ptr(), address(d_recurrent),
            *state_addresses(self.grad_initial_states, shape, pseudo_layer), *map(address, biases), address(zeros),
        ))  # fmt: skip
        self.d_weights[start + 1 : start + PER_PSEUDO_LAYER] = zeros, *biases
        if has_initial:
            self._by_initial_state(pseudo_layer, (d_gates if d_recurrent is None else d_recurrent).flatten(0, 1), of_weight_hh)
        return d_gates

    def _by_initial_state(self, pseudo_layer: int, rows: Tensor, of_weight_hh: bool) -> None:
        """The products with h0 and W_hh where T is 1. rows: gradients of W_hh h0."""
        number, d_h0 = PER_PSEUDO_LAYER * pseudo_layer + 1, self.grad_initial_states[0]
        weight_hh = self.weights[number]
        assert weight_hh is not None
        if of_weight_hh:
            self.d_weights[number] = matmul_tn(rows, self.initial_states[0][pseudo_layer], self.spec.tf32)
        if d_h0 is not None:  # of GRU its kernel has stored what passes by the gates; `out` may not be used in grad mode
            d_h0[pseudo_layer].addmm_(rows, weight_hh, beta=int(self.shape.options.cell == "gru"))

    def _pseudo_layer_launch(
        self, layer: int, direction: int, d_output: Tensor
    ) -> tuple[PendingLaunch, tuple[Tensor, Tensor | None]]:
        """A pseudo-layer's launch, and the gradients that it writes: of its pre-activations, and of GRU's product for n."""
        shape, gates = self.shape, self.saved.gates[layer * self.shape.directions + direction]
        overwrites = self.may_overwrite_saved and gates.shape[2] == shape.gate_width
        d_gates = gates if overwrites else _allocate(self.spec, shape.gates)
        d_product = _allocate(self.spec, shape_of(shape, shape.hidden)) if shape.options.cell == "gru" else None
        return self._launch(layer, direction, d_output, d_gates, d_product), (d_gates, d_product)

    def _launch(self, layer: int, direction: int, d_output: Tensor, d_gates: Tensor, d_product: Tensor | None) -> PendingLaunch:
        """A pseudo-layer's launch. d_gates, d_product: what it writes, of both directions where they have a dimension more."""
        shape, output = self.shape, self.saved.outputs[layer]
        pseudo_layer, offset = layer * shape.directions + direction, direction * shape.hidden * output.itemsize
        gates, cells = self.saved.gates[pseudo_layer], self.saved.cells[pseudo_layer]
        weight_hh = self.weights[PER_PSEUDO_LAYER * pseudo_layer + 1]
        assert weight_hh is not None
        launch = get_layer_kernel(shape.layer_shape, self.spec, direction > 0, shape.output_strides, shape.strides_of(d_output))
        weight = aligned(weight_hh, launch.width)
        addresses = (
            gates.data_ptr(), cells.data_ptr(), output.data_ptr() + offset, weight.data_ptr(),
            *state_addresses(self.initial_states, shape, pseudo_layer), d_output.data_ptr() + offset,
            *state_addresses(self.grad_final_states, shape, pseudo_layer),
            _address_of_direction(d_gates, direction), 0 if d_product is None else _address_of_direction(d_product, direction),
            *state_addresses(self.grad_initial_states, shape, pseudo_layer), address(self.lengths),
            *self.zeroed.take(launch.zeroed_bytes),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, launch.may_run_concurrently, (weight,))

    def _weight_gradients(self, pseudo_layer: int, rows: Tensor, d_product: Tensor | None, inputs: Tensor) -> None:
        """Computes the gradients of a pseudo-layer's weights. rows: gradients of its pre-activations."""
        start = PER_PSEUDO_LAYER * pseudo_layer
        of_input, of_states, of_bias_ih, of_bias_hh = self.needs_input_grad[start : start + PER_PSEUDO_LAYER]
        # GRU multiplies by W_hn before r does, so that this product's gradient is another than the pre-activation's.
        d_weights, of_product = self.d_weights, None if d_product is None else d_product.flatten(0, 1)
        if of_input:
            d_weights[start] = matmul_tn(rows, inputs.flatten(0, 1), self.spec.tf32)
        if self.is_single_step:  # its kernel has computed the others
            return
        if of_states:
            d_weights[start + 1] = self._weight_hh_gradient(pseudo_layer, rows, of_product)
        if of_bias_ih or of_bias_hh:
            of_ih, of_hh = bias_gradients(rows, of_product)
            d_weights[start + 2], d_weights[start + 3] = of_ih if of_bias_ih else None, of_hh if of_bias_hh else None

    def _weight_hh_gradient(self, pseudo_layer: int, rows: Tensor, of_product: Tensor | None) -> Tensor:
        """The gradient of weight_hh: rows^T h, h before each step."""
        shape = self.shape
        layer, reverse = divmod(pseudo_layer, shape.directions)
        output = self.saved.outputs[layer]
        if shape.directions > 1:
            output = output.narrow(2, reverse * shape.hidden, shape.hidden)
        if shape.batch_first or self.initial_states:
            h0 = self.initial_states[0][pseudo_layer] if self.initial_states else None
            before = shifted_states(output, h0, self.lengths, shape.batch_first, bool(reverse)).flatten(0, 1)
        else:  # the first step starts from zeros, which lie after a sequence's end too
            later, earlier = slice(shape.batch, None), slice(-shape.batch)
            steps, steps_before = (earlier, later) if reverse else (later, earlier)
            before = output.flatten(0, 1)[steps_before]
            rows, of_product = rows[steps], None if of_product is None else of_product[steps]
        if of_product is None:
            return matmul_tn(rows, before, self.spec.tf32)
        first_rows, gradient = shape.hidden * 2, _allocate(self.spec, (shape.gate_width, shape.hidden))
        matmul_tn(rows[:, :first_rows], before, self.spec.tf32, into=gradient[:first_rows])
        matmul_tn(of_product, before, self.spec.tf32, into=gradient[first_rows:])
        return gradient


def _allocate(spec: KernelSpec, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor of the kernels' dtype and device."""
    return empty(shape, spec.dtype, spec.device)


def _address_of_direction(of_both: Tensor, direction: int) -> int:
    """The address of a direction's part of a tensor [2, T, B, ..]; of [T, B, ..], of one direction, its own."""
    if of_both.dim() == _DIMENSIONS:
        return of_both.data_ptr()
    return of_both.data_ptr() + direction * of_both.stride(0) * of_both.itemsize


def differentiable_gradients(
    wanted: Sequence[bool], x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None],
    lengths: Tensor | None, d_results: Sequence[Tensor | None], options: RNNOptions,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of `backward` from a loop over time, by torch's own operators in float32. None also where none is left.

    They support double backward. A backward pass with create_graph=True makes them. It computes the results once more, from
    what the call was given. The second backward pass multiplies in the process's precision. d_results: gradients of the
    results of `_loop`.
    """
    with torch.enable_grad(), held(x.float(), options.tf32):
        # Aliases, so that a gradient stops at them: one input may depend on another, or be the same tensor.
        aliases = [None if tensor is None else tensor.view_as(tensor) for tensor in (x, *initial_states, *weights)]
        inputs = [alias for alias, is_wanted in zip(aliases, wanted, strict=True) if is_wanted and alias is not None]
        states = [alias for alias in aliases[1 : 1 + len(initial_states)] if alias is not None]
        assert aliases[0] is not None
        results = _loop(aliases[0], states, aliases[1 + len(initial_states) :], lengths, options)
        pairs = [(result, gradient) for result, gradient in zip(results, d_results, strict=True) if gradient is not None]
        if not pairs:
            return [None] * len(wanted)
        outputs, gradients = zip(*pairs, strict=True)
        all_gradients = iter(torch.autograd.grad(outputs, inputs, gradients, create_graph=True, allow_unused=True))
    return [next(all_gradients) if is_wanted else None for is_wanted in wanted]


def _loop(
    x: Tensor, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, options: RNNOptions
) -> list[Tensor]:
    """Output and final states [L*D, B, H] of all layers and directions.

    x: [T, B, I], or [B, T, I] with batch_first; W_ih x without biases where projected. initial_states: [L*D, B, H] each, () for
    zeros. weights: of each layer and direction weight_ih (None where x is projected), weight_hh, bias_ih and bias_hh (None for
    none).
    """
    cell, batch_first, bidirectional, is_projected, _ = options
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
    output, final = cells.reference(case, parameters, rows, tuple(state.float() for state in initial_states) or None, lengths)
    return [result.to(x.dtype) for result in (output, *cells.unpack_state(final))]
