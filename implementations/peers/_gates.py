"""The gates of minGRU and minLSTM in torch's operations: what is around other people's scans of a linear recurrence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from pytest_ecornn.contract import cells
from pytest_ecornn.implementations._common.min_cells import MIN_CELLS


def opening_and_candidate(x: Tensor, cell: str, dimension: int, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """From pre-activations, G*H in `dimension`: what sigmoid makes the share taken of the candidate of, and the candidate.

    In float32 at least: in 16 bits nothing is left of 1 - z where z is small. bias: [G*H], added to x, to which it costs no
    operation where x is narrower. Raises ValueError for a cell of another kind.
    """
    if cell not in MIN_CELLS:
        raise ValueError(f"cell must be one of {', '.join(MIN_CELLS)}, whose state is linear in the one before; got {cell!r}")
    compute = torch.promote_types(x.dtype, torch.float32)
    if bias is not None and dimension == 1:
        bias = bias[:, None]
    gates = (x.to(compute) if bias is None else x + bias.to(compute)).chunk(len(cells.get(cell).gates), dimension)
    opening = gates[0] if len(gates) == 2 else logsigmoid(gates[1]) - logsigmoid(gates[0])
    return opening, cells.positive(gates[-1]) if cell.endswith("_positive") else gates[-1]
