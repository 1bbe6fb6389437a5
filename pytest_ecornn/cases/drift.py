"""Contents whose states drift: keep gates are open, and each step adds a little, nearly the same as the last.

In float32 it adds up. In 16 bits it is rounded as often as it is added. Recurrent weights are small, so that the rounding of
their operands hides nothing. Loss weights have one sign, so that gradients summed over steps and sequences grow as well.
"""

from __future__ import annotations

import torch
from torch import Tensor

_RECURRENT_SCALE = 2.0**-5
_SCALE, _NOISE = 2.0**-1, 2.0**-4  # of what all steps' inputs share, and of what they do not


def keep_bias(dtype: str) -> float:
    """Bias that opens keep gates in 16-bit types; 0 in wider types.

    There a sigmoid made of a tanh, which is right, may have too few bits of a gate that is closed.
    """
    return 4.0 if getattr(torch, dtype).itemsize == 2 else 0.0


def change_weight(name: str, value: Tensor) -> None:
    """Scales recurrent weights down, in place."""
    if name.startswith("weight_hh"):
        value *= _RECURRENT_SCALE


def change_x(values: Tensor, random: torch.Generator) -> None:
    """Sets `values` [rows, width] to the same values in all rows plus a little noise, in place."""
    values *= _NOISE
    values += torch.randn(values.shape[1], generator=random, dtype=values.dtype) * _SCALE
