"""Layers and directions by fused_cpu: differentiable through `ops.py`, without gradients straight to the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import Case, State, WeightRounding, Weights, cells
from pytest_ecornn.contract.weight_rounding import round_matrix
from pytest_ecornn.implementations._common.autograd_ops import can_skip_dispatch, wants_gradient
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations._cpu.machine_code import CpuKernel
from pytest_ecornn.implementations._cuda.rows import contiguous_last_dim
from pytest_ecornn.implementations.fused_cpu.layout import FEW_SEQUENCES, Packed, packed_for, packed_in
from pytest_ecornn.implementations.fused_cpu.ops import recur
from pytest_ecornn.implementations.fused_cpu.recurrence import Recurrence, Rows, States

FEW_ROWS = 8  # steps times sequences, up to which the kernel multiplies by W_ih too


def takes_inputs(rows: int, batch: int, w_ih: Tensor) -> bool:
    """Whether the kernel multiplies by W_ih too, step by step: what fits in the first-level caches is read there again.

    rows: steps times sequences. More sequences share what is read.
    """
    return rows <= FEW_ROWS or w_ih.numel() <= (2**13 if batch <= FEW_SEQUENCES else 2**16)


class TrackWeights(NamedTuple):
    """torch.nn's parameters of a layer in one direction, in the computing type. w_ih: None where x holds its product."""

    w_ih: Tensor | None
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None

    def gates(self, x: Tensor) -> Tensor:
        """The gates' pre-activations W_ih x + b_ih."""
        assert self.w_ih is not None
        return linear(x if x.dtype == self.w_ih.dtype else x.to(self.w_ih.dtype), self.w_ih, self.b_ih)

    def rounded(self, rounding: WeightRounding) -> TrackWeights:
        """W_ih rounded: torch multiplies by it. The kernel multiplies by packed copies alone."""
        return self if self.w_ih is None or rounding == "none" else self._replace(w_ih=round_matrix(self.w_ih, rounding))


class Stack:
    """Layers in one or both directions. threads: at most so many run them."""

    def __init__(
        self, cell: str, hidden: int, dtype: torch.dtype, batch_first: bool, bidirectional: bool, threads: int,
        weight_dtype: torch.dtype | None = None,
    ):  # fmt: skip
        """weight_dtype: of the packed weights of each call, None for the computing type. Others have no gradients."""
        self._is_rounded = weight_dtype is not None
        self._hidden, self._dtype, self._batch_first = hidden, dtype, batch_first
        self._directions, self._num_states = 1 + bidirectional, len(cells.get(cell).states)
        self._recurrences = {
            (x_dtype, direction): Recurrence(cell, hidden, x_dtype, dtype, batch_first, bool(direction), threads, weight_dtype)
            for x_dtype in {dtype, torch.promote_types(dtype, torch.float32)}
            for direction in range(1 + bidirectional)
        }

    def compile(self, x_dtype: torch.dtype, training: bool) -> None:
        """Compiles the kernels of calls whose first layer reads x of that dtype."""
        recurrence = self._recurrences[x_dtype, 0]
        _ = recurrence.forward_kernel, training and recurrence.backward_kernel

    def kernels(self, training: bool) -> list[CpuKernel]:
        """The kernels of all calls."""
        forward = [recurrence.kernel("forward") for recurrence in self._recurrences.values()]
        backward = [recurrence.kernel("backward") for recurrence in self._recurrences.values() if training]
        return [*dict.fromkeys(forward + backward)]

    def __call__(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        tracks: Sequence[TrackWeights],
        lengths: Tensor | None,
        resets: Tensor | None = None,
        packed: Sequence[Packed] = (),
    ) -> list[Tensor]:
        """Output [.., D*H] laid out as x, and final states [L*D, B, H]. states: () for zeros. packed: the tracks' weights."""
        x, states = x.resolve_neg(), [state.resolve_neg() for state in states]  # whose memory the kernels read
        if self._is_rounded:
            with torch.no_grad():  # ops know no rounded weights
                return self._infer(x, states, tracks, lengths, resets, packed)
        given = x, *states, lengths, resets
        weights = [one for track in tracks for one in track]
        if x.numel() and can_skip_dispatch((*given, *weights)) and not wants_gradient((*given, *weights)):
            return self._infer(x, states, tracks, lengths, resets, packed)
        return self._run(x, states, tracks, lengths, resets)

    def _infer(
        self, x: Tensor, states: Sequence[Tensor], tracks: Sequence[TrackWeights], lengths: Tensor | None,
        resets: Tensor | None, packed: Sequence[Packed],
    ) -> list[Tensor]:  # fmt: skip
        """Without gradients: final states and both directions' outputs are written where they belong."""
        directions, hidden, dtype = self._directions, self._hidden, self._dtype
        steps, batch = (x.shape[1], x.shape[0]) if self._batch_first else (x.shape[0], x.shape[1])
        finals = [x.new_empty(len(tracks), batch, hidden, dtype=dtype) for _ in range(self._num_states)]
        states = [state.contiguous() for state in states]
        lengths = None if lengths is None else lengths.contiguous()
        width, size = directions * hidden, batch * hidden * dtype.itemsize
        strides = (width, steps * width) if self._batch_first else (batch * width, width)
        x = contiguous_last_dim(x)
        for first in range(0, len(tracks), directions):
            output = x.new_empty(*x.shape[:2], width, dtype=dtype)
            for direction in range(directions):
                track = first + direction
                gates, weights = self._operands(x, tracks[track], direction, packed[track] if packed else None)
                addresses = _states(states, finals, track * size)
                out = Rows(output.data_ptr() + direction * hidden * dtype.itemsize, *strides)
                self._recurrences[gates.dtype, direction].forward(gates, weights, addresses, out, lengths, resets)
            x = output
        return [x, *finals]

    def _operands(self, x: Tensor, track: TrackWeights, direction: int, packed: Packed | None) -> tuple[Tensor, Packed]:
        """What a kernel reads of x, and the weights by which it multiplies."""
        batch, rows = x.shape[0 if self._batch_first else 1], x.shape[0] * x.shape[1]
        pack_for = partial(packed_for, 1 if rows <= FEW_ROWS else batch)  # to pack would take longer than a few rows do
        if track.w_ih is None:
            x = self._part(x, direction)
        elif not takes_inputs(rows, batch, track.w_ih):
            x = track.gates(x)
        else:
            return x, packed or pack_for(track.w_hh, track.b_hh, track.w_ih, track.b_ih)
        return x, packed.without_inputs() if packed else pack_for(track.w_hh, track.b_hh)

    def _part(self, x: Tensor, direction: int) -> Tensor:
        """A direction's part of pre-activations."""
        return x if self._directions == 1 else x.chunk(2, -1)[direction]

    def _run(
        self, x: Tensor, states: Sequence[Tensor], tracks: Sequence[TrackWeights], lengths: Tensor | None,
        resets: Tensor | None,
    ) -> list[Tensor]:  # fmt: skip
        """Differentiable, or observed."""
        finals: list[tuple[Tensor, ...]] = []
        for first in range(0, len(tracks), self._directions):
            outputs: list[Tensor] = []
            for direction, track in enumerate(tracks[first : first + self._directions]):
                gates = self._part(x, direction) if track.w_ih is None else track.gates(x)
                h0, c0 = (*(state[first + direction] for state in states), None, None)[:2]
                recurrence = self._recurrences[gates.dtype, direction]
                output, *final = recur(recurrence, gates, h0, c0, track.w_hh, track.b_hh, lengths, resets)
                outputs.append(output)
                finals.append(tuple(final[: self._num_states]))
            x = outputs[0] if self._directions == 1 else torch.cat(outputs, -1)
        return [x, *map(torch.stack, zip(*finals, strict=True))]


def _states(states: Sequence[Tensor], finals: Sequence[Tensor], offset: int) -> States:
    """Addresses of a track's initial states, if there are any, and of its final ones."""
    h0, c0 = (*(state.data_ptr() + offset for state in states), 0, 0)[:2]
    hn, cn = (*(state.data_ptr() + offset for state in finals), 0)[:2]
    return States(h0, c0, hn, cn)


class CaseStack:
    """The layer of a case. In inference of more than a few sequences weights are packed when it is built."""

    def __init__(self, case: Case, weights: Weights, threads: int, rounding: WeightRounding = "none"):
        """rounding: of weights, in inference; those that are rounded are packed for any number of sequences."""
        self._case, self._weights = case, weights
        dtype, self._weight_dtype = getattr(torch, case.dtype), None if rounding == "none" else getattr(torch, rounding)
        self._compute = torch.promote_types(dtype, torch.float32)
        self._stack = Stack(
            case.cell, case.hidden_size, dtype, case.batch_first, case.bidirectional, threads, self._weight_dtype
        )
        self._packed: list[Packed] = []
        self._tracks: list[TrackWeights] | None = None
        if not case.training:
            with torch.no_grad():
                tracks = self._read()
                self._packed = [self._pack(track) for track in tracks]
                self._tracks = [track.rounded(rounding) for track in tracks]
        first = self._packed[0] if self._packed else None
        takes_x = case.projected or (first is not None and first.w_ih is not None)
        self._stack.compile(dtype if takes_x else self._compute, case.training)

    def _pack(self, track: TrackWeights) -> Packed:
        batch = self._case.batch
        is_kernels = track.w_ih is not None and takes_inputs(self._case.steps * batch, batch, track.w_ih)
        weights = track.w_hh, track.b_hh, track.w_ih if is_kernels else None, track.b_ih
        return packed_for(batch, *weights) if self._weight_dtype is None else packed_in(self._weight_dtype, *weights)

    def _read(self) -> list[TrackWeights]:
        """The parameters in the computing type, their patterns applied."""
        return [
            TrackWeights(*(self._parameter(name + suffix) for name in PARAMETERS))  # type: ignore[arg-type]
            for _, _, suffix in cells.parameter_suffixes(self._case)
        ]

    def _parameter(self, name: str) -> Tensor | None:
        if name not in self._weights:
            return None
        parameter = self._weights.masked(name)
        return parameter if parameter.dtype == self._compute else parameter.to(self._compute)

    def __call__(self, x: Tensor, state: State, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, State]:
        may_train = torch.is_grad_enabled() and self._weight_dtype is None
        tracks = self._read() if self._tracks is None or may_train else self._tracks
        output, *final = self._stack(x, cells.unpack_state(state), tracks, lengths, resets, self._packed)
        return output, tuple(final) if len(final) > 1 else final[0]
