"""Contents whose states drift: keep gates are nearly open, and each step adds a little, nearly the same as the last.

In float32 it adds up. In 16 bits it is less than half a unit in the last place, and is lost, or rounded as often as it is
added. Recurrent weights are small, so that the rounding of their operands hides nothing. Loss weights have one sign, so that
gradients summed over steps and sequences grow as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn import cells
from pytest_ecornn.contract import Case

_OPEN = 6.0
_INPUT_GATE = "i"
_RECURRENT_SCALE = 2.0**-5
_NOISE = 2.0**-3  # of a step's input, beside what all of them share


def change_weight(cell: cells.Cell, name: str, value: Tensor) -> None:
    """In place: the input's bias opens keep gates and closes input gates; recurrent weights become small."""
    if name.startswith("bias_ih"):
        value += bias(cell, len(value) // len(cell.gates))
    if name.startswith("weight_hh"):
        value *= _RECURRENT_SCALE


def change_x(case: Case, values: Tensor, random: torch.Generator) -> None:
    """In place, [rows, width]: the same values in all rows, and a little noise."""
    values *= _NOISE
    values += torch.randn(values.shape[1], generator=random, dtype=values.dtype)
    if case.projected:
        values += bias(cells.get(case.cell), case.hidden_size).repeat(case.directions)


def bias(cell: cells.Cell, hidden: int) -> Tensor:
    """[G*H]."""
    by_gate = [_OPEN * cell.keep.get(gate, -1.0 if gate == _INPUT_GATE else 0.0) for gate in cell.gates]
    return torch.tensor(by_gate).repeat_interleave(hidden)
