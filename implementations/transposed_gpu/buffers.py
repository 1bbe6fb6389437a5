"""The arrays of the transposed-layout layer: how they lie in memory, and what a layer in one direction keeps of its steps.

Every array is [T, B, F] to the code around it; only its strides say whether the batch is the minor dimension (EcoRNN's layout:
F, T, B in memory) or the features are (T, B, F). Products and copies follow the strides, so one code serves both.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, cells

_ALIGNMENT = 256  # bytes
_OPERAND_FEATURES = 8  # a multiple
_SAVED = {"lstm": 4, "gru": 4}  # blocks of [B, H] that a step leaves for the backward pass


@dataclass(frozen=True)
class Form:
    """A case, the device that it runs on, and the layout."""

    case: Case
    device: torch.device
    is_batch_minor: bool

    @property
    def storage(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.case.dtype)
        return dtype

    @property
    def compute(self) -> torch.dtype:
        return torch.promote_types(self.storage, torch.float32)

    @property
    def gates(self) -> int:
        """Rows of a recurrent weight."""
        return len(cells.get(self.case.cell).gates) * self.case.hidden_size

    @property
    def saved(self) -> int:
        """Features of the array of gates."""
        return _SAVED.get(self.case.cell, 1) * self.case.hidden_size

    def padded(self, features: int) -> int:
        """Rounds features up to the number that a product's operand has: tensor cores read 16 bytes at a time."""
        on_tensor_cores = self.storage.itemsize == 2 or self.case.precision == "tf32"
        return -(-features // _OPERAND_FEATURES) * _OPERAND_FEATURES if on_tensor_cores else features

    @property
    def h_features(self) -> int:
        return self.padded(self.case.hidden_size)

    @property
    def gate_features(self) -> int:
        return self.padded(self.gates)

    @property
    def largest_array(self) -> int:
        """Elements, at most, of any array that a kernel is given."""
        return (self.case.steps + 1) * self.case.batch * max(self.saved, self.h_features, self.gate_features)

    @property
    def leading_dims(self) -> tuple[int, int]:
        """The first two dimensions of x and of the output, as the case lays them out."""
        case = self.case
        return (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)

    @property
    def num_pseudo_layers(self) -> int:
        """Layers times directions."""
        return self.case.layers * self.case.directions

    def view_as_layout(self, memory: Tensor, steps: int, features: int) -> Tensor:
        """[steps, B, features] in `memory`, which has as many elements."""
        batch = self.case.batch
        if self.is_batch_minor:
            return memory.view(features, steps, batch).permute(1, 2, 0)
        return memory.view(steps, batch, features)

    def empty(self, steps: int, features: int, dtype: torch.dtype) -> Tensor:
        memory = torch.empty(steps * self.case.batch * features, dtype=dtype, device=self.device)
        return self.view_as_layout(memory, steps, features)


@dataclass(frozen=True)
class PseudoLayerBuffers:
    """One layer in one direction. gates [T, B, S*H], state [T+1, B, H]: computing type; h [T+1, B, h_features]: storage."""

    gates: Tensor
    state: Tensor
    h: Tensor
    is_reverse: bool

    @property
    def output(self) -> Tensor:
        """h after each step, [T, B, h_features]."""
        return self.h[:-1] if self.is_reverse else self.h[1:]

    @property
    def h_before(self) -> Tensor:
        """h before each step, [T, B, h_features]."""
        return self.h[1:] if self.is_reverse else self.h[:-1]

    @property
    def initial_index(self) -> int:
        """The index of the initial state."""
        return -1 if self.is_reverse else 0

    @property
    def final_index(self) -> int:
        return 0 if self.is_reverse else -1


def reserve_bytes(form: Form) -> int:
    """Bytes of memory that all tracks together need."""
    return sum(_bytes(form, *shape) for shape in _shapes(form)) * form.num_pseudo_layers


def reserve(form: Form) -> Tensor:
    """Memory for all tracks. Its contents are as undefined as the tracks', but for what lies between them: zero."""
    size = reserve_bytes(form)
    used = (
        sum(steps * form.case.batch * features * dtype.itemsize for steps, features, dtype in _shapes(form))
        * form.num_pseudo_layers
    )
    return (torch.empty if used == size else torch.zeros)(size, dtype=torch.uint8, device=form.device)


def make_pseudo_layers(form: Form, memory: Tensor) -> list[PseudoLayerBuffers]:
    """The tracks in `memory`, uint8 [reserve_bytes], inputs first."""
    found, start = [], 0
    for track in range(form.num_pseudo_layers):
        arrays = []
        for steps, features, dtype in _shapes(form):
            count = steps * form.case.batch * features * dtype.itemsize
            arrays.append(form.view_as_layout(memory[start : start + count].view(dtype), steps, features))
            start += _bytes(form, steps, features, dtype)
        gates, state, h = arrays
        found.append(PseudoLayerBuffers(gates, state, h, is_reverse=bool(track % form.case.directions)))
    return found


def _shapes(form: Form) -> list[tuple[int, int, torch.dtype]]:
    steps, hidden = form.case.steps, form.case.hidden_size
    return [(steps, form.saved, form.compute), (steps + 1, hidden, form.compute), (steps + 1, form.h_features, form.storage)]


def _bytes(form: Form, steps: int, features: int, dtype: torch.dtype) -> int:
    count = steps * form.case.batch * features * dtype.itemsize
    return -(-count // _ALIGNMENT) * _ALIGNMENT


class Gradients:
    """Arrays that a track's backward pass works in. d_gates_h is d_gates_x where both products' gradients are the same."""

    def __init__(self, form: Form):
        steps, hidden = form.case.steps, form.case.hidden_size
        self.d_output = form.empty(steps, hidden, form.compute)
        self.d_gates_x = form.empty(steps, form.gate_features, form.storage)
        self.d_gates_h = form.empty(steps, form.gate_features, form.storage) if form.case.cell == "gru" else self.d_gates_x
        for d_gates in (self.d_gates_x, self.d_gates_h):
            d_gates[:, :, form.gates :].zero_()
        self.passed = form.empty(1, hidden, form.compute)
        self.d_cell = form.empty(1, hidden, form.compute)
        self.product = form.empty(1, form.h_features, form.compute)
