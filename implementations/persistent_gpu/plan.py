"""A call of persistent_gpu: the shapes of its tensors, and what runs: computed once for calls that differ in contents alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, cells
from pytest_ecornn.implementations._common.gradient_sizes import GradientSizes
from pytest_ecornn.implementations._common.input_gemm import InputGemm
from pytest_ecornn.implementations._common.recurrent_problem import GATES, PARAMETERS
from pytest_ecornn.implementations._common.weight_gradients import WeightGradients
from pytest_ecornn.implementations._cuda.memory import EmptyFactory
from pytest_ecornn.implementations._cuda.rows import shape_of
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.input_gemm.gemm_3xtf32 import InputGemm3xTF32, make_fastest_input_gemm
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape, Strides, is_fused
from pytest_ecornn.implementations.persistent_gpu.parameters import PER_PSEUDO_LAYER, FrozenParameters
from pytest_ecornn.implementations.persistent_gpu.single_step import MAX_BACKWARD_SEQUENCES, is_applicable
from pytest_ecornn.implementations.persistent_gpu.wavefront import get_wavefronts_of_layers

_MAX_APART = 2**20  # saved gates of a pseudo-layer, of which the pre-activations are apart


class RNNOptions(NamedTuple):
    """projected: x holds the first layer's gate pre-activations. tf32: products of float32 in TF32."""

    cell: str
    batch_first: bool
    bidirectional: bool
    projected: bool
    tf32: bool

    @classmethod
    def of(cls, case: Case) -> RNNOptions:
        return cls(case.cell, case.batch_first, case.bidirectional, case.projected, case.precision == "tf32")


@dataclass(frozen=True, eq=False)
class RNNShape:
    """The sizes of a call. A pseudo-layer is one layer in one direction; they are in the order of torch.nn's states."""

    options: RNNOptions
    steps: int
    batch: int
    inputs: int
    hidden: int
    pseudo_layers: int

    @cached_property
    def batch_first(self) -> bool:
        return self.options.batch_first

    @cached_property
    def directions(self) -> int:
        return 2 if self.options.bidirectional else 1

    @cached_property
    def num_states(self) -> int:
        return 2 if self.options.cell == "lstm" else 1

    @property
    def input_width(self) -> int | None:
        """Inputs of the first layer, None where their product is given."""
        return None if self.options.projected else self.inputs

    @cached_property
    def gate_width(self) -> int:
        """Pre-activations of a step and sequence in one direction."""
        return GATES[self.options.cell] * self.hidden

    @cached_property
    def layer_shape(self) -> Shape:
        return Shape(self.options.cell, self.steps, self.batch, self.hidden, self.batch_first)

    @cached_property
    def output(self) -> tuple[int, int, int]:
        return shape_of(self, self.directions * self.hidden)

    @cached_property
    def output_strides(self) -> Strides:
        return self.strides(self.output[2])

    @cached_property
    def gates(self) -> tuple[int, int, int]:
        """Shape of a pseudo-layer's pre-activations."""
        return shape_of(self, self.gate_width)

    @cached_property
    def gates_strides(self) -> Strides:
        return self.strides(self.gate_width)

    @cached_property
    def state(self) -> tuple[int, int, int]:
        return self.pseudo_layers, self.batch, self.hidden

    @cached_property
    def saved_gates(self) -> tuple[int, int, int]:
        """Shape of a pseudo-layer's gates that are saved for backward: four values a unit of LSTM and GRU, none of RNN."""
        return shape_of(self, 4 * self.hidden if GATES[self.options.cell] > 1 else 0)

    @cached_property
    def saved_cells(self) -> tuple[int, int, int]:
        """Shape of a pseudo-layer's cells (float32) that are saved for backward, LSTM's alone."""
        return shape_of(self, self.hidden if self.options.cell == "lstm" else 0)

    @cached_property
    def parameters(self) -> list[tuple[str, tuple[int, ...] | None, bool]]:
        """Name and shape of each parameter, None for none, and whether it may be omitted."""
        parameters: list[tuple[str, tuple[int, ...] | None, bool]] = []
        rows = self.gate_width
        for pseudo_layer in range(self.pseudo_layers):
            inputs = self.inputs if pseudo_layer < self.directions else self.output[2]
            is_projected = self.options.projected and pseudo_layer < self.directions
            shapes = (None if is_projected else (rows, inputs), (rows, self.hidden), (rows,), (rows,))
            parameters += [(name, shape, len(shape or ()) == 1) for name, shape in zip(PARAMETERS, shapes, strict=True)]
        return parameters

    def strides(self, width: int) -> Strides:
        """Strides of rows of that width without gaps."""
        return (width, self.steps * width) if self.batch_first else (self.batch * width, width)

    def strides_of(self, rows: Tensor) -> Strides:
        outer, inner, _ = rows.stride()
        return (inner, outer) if self.batch_first else (outer, inner)

    def check(self, initial_states: Sequence[Tensor], lengths: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
        """Raises ValueError that says which states or lengths were expected and what was given."""
        if len(initial_states) not in (0, self.num_states):
            raise ValueError(
                f"expected no initial state of {self.options.cell}, or {self.num_states}, got {len(initial_states)}"
            )
        for name, state in zip(("first_h", "first_c"), initial_states, strict=False):
            check_tensor(name, state, self.state, dtype, device)
        if lengths is not None:
            check_tensor("lengths", lengths, (self.batch,), torch.int64, device)

    def check_weights(self, weights: Sequence[Tensor | None], dtype: torch.dtype, device: torch.device) -> None:
        """Raises ValueError that says which weight was expected and what was given."""
        for (name, shape, is_optional), weight in zip(self.parameters, weights, strict=True):
            if weight is None:
                if shape is not None and not is_optional:
                    raise ValueError(f"expected {name} as {shape}, got None")
            elif weight.shape != shape or weight.dtype != dtype or weight.device != device:
                _raise_mismatch(name, weight, shape, dtype, device)


def make_rnn_shape(options: RNNOptions, sizes: torch.Size, parameters: int, hidden: int | None) -> RNNShape:
    """The sizes of a call. sizes: of x. parameters: their number. hidden: of the first weight_hh, None for none.

    Raises ValueError for an unknown cell, x not of three dimensions, pre-activations of another width, or parameters that are
    not four of each pseudo-layer.
    """
    if options.cell not in GATES or len(sizes) != 3:
        raise ValueError(f"expected one of {', '.join(GATES)} and three dimensions, got {options.cell} and {tuple(sizes)}")
    pseudo_layers, odd = divmod(parameters, PER_PSEUDO_LAYER)
    if odd or hidden is None or pseudo_layers % (1 + options.bidirectional):
        raise ValueError(f"expected {', '.join(PARAMETERS)} of each layer and direction, got {parameters} parameters")
    outer, inner, inputs = sizes
    steps, batch = (inner, outer) if options.batch_first else (outer, inner)
    shape = RNNShape(options, steps, batch, inputs, hidden, pseudo_layers)
    if options.projected and inputs != shape.directions * shape.gate_width:
        raise ValueError(f"expected pre-activations of width {shape.directions * shape.gate_width}, got {tuple(sizes)}")
    return shape


def hidden_size_of(weights: Sequence[Tensor | None]) -> int | None:
    """H of the first weight_hh, None for none."""
    recurrent = weights[1] if len(weights) > 1 else None
    return None if recurrent is None else recurrent.shape[-1]


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """How calls run that differ in their tensors' contents alone: all that is computed once for them."""

    shape: RNNShape
    spec: KernelSpec

    @cached_property
    def is_single_step(self) -> bool:
        """Whether the kernel for one step runs, which computes the input product too and takes no lengths."""
        shape = self.shape
        widths = shape.input_width or 0, shape.output[2] * (shape.pseudo_layers > shape.directions)
        return is_applicable(shape.layer_shape, widths, self.spec.dtype) and not self.spec.lengths

    @cached_property
    def is_single_step_backward(self) -> bool:
        """Whether the kernel for one step backward runs, and products."""
        return self.shape.steps == 1 and self.shape.batch <= MAX_BACKWARD_SEQUENCES and not self.spec.lengths

    @cached_property
    def output(self) -> EmptyFactory:
        """Allocates a layer's output."""
        return EmptyFactory(self.shape.output, self.spec.dtype, self.spec.device)

    @cached_property
    def final(self) -> EmptyFactory:
        """Allocates the final h, or c, of all pseudo-layers."""
        return EmptyFactory(self.shape.state, self.spec.dtype, self.spec.device)

    @cached_property
    def gates(self) -> EmptyFactory:
        """Allocates a pseudo-layer's pre-activations."""
        return EmptyFactory(self.shape.gates, self.spec.dtype, self.spec.device)

    @cached_property
    def saved_gates(self) -> EmptyFactory:
        """Allocates a pseudo-layer's gates that are saved for backward."""
        return EmptyFactory(self.shape.saved_gates, self.spec.dtype, self.spec.device)

    @cached_property
    def saved_cells(self) -> EmptyFactory:
        """Allocates a pseudo-layer's cells that are saved for backward."""
        return EmptyFactory(self.shape.saved_cells, torch.float32, self.spec.device)

    @cached_property
    def is_fused(self) -> bool:
        """Whether the kernels for several steps compute all input products."""
        shape = self.shape
        return is_fused(shape.steps, shape.batch, shape.input_width, shape.hidden) and not self.spec.saves_for_backward

    @cached_property
    def shares_gates(self) -> bool:
        """Whether gates that are saved for backward take the place of the pre-activations.

        GRU's are wider. A product into a part of their rows takes the host as long as two, so of few each has its own memory.
        """
        rows, width = self.shape.steps * self.shape.batch, self.shape.saved_gates[2]
        return width == self.shape.gate_width or (width > 0 and rows * width > _MAX_APART)

    @cached_property
    def _input_gemms(self) -> dict[int, InputGemm | InputGemm3xTF32 | None]:
        return {}

    def input_gemm(self, width: int) -> InputGemm | InputGemm3xTF32 | None:
        """The input product of a layer of so many inputs, None where its sizes need other copies."""
        if width not in self._input_gemms:
            outer, (dtype, device, tf32, *_) = self.shape.output[:2], self.spec
            self._input_gemms[width] = make_fastest_input_gemm(outer, width, self.shape.gate_width, dtype, device, tf32)
        return self._input_gemms[width]

    @cached_property
    def weight_gradients(self) -> WeightGradients | None:
        """The gradients of weights, None where each direction has products of its own."""
        shape, spec = self.shape, self.spec
        if self.is_single_step_backward:
            return None
        sizes = GradientSizes(
            shape.steps, shape.batch, shape.hidden, shape.gate_width, shape.directions, splits_last=shape.options.cell == "gru",
            dtype=spec.dtype, device=spec.device, tf32=spec.tf32,
        )  # fmt: skip
        inner = (shape.output[2],) if shape.pseudo_layers > shape.directions else ()
        widths = *filter(None, (shape.input_width,)), *inner
        if shape.batch_first or not (sizes.suit_products(widths) or sizes.suit_launches(widths)):
            return None
        return WeightGradients(sizes, sizes.are_padded(widths))

    @cached_property
    def sizes_of_weights(self) -> tuple[object, ...]:
        """All sizes and types on which `check_weights` depends."""
        shape = self.shape
        return shape.options, shape.inputs, shape.hidden, shape.pseudo_layers, self.spec.dtype, self.spec.device

    @cached_property
    def fuses_input_gemm(self) -> bool:
        """Whether kernels compute all input products."""
        return self.is_single_step or self.is_fused

    @property
    def wavefronts(self) -> Sequence[WavefrontConfig | None]:
        """Waves of the layers from the first to the last; None: a layer on its own."""
        shape = self.shape
        layers = shape.pseudo_layers // shape.directions
        if self.is_single_step:
            return [None] * layers
        return get_wavefronts_of_layers(shape.layer_shape, self.spec, shape.directions, shape.input_width, layers)

    def check(self, initial_states: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None) -> None:
        """Raises ValueError that says what was expected and what was given."""
        dtype, device = self.spec.dtype, self.spec.device
        if initial_states or lengths is not None:
            self.shape.check(initial_states, lengths, dtype, device)
        if not isinstance(weights, FrozenParameters):
            self.shape.check_weights(weights, dtype, device)
        elif (sizes := self.sizes_of_weights) not in weights.fitting:
            self.shape.check_weights(weights, dtype, device)
            weights.fitting.add(sizes)


@lru_cache(maxsize=4096)
def get_plan(
    options: RNNOptions, sizes: torch.Size, parameters: int, hidden: int | None, dtype: torch.dtype, device: torch.device,
    saves_for_backward: bool, lengths: bool,
) -> ExecutionPlan:  # fmt: skip
    """How calls of those sizes and options run, kept from one call to the next. Raises ValueError as `make_rnn_shape` does."""
    spec = KernelSpec(dtype, device, options.tf32, saves_for_backward=saves_for_backward, lengths=lengths)
    return ExecutionPlan(make_rnn_shape(options, sizes, parameters, hidden), spec)


def plan_of_case(case: Case, device: torch.device) -> ExecutionPlan:
    """How calls of a case run on a device."""
    pseudo_layers, dtype = case.layers * case.directions, getattr(torch, case.dtype)
    outer = (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)
    sizes = torch.Size((*outer, cells.x_width(case)))
    parameters = PER_PSEUDO_LAYER * pseudo_layers
    return get_plan(
        RNNOptions.of(case), sizes, parameters, case.hidden_size, dtype, device, case.training, case.ragged
    )  # fmt: skip


def check_tensor(name: str, tensor: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device) -> None:
    """Raises ValueError that says what was expected and what was given."""
    if tensor.shape != shape or tensor.dtype != dtype or tensor.device != device:
        _raise_mismatch(name, tensor, shape, dtype, device)


def _raise_mismatch(name: str, tensor: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device) -> None:
    raise ValueError(
        f"expected {name} as {shape} of {dtype} on {device}, got {tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"
    )


class PendingLaunch(NamedTuple):
    """A pseudo-layer's launch. held: tensors that live until then. may_run_concurrently: with the other direction's."""

    kernel: Callable[..., None]
    addresses: tuple[int, ...]
    may_run_concurrently: bool
    held: tuple[Tensor | None, ...]

    def launch(self) -> None:
        self.kernel(self.addresses)


def state_addresses(states: Sequence[Tensor | None], shape: RNNShape, pseudo_layer: int) -> tuple[int, int]:
    """Addresses of a pseudo-layer's h and c, 0 for none."""
    if not states:
        return 0, 0
    offset = pseudo_layer and pseudo_layer * shape.batch * shape.hidden
    addresses = [0 if state is None else state.data_ptr() + offset * state.itemsize for state in states]
    return addresses[0], addresses[1] if len(addresses) > 1 else 0
