"""The forward pass of all layers and directions of persistent_gpu: its products, launches and memory.

A call passes everything by address, so that the host takes little time between one launch and the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from pytest_ecornn.implementations._common.input_projection import held
from pytest_ecornn.implementations._common.padded_gemm import matmul_nt, matmul_nt_padded
from pytest_ecornn.implementations._cuda.memory import ZeroedPool, address
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim
from pytest_ecornn.implementations._cuda.streams import launch_concurrently
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, get_layer_kernel
from pytest_ecornn.implementations.persistent_gpu.parameters import (
    PER_PSEUDO_LAYER,
    ParameterPointers,
    aligned,
    parameter_pointers,
)
from pytest_ecornn.implementations.persistent_gpu.plan import (
    ExecutionPlan,
    PendingLaunch,
    RNNOptions,
    RNNShape,
    get_plan,
    hidden_size_of,
    state_addresses,
)
from pytest_ecornn.implementations.persistent_gpu.single_step import get_single_step_kernel
from pytest_ecornn.implementations.persistent_gpu.wavefront import get_wavefront_kernel


class SavedTensors(NamedTuple):
    """Tensors that are saved for backward: each layer's output, each pseudo-layer's gates and LSTM's cells."""

    outputs: list[Tensor]
    gates: list[Tensor]
    cells: list[Tensor]


def forward(
    x: Tensor,
    initial_states: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    lengths: Tensor | None,
    options: RNNOptions,
    saves_for_backward: bool = False,
) -> tuple[list[Tensor], SavedTensors]:
    """Output, final states of all pseudo-layers, and what is saved for backward, if anything is. Raises ValueError."""
    x = contiguous_last_dim(x)
    plan = get_plan(
        options, x.shape, len(weights), hidden_size_of(weights), x.dtype, x.device, saves_for_backward, lengths is not None
    )
    plan.check(initial_states, weights, lengths)
    return run(plan, x, [state.contiguous() for state in initial_states], weights, lengths)


def run(
    plan: ExecutionPlan,
    x: Tensor,
    initial_states: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    lengths: Tensor | None,
) -> tuple[list[Tensor], SavedTensors]:
    """`forward` of tensors that the plan has checked: x's last dimension has no gaps, initial states have none at all."""
    shape, spec, saved = plan.shape, plan.spec, SavedTensors([], [], [])
    final_states = [plan.final() for _ in range(shape.num_states)]
    zeroed = ZeroedPool(shape.pseudo_layers, spec.device)
    forward_pass = _Forward(plan, shape, spec, initial_states, weights, final_states, lengths, saved, zeroed)
    if plan.fuses_input_gemm:
        return [forward_pass.run(x), *final_states], saved
    with held(x, spec.tf32):
        return [forward_pass.run(x), *final_states], saved


class _Forward(NamedTuple):
    """shape, spec: the plan's."""

    plan: ExecutionPlan
    shape: RNNShape
    spec: KernelSpec
    initial_states: Sequence[Tensor]
    weights: Sequence[Tensor | None]
    final_states: Sequence[Tensor]
    lengths: Tensor | None
    saved: SavedTensors
    zeroed: ZeroedPool

    def run(self, x: Tensor) -> Tensor:
        """Runs all layers; returns the output of the last one."""
        layer = 0
        for wave in self.plan.wavefronts:
            x = self.layer(layer, x) if wave is None else self.wave(wave, layer, x)
            layer += 1 if wave is None else wave.layers
        return x

    def wave(self, wave: WavefrontConfig, first_layer: int, x: Tensor) -> Tensor:
        """Runs the wave's layers from `first_layer` on, in one direction; returns the last one's output."""
        shape, live = self.shape, list[Tensor | None]()  # until the kernel is launched
        x_strides, strides = shape.strides(x.shape[2]), shape.strides(shape.hidden)
        launch = get_wavefront_kernel(shape.layer_shape, self.spec, wave, x_strides, strides)
        x, addresses = aligned(x, launch.width), list[int]()
        for pseudo_layer in range(first_layer, first_layer + wave.layers):
            parameters = self._packed_parameters(pseudo_layer, launch.width)
            output, saved_gates, saved_cells = self.plan.output(), *self._allocate_saved()
            self.saved.outputs.append(output)
            addresses += (*parameters.addresses, output.data_ptr(), address(saved_gates), address(saved_cells))
            live += (*parameters.tensors, output, saved_gates, saved_cells)
        state_pointers = (
            *state_addresses(self.initial_states, shape, first_layer),
            *state_addresses(self.final_states, shape, first_layer),
        )
        launch((x.data_ptr(), *addresses, *state_pointers, address(self.lengths), *self.zeroed.take(launch.zeroed_bytes)))
        return output

    def layer(self, layer: int, x: Tensor) -> Tensor:
        output = self.plan.output()
        launch = self._pseudo_layer_launch(layer, 0, x, output)
        if self.shape.directions == 1:
            launch.launch()
        elif launch.may_run_concurrently:
            launch_concurrently(launch.launch, self._pseudo_layer_launch(layer, 1, x, output).launch, x.device)
        else:
            launch.launch()
            del launch  # and with it its pre-activations
            self._pseudo_layer_launch(layer, 1, x, output).launch()
        self.saved.outputs.append(output)
        return output

    def _pseudo_layer_launch(self, layer: int, direction: int, x: Tensor, output: Tensor) -> PendingLaunch:
        shape = self.shape
        pseudo_layer = layer * shape.directions + direction
        weight_ih = self.weights[PER_PSEUDO_LAYER * pseudo_layer]
        if weight_ih is not None and self.plan.is_single_step:
            return self._single_step_launch(pseudo_layer, x, output, direction)
        if weight_ih is not None and self.plan.is_fused:
            return self._fused_launch(pseudo_layer, x, output, direction)
        gates, saved_gates, saved_cells = self._gates(x, weight_ih, direction)
        launch = get_layer_kernel(shape.layer_shape, self.spec, direction > 0, shape.output_strides, shape.strides_of(gates))
        parameters = self._packed_parameters(pseudo_layer, launch.width, 1)
        addresses = (
            gates.data_ptr(), *parameters.addresses, *self._state_addresses(pseudo_layer, output, direction),
            address(saved_gates), address(saved_cells), *self.zeroed.take(launch.zeroed_bytes),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, launch.may_run_concurrently, (gates, *parameters.tensors))

    def _state_addresses(self, pseudo_layer: int, output: Tensor, direction: int) -> tuple[int, ...]:
        """Addresses of a pseudo-layer's arrays from the initial states on, but for those saved for backward."""
        shape = self.shape
        return (
            *state_addresses(self.initial_states, shape, pseudo_layer),
            output.data_ptr() + direction * shape.hidden * output.itemsize,
            *state_addresses(self.final_states, shape, pseudo_layer), address(self.lengths),
        )  # fmt: skip

    def _fused_launch(self, pseudo_layer: int, x: Tensor, output: Tensor, direction: int) -> PendingLaunch:
        """The launch of all steps of a pseudo-layer and its input product, which the kernel stores in `gates`."""
        shape, gates = self.shape, self.plan.gates()
        launch = get_layer_kernel(
            shape.layer_shape, self.spec, direction > 0, shape.output_strides, shape.gates_strides, x.shape[2]
        )
        x, parameters = aligned(x, launch.width), self._packed_parameters(pseudo_layer, launch.width)
        weight_ih, *others = parameters.addresses
        addresses = (
            x.data_ptr(), weight_ih, gates.data_ptr(), *others, *self._state_addresses(pseudo_layer, output, direction), 0, 0,
            *self.zeroed.take(launch.zeroed_bytes),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, launch.may_run_concurrently, (x, gates, *parameters.tensors))

    def _single_step_launch(self, pseudo_layer: int, x: Tensor, output: Tensor, direction: int) -> PendingLaunch:
        """The launch of a pseudo-layer of one step and its input product."""
        shape = self.shape
        launch = get_single_step_kernel(shape.options.cell, x.shape[2], shape.hidden, shape.batch, self.spec, output.shape[2])
        x, initial_states = aligned(x, launch.width), [aligned(state, launch.width) for state in self.initial_states]
        parameters, (saved_gates, saved_cells) = self._packed_parameters(pseudo_layer, launch.width), self._allocate_saved()
        addresses = (
            x.data_ptr(), *parameters.addresses, *state_addresses(initial_states, shape, pseudo_layer),
            output.data_ptr() + direction * shape.hidden * output.itemsize,
            *state_addresses(self.final_states, shape, pseudo_layer), address(saved_gates), address(saved_cells),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, False, (x, *parameters.tensors, *initial_states))

    def _packed_parameters(self, pseudo_layer: int, width: int, skipped: int = 0) -> ParameterPointers:
        """A pseudo-layer's parameters, without the first `skipped` of them."""
        start = PER_PSEUDO_LAYER * pseudo_layer
        return parameter_pointers(self.weights, start + skipped, start + PER_PSEUDO_LAYER, width)

    def _allocate_saved(self, gates: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Allocates what the next pseudo-layer saves for backward: its gates, unless given, and its cells; None for nothing."""
        if not self.spec.saves_for_backward:
            return None, None
        saved_gates, saved_cells = self.plan.saved_gates() if gates is None else gates, self.plan.saved_cells()
        self.saved.gates.append(saved_gates)
        self.saved.cells.append(saved_cells)
        return saved_gates, saved_cells

    def _gates(self, x: Tensor, weight: Tensor | None, direction: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """A pseudo-layer's pre-activations, saved gates and saved cells.

        Saved gates share the pre-activations' memory where that is memory of their own.
        """
        shape, width = self.shape, self.shape.saved_gates[2]
        if weight is None:
            return x.narrow(2, direction * shape.gate_width, shape.gate_width), *self._allocate_saved()
        is_shared = self.spec.saves_for_backward and self.plan.shares_gates
        gemm = self.plan.input_gemm(x.shape[2]) if width == shape.gate_width or not is_shared else None
        if gemm is not None and x.is_contiguous() and weight.is_contiguous():
            gates = gemm(x, weight)
            return gates, *self._allocate_saved(gates if is_shared else None)
        if not is_shared:
            return matmul_nt(x, weight, self.spec.tf32), *self._allocate_saved()
        rows = matmul_nt_padded(width, x, weight, self.spec.tf32)
        return rows if width == shape.gate_width else rows[..., : shape.gate_width], *self._allocate_saved(rows)
