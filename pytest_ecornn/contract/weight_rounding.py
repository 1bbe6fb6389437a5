"""What `weight_rounding` declares: the weights that an implementation computes with in place of a case's own, in inference.

The matrices W_ih and W_hh are rounded, biases are not. The harness and implementations round by the same functions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pytest_ecornn.contract import WeightRounding, Weights

_MAX = 127  # of an int8 weight, on either side


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds [N, K] to int8 [N, K] times a scale for each row, [N], in the matrix's type.

    A scale is the row's largest absolute value over 127, and 1 of a row of zeros. Raises ValueError for weights that are not
    finite.
    """
    if not matrix.isfinite().all():
        raise ValueError("expected finite weights to round to int8, got NaN or an infinity")
    scales = matrix.abs().amax(1) / _MAX
    scales = torch.where(scales > 0, scales, 1.0)
    return (matrix / scales[:, None]).round().clamp(-_MAX, _MAX).to(torch.int8), scales


def round_matrix(matrix: Tensor, rounding: WeightRounding) -> Tensor:
    """The matrix as it is rounded, in the computing type: float32, or float64 of a float64 one."""
    wide = matrix.detach().to(torch.promote_types(matrix.dtype, torch.float32))
    if rounding == "int8":
        values, scales = quantize(wide)
        return values * scales[:, None]
    return wide if rounding == "none" else wide.to(getattr(torch, rounding)).to(wide.dtype)


def round_weights(weights: Weights, rounding: WeightRounding) -> Weights:
    """The weights with their matrices rounded, patterns applied before."""
    if rounding == "none":
        return weights
    rounded = {
        name: nn.Parameter(round_matrix(weights.masked(name), rounding), parameter.requires_grad)
        if name.startswith(("weight_ih", "weight_hh"))
        else parameter
        for name, parameter in weights.items()
    }
    return Weights(rounded, weights.masks)
