"""Contents whose products cancel: two large terms of each pair are followed by what is left of them, somewhere in the sum.

The columns of a weight are negated in pairs, and the elements of an operand nearly equal in the same pairs. A sum in float32
keeps what is left in any order, as pairs are drawn at random. One in 16 bits, or of parts in 16 bits, loses most of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.cases.seeding import generator

_SIZE = 8.0  # times what is left: float32 keeps 20 bits of it


def change_weight(seed: int, name: str, weight: Tensor) -> None:
    """Sets the second column of each pair to the negated first, in place."""
    if name.startswith("weight_"):
        one, other = _pairs(seed, weight.shape[1])
        weight[:, other] = -weight[:, one]


def change_operand(seed: int, values: Tensor, random: torch.Generator) -> None:
    """Sets the first element of each pair to a large value and adds that value to the second, in place."""
    one, other = _pairs(seed, values.shape[-1])
    large = torch.randn(*values.shape[:-1], len(one), generator=random, dtype=values.dtype) * _SIZE
    values[..., one] = large
    values[..., other] += large


def _pairs(seed: int, width: int) -> tuple[Tensor, Tensor]:
    """The places of either half of so many elements; of an odd number one stays alone."""
    order = torch.randperm(width, generator=generator(seed, f"pairs {width}"))
    return order[: width // 2], order[width // 2 : width // 2 * 2]
