"""The input product of a layer, W_ih x for all steps at once, on views and copies whose sizes are computed once."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.padded_gemm import is_never_padded
from pytest_ecornn.implementations._common.tensor_views import View
from pytest_ecornn.implementations._cuda.padded_rows import VECTOR_BYTES, MatrixSizes, get_padded_rows


class InputGemm:
    """Gate pre-activations [T, B, G*H], or [B, T, G*H], of x in the same order.

    outer: T and B, or B and T. width: I. gate_width: G*H. is_padded: copies with rows of whole vectors are multiplied.
    """

    def __init__(
        self, outer: tuple[int, int], width: int, gate_width: int, dtype: torch.dtype, device: torch.device, is_padded: bool
    ):
        first, second = outer
        self._dtype, self._device, self._is_padded = dtype, device, is_padded
        self._rows = View((first * second, width), (width, 1))
        self._copies = tuple([MatrixSizes.of_vectors(rows, width, dtype.itemsize) for rows in (first * second, gate_width)])
        self._gates = View((first, second, gate_width), (second * gate_width, gate_width, 1))

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """x: [T, B, I] or [B, T, I]. weight: [G*H, I]. Both are without gaps."""
        if self._is_padded:
            x, weight = get_padded_rows(self._copies, self._dtype, self._device)((x, weight))
        else:
            x = self._rows.of(x)
        return self._gates.of(torch.mm(x, weight.t()))


def make_input_gemm(
    outer: tuple[int, int], width: int, gate_width: int, dtype: torch.dtype, device: torch.device, tf32: bool
) -> InputGemm | None:
    """The product of those sizes; None where the gates' rows need copies as well."""
    products = outer[0] * outer[1] * width * gate_width
    is_padded = device.type == "cuda" and not is_never_padded((width,), products, dtype, tf32)
    if is_padded and gate_width * dtype.itemsize % VECTOR_BYTES:
        return None
    return InputGemm(outer, width, gate_width, dtype, device, is_padded)
