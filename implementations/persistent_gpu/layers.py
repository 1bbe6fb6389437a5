"""All layers and directions of persistent_gpu, forward and backward: their products, launches and memory.

A call passes everything by address, so that the host takes little time between one launch and the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.input_projection import held
from pytest_ecornn.implementations._common.padded_gemm import times, times_transposed, times_transposed_in, transposed_times
from pytest_ecornn.implementations._common.recurrent_problem import GATES, PARAMETERS
from pytest_ecornn.implementations._cuda.memory import Room, empty
from pytest_ecornn.implementations._cuda.rows import adjacent, shape_of
from pytest_ecornn.implementations._cuda.streams import launch_beside
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import Wave
from pytest_ecornn.implementations.persistent_gpu.kernel import Kind, Shape, Strides, is_fused, launch_of
from pytest_ecornn.implementations.persistent_gpu.parameters import PER_TRACK, Fixed, Laid, aligned, laid
from pytest_ecornn.implementations.persistent_gpu.single_step import is_taken, once_of
from pytest_ecornn.implementations.persistent_gpu.wavefront import wave_launch_of, waves_of


class How(NamedTuple):
    """projected: x holds the first layer's gate pre-activations. tf32: products of float32 in TF32."""

    cell: str
    batch_first: bool
    bidirectional: bool
    projected: bool
    tf32: bool


@dataclass(frozen=True, eq=False)
class Stack:
    """The sizes of a call. A track is one layer in one direction; tracks are in the order of torch.nn's states."""

    how: How
    steps: int
    batch: int
    inputs: int
    hidden: int
    tracks: int

    @cached_property
    def batch_first(self) -> bool:
        return self.how.batch_first

    @cached_property
    def directions(self) -> int:
        return 2 if self.how.bidirectional else 1

    @cached_property
    def states(self) -> int:
        return 2 if self.how.cell == "lstm" else 1

    @property
    def multiplied(self) -> int | None:
        """Inputs of the first layer, None where their product is given."""
        return None if self.how.projected else self.inputs

    @cached_property
    def wide(self) -> int:
        """Pre-activations of a step and sequence in one direction."""
        return GATES[self.how.cell] * self.hidden

    @cached_property
    def shape(self) -> Shape:
        return Shape(self.how.cell, self.steps, self.batch, self.hidden, self.batch_first)

    @cached_property
    def output(self) -> tuple[int, int, int]:
        return shape_of(self, self.directions * self.hidden)

    @cached_property
    def output_strides(self) -> Strides:
        return self.strides(self.output[2])

    @cached_property
    def gates(self) -> tuple[int, int, int]:
        """Shape of a track's pre-activations."""
        return shape_of(self, self.wide)

    @cached_property
    def gates_strides(self) -> Strides:
        return self.strides(self.wide)

    @cached_property
    def state(self) -> tuple[int, int, int]:
        return self.tracks, self.batch, self.hidden

    @cached_property
    def kept(self) -> tuple[int, int, int]:
        """Shape of a track's gates that are saved for backward: four values a unit of LSTM and GRU, none of RNN."""
        return shape_of(self, 4 * self.hidden if GATES[self.how.cell] > 1 else 0)

    @cached_property
    def cells(self) -> tuple[int, int, int]:
        """Shape of a track's cells (float32) that are saved for backward, LSTM's alone."""
        return shape_of(self, self.hidden if self.how.cell == "lstm" else 0)

    @cached_property
    def parameters(self) -> list[tuple[str, tuple[int, ...] | None, bool]]:
        """Name and shape of each parameter, None for none, and whether it may be omitted."""
        found: list[tuple[str, tuple[int, ...] | None, bool]] = []
        for track in range(self.tracks):
            inputs = self.inputs if track < self.directions else self.output[2]
            is_given = self.how.projected and track < self.directions
            shapes = (None if is_given else (self.wide, inputs), (self.wide, self.hidden), (self.wide,), (self.wide,))
            found += [(name, shape, len(shape or ()) == 1) for name, shape in zip(PARAMETERS, shapes, strict=True)]
        return found

    def strides(self, width: int) -> Strides:
        """Strides of rows of that width without gaps."""
        return (width, self.steps * width) if self.batch_first else (self.batch * width, width)

    def strides_of(self, rows: Tensor) -> Strides:
        first, second, _ = rows.stride()
        return (second, first) if self.batch_first else (first, second)

    def check(self, first: Sequence[Tensor], lengths: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
        """Raises ValueError that says which states or lengths were expected and what was given."""
        if len(first) not in (0, self.states):
            raise ValueError(f"expected no initial state of {self.how.cell}, or {self.states}, got {len(first)}")
        for name, state in zip(("first_h", "first_c"), first, strict=False):
            _expect(name, state, self.state, dtype, device)
        if lengths is not None:
            _expect("lengths", lengths, (self.batch,), torch.int64, device)

    def check_weights(self, weights: Sequence[Tensor | None], dtype: torch.dtype, device: torch.device) -> None:
        """Raises ValueError that says which weight was expected and what was given."""
        for (name, shape, is_optional), weight in zip(self.parameters, weights, strict=True):
            if weight is None:
                if shape is not None and not is_optional:
                    raise ValueError(f"expected {name} as {shape}, got None")
            elif weight.shape != shape or weight.dtype != dtype or weight.device != device:
                _refuse(name, weight, shape, dtype, device)


def stack_of(how: How, sizes: torch.Size, parameters: int, hidden: int | None) -> Stack:
    """The sizes of a call. sizes: of x. parameters: their number. hidden: of the first weight_hh, None for none.

    Raises ValueError for an unknown cell, x not of three dimensions, pre-activations of another width, or parameters that are
    not four of each track.
    """
    if how.cell not in GATES or len(sizes) != 3:
        raise ValueError(f"expected one of {', '.join(GATES)} and three dimensions, got {how.cell} and {tuple(sizes)}")
    tracks, odd = divmod(parameters, PER_TRACK)
    if odd or hidden is None or tracks % (1 + how.bidirectional):
        raise ValueError(f"expected {', '.join(PARAMETERS)} of each layer and direction, got {parameters} parameters")
    outer, inner, inputs = sizes
    steps, batch = (inner, outer) if how.batch_first else (outer, inner)
    found = Stack(how, steps, batch, inputs, hidden, tracks)
    if how.projected and inputs != found.directions * found.wide:
        raise ValueError(f"expected pre-activations of width {found.directions * found.wide}, got {tuple(sizes)}")
    return found


def hidden_of(weights: Sequence[Tensor | None]) -> int | None:
    """H of the first weight_hh, None for none."""
    recurrent = weights[1] if len(weights) > 1 else None
    return None if recurrent is None else recurrent.shape[-1]


@dataclass(frozen=True, eq=False)
class Way:
    """How calls run that differ in their tensors' contents alone: all that is computed once for them."""

    stack: Stack
    kind: Kind

    @cached_property
    def is_once(self) -> bool:
        """Whether the kernel for one step runs, which computes the input product too."""
        return is_taken(self.stack.steps, self.stack.batch) and not self.kind.keeps

    @cached_property
    def output(self) -> Room:
        """Allocates a layer's output."""
        return Room(self.stack.output, self.kind.dtype, self.kind.device)

    @cached_property
    def final(self) -> Room:
        """Allocates the final h, or c, of all tracks."""
        return Room(self.stack.state, self.kind.dtype, self.kind.device)

    @cached_property
    def gates(self) -> Room:
        """Allocates a track's pre-activations."""
        return Room(self.stack.gates, self.kind.dtype, self.kind.device)

    @cached_property
    def is_fused(self) -> bool:
        """Whether the kernels for several steps compute all input products."""
        stack = self.stack
        return is_fused(stack.steps, stack.batch, stack.multiplied, stack.hidden) and not self.kind.keeps

    @cached_property
    def sizes_of_weights(self) -> tuple[object, ...]:
        """All sizes and types on which `check_weights` depends."""
        stack = self.stack
        return stack.how, stack.inputs, stack.hidden, stack.tracks, self.kind.dtype, self.kind.device

    @cached_property
    def makes_products(self) -> bool:
        """Whether kernels compute all input products."""
        return self.is_once or self.is_fused

    @property
    def waves(self) -> Sequence[Wave | None]:
        """Waves of the layers from the first to the last; None: a layer on its own."""
        stack = self.stack
        layers = stack.tracks // stack.directions
        if self.is_once:
            return [None] * layers
        return waves_of(stack.shape, self.kind, stack.directions, stack.multiplied, layers)

    def check(self, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None) -> None:
        """Raises ValueError that says what was expected and what was given."""
        dtype, device = self.kind.dtype, self.kind.device
        if first or lengths is not None:
            self.stack.check(first, lengths, dtype, device)
        if not isinstance(weights, Fixed):
            self.stack.check_weights(weights, dtype, device)
        elif (sizes := self.sizes_of_weights) not in weights.fitting:
            self.stack.check_weights(weights, dtype, device)
            weights.fitting.add(sizes)


@lru_cache(maxsize=4096)
def _way(
    how: How, sizes: torch.Size, parameters: int, hidden: int | None, dtype: torch.dtype, device: torch.device, keeps: bool,
    lengths: bool,
) -> Way:  # fmt: skip
    return Way(stack_of(how, sizes, parameters, hidden), Kind(dtype, device, how.tf32, keeps=keeps, lengths=lengths))


def _expect(name: str, found: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device) -> None:
    if found.shape != shape or found.dtype != dtype or found.device != device:
        _refuse(name, found, shape, dtype, device)


def _refuse(name: str, found: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device) -> None:
    raise ValueError(
        f"expected {name} as {shape} of {dtype} on {device}, got {tuple(found.shape)} of {found.dtype} on {found.device}"
    )


class Kept(NamedTuple):
    """Tensors that are saved for backward: each layer's output, each track's gates and LSTM's cells."""

    outputs: list[Tensor]
    gates: list[Tensor]
    cells: list[Tensor]


class Ready(NamedTuple):
    """A launch of one track. held: tensors that live until then. is_beside: the other direction's may run at the same time."""

    launch: Callable[..., None]
    addresses: tuple[int, ...]
    is_beside: bool
    held: tuple[Tensor | None, ...]

    def make(self) -> None:
        self.launch(self.addresses)


def forward(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, how: How, keeps: bool = False
) -> tuple[list[Tensor], Kept]:
    """Output, final states of all tracks, and with `keeps` the tensors saved for backward. Raises ValueError."""
    x = adjacent(x)
    way = _way(how, x.shape, len(weights), hidden_of(weights), x.dtype, x.device, keeps, lengths is not None)
    way.check(first, weights, lengths)
    stack = way.stack
    finals = [way.final() for _ in range(stack.states)]
    first = [state.contiguous() for state in first]
    one = _Forward(way, stack, way.kind, first, weights, finals, lengths, Kept([], [], []))
    if way.makes_products:
        return [one.run(x), *finals], one.kept
    with held(x, how.tf32):
        return [one.run(x), *finals], one.kept


class _Forward(NamedTuple):
    """stack, kind: the way's."""

    way: Way
    stack: Stack
    kind: Kind
    first: Sequence[Tensor]
    weights: Sequence[Tensor | None]
    finals: Sequence[Tensor]
    lengths: Tensor | None
    kept: Kept

    def run(self, x: Tensor) -> Tensor:
        """Runs all layers; returns the output of the last one."""
        layer = 0
        for wave in self.way.waves:
            x = self.layer(layer, x) if wave is None else self.wave(wave, layer, x)
            layer += 1 if wave is None else wave.layers
        return x

    def wave(self, wave: Wave, first: int, x: Tensor) -> Tensor:
        """Runs the wave's layers from `first` on, in one direction; returns the last one's output."""
        stack, live = self.stack, list[Tensor | None]()  # until the kernel is launched
        x_strides, strides = stack.strides(x.shape[2]), stack.strides(stack.hidden)
        launch = wave_launch_of(stack.shape, self.kind, wave, x_strides, strides)
        x, addresses = aligned(x, launch.width), list[int]()
        for track in range(first, first + wave.layers):
            of_track = self._laid(track, launch.width)
            output, kept, cells = self.way.output(), *self._room()
            self.kept.outputs.append(output)
            addresses += (*of_track.addresses, output.data_ptr(), _address(kept), _address(cells))
            live += (*of_track.tensors, output, kept, cells)
        states = (*_states(self.first, stack, first), *_states(self.finals, stack, first))
        launch((x.data_ptr(), *addresses, *states, _address(self.lengths)))
        return output

    def layer(self, layer: int, x: Tensor) -> Tensor:
        output = self.way.output()
        one = self._track(layer, 0, x, output)
        if self.stack.directions == 1:
            one.make()
        elif one.is_beside:
            launch_beside(one.make, self._track(layer, 1, x, output).make, x.device)
        else:
            one.make()
            del one  # and with it its pre-activations
            self._track(layer, 1, x, output).make()
        self.kept.outputs.append(output)
        return output

    def _track(self, layer: int, direction: int, x: Tensor, output: Tensor) -> Ready:
        stack = self.stack
        track = layer * stack.directions + direction
        weight_ih = self.weights[PER_TRACK * track]
        if weight_ih is not None and self.way.is_once:
            return self._once(track, x, output, direction)
        if weight_ih is not None and self.way.is_fused:
            return self._fused(track, x, output, direction)
        gates, kept, cells = self._gates(x, weight_ih, direction)
        launch = launch_of(stack.shape, self.kind, direction > 0, stack.output_strides, stack.strides_of(gates))
        of_track = self._laid(track, launch.width, 1)
        addresses = (
            gates.data_ptr(), *of_track.addresses, *self._others(track, output, direction), _address(kept), _address(cells),
        )  # fmt: skip
        return Ready(launch, addresses, launch.is_beside, (gates, *of_track.tensors))

    def _others(self, track: int, output: Tensor, direction: int) -> tuple[int, ...]:
        """Addresses of a track's arrays from the initial states on, but for those saved for backward."""
        stack = self.stack
        return (
            *_states(self.first, stack, track), output.data_ptr() + direction * stack.hidden * output.itemsize,
            *_states(self.finals, stack, track), _address(self.lengths),
        )  # fmt: skip

    def _fused(self, track: int, x: Tensor, output: Tensor, direction: int) -> Ready:
        """The launch of all steps of a track and its input product, which the kernel stores in `gates`."""
        stack, gates = self.stack, self.way.gates()
        launch = launch_of(stack.shape, self.kind, direction > 0, stack.output_strides, stack.gates_strides, x.shape[2])
        x, of_track = aligned(x, launch.width), self._laid(track, launch.width)
        weight_ih, *others = of_track.addresses
        addresses = (x.data_ptr(), weight_ih, gates.data_ptr(), *others, *self._others(track, output, direction), 0, 0)
        return Ready(launch, addresses, launch.is_beside, (x, gates, *of_track.tensors))

    def _once(self, track: int, x: Tensor, output: Tensor, direction: int) -> Ready:
        """The launch of a track of one step and its input product."""
        stack = self.stack
        launch = once_of(stack.how.cell, x.shape[2], stack.hidden, stack.batch, self.kind, output.shape[2])
        x, first = aligned(x, launch.width), [aligned(state, launch.width) for state in self.first]
        of_track = self._laid(track, launch.width)
        addresses = (
            x.data_ptr(), *of_track.addresses, *_states(first, stack, track),
            output.data_ptr() + direction * stack.hidden * output.itemsize, *_states(self.finals, stack, track),
        )  # fmt: skip
        return Ready(launch, addresses, False, (x, *of_track.tensors, *first))

    def _laid(self, track: int, width: int, but: int = 0) -> Laid:
        """A track's parameters, but for the first `but` of them."""
        return laid(self.weights, PER_TRACK * track + but, PER_TRACK * (track + 1), width)

    def _room(self, gates: Tensor | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Allocates the next track's gates, unless given, and its cells, to be saved for backward; None where none are."""
        if not self.kind.keeps:
            return None, None
        kept = _empty(self.kind, self.stack.kept) if gates is None else gates
        cells = empty(self.stack.cells, torch.float32, self.kind.device)
        self.kept.gates.append(kept)
        self.kept.cells.append(cells)
        return kept, cells

    def _gates(self, x: Tensor, weight: Tensor | None, direction: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """A track's pre-activations, saved gates and cells. Gates share the pre-activations' memory if that is their own."""
        stack, width = self.stack, self.stack.kept[2]
        if weight is None:
            return x.narrow(2, direction * stack.wide, stack.wide), *self._room()
        if not self.kind.keeps or not width:
            return times_transposed(x, weight, self.kind.tf32), *self._room()
        kept = times_transposed_in(width, x, weight, self.kind.tf32)
        return kept if width == stack.wide else kept[..., : stack.wide], *self._room(kept)


def _empty(kind: Kind, shape: tuple[int, ...]) -> Tensor:
    return empty(shape, kind.dtype, kind.device)


def _address(one: Tensor | None) -> int:
    return 0 if one is None else one.data_ptr()


def _states(all_tracks: Sequence[Tensor | None], stack: Stack, track: int) -> tuple[int, int]:
    """Addresses of a track's h and c, 0 for none."""
    if not all_tracks:
        return 0, 0
    offset = track and track * stack.batch * stack.hidden
    found = [0 if one is None else one.data_ptr() + offset * one.itemsize for one in all_tracks]
    return found[0], found[1] if len(found) > 1 else 0


def backward(
    wanted: Sequence[bool], x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], kept: Kept,
    d_results: Sequence[Tensor | None], lengths: Tensor | None, how: How, overwrites: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of x, the initial states and the weights, in that order, None where none is wanted.

    d_results: gradients of the results of `forward`, None for zeros. overwrites: saved tensors are no longer needed, so their
    memory is reused. Raises ValueError.
    """
    x = adjacent(x)
    way = _way(how, x.shape, len(weights), hidden_of(weights), x.dtype, x.device, True, lengths is not None)
    stack, kind = way.stack, way.kind.backward
    d_output, *d_finals = d_results
    d_output = x.new_zeros(stack.output) if d_output is None else adjacent(d_output)
    _expect("the output's gradient", d_output, stack.output, x.dtype, x.device)
    of_first, of_weights = wanted[1 : 1 + len(first)], wanted[1 + len(first) :]
    # Kernels write gradients of initial states that are not given, too: all to the same address, as nobody reads them.
    d_first = [_empty(kind, stack.state) for _ in first] or [_empty(kind, stack.state)] * stack.states
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
        d_gates = gates if is_over else _empty(self.kind, stack.gates)
        d_product = _empty(self.kind, shape_of(stack, stack.hidden)) if stack.how.cell == "gru" else None
        launch = launch_of(stack.shape, self.kind, direction > 0, stack.output_strides, stack.strides_of(d_output))
        weight = aligned(weight_hh, launch.width)
        addresses = (
            gates.data_ptr(), cells.data_ptr(), output.data_ptr() + offset, weight.data_ptr(),
            *_states(self.first, stack, track), d_output.data_ptr() + offset, *_states(self.d_finals, stack, track),
            d_gates.data_ptr(), _address(d_product), *_states(self.d_first, stack, track), _address(self.lengths),
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
        cut, found = stack.hidden * 2, _empty(self.kind, (stack.wide, stack.hidden))
        transposed_times(rows[:, :cut], before, self.kind.tf32, into=found[:cut])
        transposed_times(of_product, before, self.kind.tf32, into=found[cut:])
        return found


def states_before(output: Tensor, first: Tensor | None, lengths: Tensor | None, batch_first: bool, reverse: bool) -> Tensor:
    """h before each step, with the output's layout; 0 where a sequence has ended, as values there may not be finite."""
    time = 1 if batch_first else 0
    initial = output.new_zeros(output.select(time, 0).shape) if first is None else first
    inner = output.narrow(time, 1, output.shape[time] - 1) if reverse else output.narrow(time, 0, output.shape[time] - 1)
    parts = (inner, initial.unsqueeze(time)) if reverse else (initial.unsqueeze(time), inner)
    found = torch.cat(parts, time)
    if lengths is None:
        return found
    steps = torch.arange(output.shape[time], device=lengths.device)
    steps = steps[None, :] - lengths[:, None] if batch_first else steps[:, None] - lengths
    if reverse:
        found = torch.where((steps == -1)[..., None], initial.unsqueeze(time), found)
    return found.masked_fill((steps >= 0)[..., None], 0)
