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
from pytest_ecornn.implementations.persistent_gpu.wavefront import wave_launch_of


class SavedTensors(NamedTuple):
    """Tensors that are saved for backward: each layer's output, each track's gates and LSTM's cells."""

    outputs: list[Tensor]
    gates: list[Tensor]
    cells: list[Tensor]


def forward(
    x: Tensor,
    initial_states: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    lengths: Tensor | None,
    how: RNNOptions,
    keeps: bool = False,
) -> tuple[list[Tensor], SavedTensors]:
    """Output, final states of all tracks, and with `saves_for_backward` the tensors saved for backward. Raises ValueError."""
    x = contiguous_last_dim(x)
    way = get_plan(how, x.shape, len(weights), hidden_size_of(weights), x.dtype, x.device, keeps, lengths is not None)
    way.check(initial_states, weights, lengths)
    return run(way, x, [state.contiguous() for state in initial_states], weights, lengths)


def run(
    way: ExecutionPlan,
    x: Tensor,
    initial_states: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    lengths: Tensor | None,
) -> tuple[list[Tensor], SavedTensors]:
    """`forward` of tensors that the plan has checked: x's last dimension has no gaps, initial states have none at all."""
    stack, how = way.stack, way.stack.how
    final_states = [way.final() for _ in range(stack.num_states)]
    zeroed = ZeroedPool(stack.pseudo_layers, way.kind.device)
    one = _Forward(way, stack, way.kind, initial_states, weights, final_states, lengths, SavedTensors([], [], []), zeroed)
    if way.fuses_input_gemm:
        return [one.run(x), *final_states], one.kept
    with held(x, how.tf32):
        return [one.run(x), *final_states], one.kept


class _Forward(NamedTuple):
    """stack, kind: the way's."""

    way: ExecutionPlan
    stack: RNNShape
    kind: KernelSpec
    initial_states: Sequence[Tensor]
    weights: Sequence[Tensor | None]
    final_states: Sequence[Tensor]
    lengths: Tensor | None
    kept: SavedTensors
    zeroed: ZeroedPool

    def run(self, x: Tensor) -> Tensor:
        """Runs all layers; returns the output of the last one."""
        layer = 0
        for wave in self.way.wavefronts:
            x = self.layer(layer, x) if wave is None else self.wave(wave, layer, x)
            layer += 1 if wave is None else wave.layers
        return x

    def wave(self, wave: WavefrontConfig, first: int, x: Tensor) -> Tensor:
        """Runs the wave's layers from `first` on, in one direction; returns the last one's output."""
        stack, live = self.stack, list[Tensor | None]()  # until the kernel is launched
        x_strides, strides = stack.strides(x.shape[2]), stack.strides(stack.hidden)
        launch = wave_launch_of(stack.shape, self.kind, wave, x_strides, strides)
        x, addresses = aligned(x, launch.width), list[int]()
        for track in range(first, first + wave.layers):
            of_track = self._packed_parameters(track, launch.width)
            output, kept, cells = self.way.output(), *self._room()
            self.kept.outputs.append(output)
            addresses += (*of_track.addresses, output.data_ptr(), address(kept), address(cells))
            live += (*of_track.tensors, output, kept, cells)
        state_pointers = (
            *state_addresses(self.initial_states, stack, first),
            *state_addresses(self.final_states, stack, first),
        )
        launch((x.data_ptr(), *addresses, *state_pointers, address(self.lengths), *self.zeroed.take(launch.zeroed_bytes)))
        return output

    def layer(self, layer: int, x: Tensor) -> Tensor:
        output = self.way.output()
        one = self._pseudo_layer_launch(layer, 0, x, output)
        if self.stack.directions == 1:
            one.launch()
        elif one.may_run_concurrently:
            launch_concurrently(one.launch, self._pseudo_layer_launch(layer, 1, x, output).launch, x.device)
        else:
            one.launch()
            del one  # and with it its pre-activations
            self._pseudo_layer_launch(layer, 1, x, output).launch()
        self.kept.outputs.append(output)
        return output

    def _pseudo_layer_launch(self, layer: int, direction: int, x: Tensor, output: Tensor) -> PendingLaunch:
        stack = self.stack
        track = layer * stack.directions + direction
        weight_ih = self.weights[PER_PSEUDO_LAYER * track]
        if weight_ih is not None and self.way.is_single_step:
            return self._single_step_launch(track, x, output, direction)
        if weight_ih is not None and self.way.is_fused:
            return self._fused_launch(track, x, output, direction)
        gates, kept, cells = self._gates(x, weight_ih, direction)
        launch = get_layer_kernel(stack.shape, self.kind, direction > 0, stack.output_strides, stack.strides_of(gates))
        of_track = self._packed_parameters(track, launch.width, 1)
        addresses = (
            gates.data_ptr(), *of_track.addresses, *self._state_addresses(track, output, direction),
            address(kept), address(cells), *self.zeroed.take(launch.zeroed_bytes),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, launch.is_beside, (gates, *of_track.tensors))

    def _state_addresses(self, track: int, output: Tensor, direction: int) -> tuple[int, ...]:
        """Addresses of a track's arrays from the initial states on, but for those saved for backward."""
        stack = self.stack
        return (
            *state_addresses(self.initial_states, stack, track), output.data_ptr() + direction * stack.hidden * output.itemsize,
            *state_addresses(self.final_states, stack, track), address(self.lengths),
        )  # fmt: skip

    def _fused_launch(self, track: int, x: Tensor, output: Tensor, direction: int) -> PendingLaunch:
        """The launch of all steps of a track and its input product, which the kernel stores in `gates`."""
        stack, gates = self.stack, self.way.gates()
        launch = get_layer_kernel(stack.shape, self.kind, direction > 0, stack.output_strides, stack.gates_strides, x.shape[2])
        x, of_track = aligned(x, launch.width), self._packed_parameters(track, launch.width)
        weight_ih, *others = of_track.addresses
        addresses = (
            x.data_ptr(), weight_ih, gates.data_ptr(), *others, *self._state_addresses(track, output, direction), 0, 0,
            *self.zeroed.take(launch.zeroed_bytes),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, launch.is_beside, (x, gates, *of_track.tensors))

    def _single_step_launch(self, track: int, x: Tensor, output: Tensor, direction: int) -> PendingLaunch:
        """The launch of a track of one step and its input product."""
        stack = self.stack
        launch = get_single_step_kernel(stack.how.cell, x.shape[2], stack.hidden, stack.batch, self.kind, output.shape[2])
        x, initial_states = aligned(x, launch.width), [aligned(state, launch.width) for state in self.initial_states]
        of_track, (kept, cells) = self._packed_parameters(track, launch.width), self._room()
        addresses = (
            x.data_ptr(), *of_track.addresses, *state_addresses(initial_states, stack, track),
            output.data_ptr() + direction * stack.hidden * output.itemsize, *state_addresses(self.final_states, stack, track),
            address(kept), address(cells),
        )  # fmt: skip
        return PendingLaunch(launch, addresses, False, (x, *of_track.tensors, *initial_states))

    def _packed_parameters(self, track: int, width: int, but: int = 0) -> ParameterPointers:
        """A track's parameters, but for the first `but` of them."""
        return parameter_pointers(self.weights, PER_PSEUDO_LAYER * track + but, PER_PSEUDO_LAYER * (track + 1), width)

    def _room(self, gates: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Allocates the next track's gates, unless given, and its cells, to be saved for backward; None where none are."""
        if not self.kind.saves_for_backward:
            return None, None
        kept, cells = self.way.saved_gates() if gates is None else gates, self.way.saved_cells()
        self.kept.gates.append(kept)
        self.kept.cells.append(cells)
        return kept, cells

    def _gates(self, x: Tensor, weight: Tensor | None, direction: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """A track's pre-activations, saved gates and cells. Gates share the pre-activations' memory if that is their own."""
        stack, width = self.stack, self.stack.kept[2]
        if weight is None:
            return x.narrow(2, direction * stack.wide, stack.wide), *self._room()
        is_shared = self.kind.saves_for_backward and self.way.shares_gates
        gemm = self.way.input_gemm(x.shape[2]) if width == stack.wide or not is_shared else None
        if gemm is not None and x.is_contiguous() and weight.is_contiguous():
            gates = gemm(x, weight)
            return gates, *self._room(gates if is_shared else None)
        if not is_shared:
            return matmul_nt(x, weight, self.kind.tf32), *self._room()
        kept = matmul_nt_padded(width, x, weight, self.kind.tf32)
        return kept if width == stack.wide else kept[..., : stack.wide], *self._room(kept)
