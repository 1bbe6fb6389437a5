"""The gates of minGRU and minLSTM in torch's operations: what is around other people's scans of a linear recurrence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS


def input_gate_and_candidate(x: Tensor, cell: str, dimension: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Returns the pre-activation of the candidate's share, of which sigmoid is that share, and the candidate.

    x: pre-activations, G*H in `dimension`. bias: [G*H], added to x; no extra operation where x is narrower. Computes in float32
    at least: in 16 bits 1 - z loses z where z is small. Raises ValueError for a cell of another kind.
    """
    if cell not in MIN_CELLS:
        raise ValueError(f"cell must be one of {', '.join(MIN_CELLS)}, whose state is linear in the one before; got {cell!r}")
    compute = torch.promote_types(x.dtype, torch.float32)
    if bias is not None and dimension == 1:
        bias = bias[:, None]
    gates = (x.to(compute) if bias is None else x + bias.to(compute)).chunk(len(cells.get(cell).gates), dimension)
    opening = gates[0] if len(gates) == 2 else logsigmoid(gates[1]) - logsigmoid(gates[0])
    return opening, cells.positive(gates[-1]) if cell.endswith("_positive") else gates[-1]
