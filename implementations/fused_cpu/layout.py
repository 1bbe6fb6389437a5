"""How the kernels' arrays are laid out: packed weights, saved tensors, and the memory that a launch works in.

A matrix [N, K] is packed as [ceil(N / 32), K', 32]: the 32 weights of one input lie together. K' is K, rounded up to even.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.contract.weight_rounding import quantize

PANEL = 32  # outputs of a panel
DEPTH = 2  # K' is a multiple
SAVED = {"lstm": 5, "gru": 4, "rnn_tanh": 1, "rnn_relu": 1}  # values of a unit and step that wait for the backward pass


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def pack(matrix: Tensor) -> Tensor:
    """[N, K] -> [ceil(N / 32), K', 32], zeros where there is no weight."""
    outputs, inputs = matrix.shape
    missing = round_up(outputs, PANEL) - outputs, round_up(inputs, DEPTH) - inputs
    if any(missing):
        matrix = pad(matrix, (0, missing[1], 0, missing[0]))
    return matrix.view(-1, PANEL, matrix.shape[1]).transpose(1, 2).contiguous()


def pack_bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    """[G*H] -> whole panels; zeros for None."""
    width = round_up(weight.shape[0], PANEL)
    return weight.new_zeros(width) if bias is None else pad(bias, (0, width - bias.shape[0]))


class Packed(NamedTuple):
    """Weights of a layer in one direction, in the computing type or, packed, a shorter one; biases in the computing type.

    w_ih, b_ih: None where x holds pre-activations. w_hh, b_hh: None of a cell that multiplies no state.

    w_hh_scales, w_ih_scales: of int8 weights, a scale for each output, in the computing type.

    is_packed: or as torch has them, [N, K] without gaps, and None for no bias.
    """

    w_hh: Tensor | None
    b_hh: Tensor | None
    w_ih: Tensor | None = None
    b_ih: Tensor | None = None
    w_hh_scales: Tensor | None = None
    w_ih_scales: Tensor | None = None
    is_packed: bool = True

    def without_inputs(self) -> Packed:
        """W_hh alone, where x holds pre-activations."""
        return self._replace(w_ih=None, b_ih=None, w_ih_scales=None)


FEW_SEQUENCES = 2  # up to which packed weights are not read faster


def packed_for(batch: int, w_hh: Tensor, b_hh: Tensor | None, w_ih: Tensor | None = None, b_ih: Tensor | None = None) -> Packed:
    """Weights in the form in which calls of `batch` sequences read them fastest, packing included."""
    if batch <= FEW_SEQUENCES:
        w_hh, b_hh, w_ih, b_ih = (None if one is None else one.contiguous() for one in (w_hh, b_hh, w_ih, b_ih))  # type: ignore[assignment]
        return Packed(w_hh, b_hh, w_ih, b_ih, is_packed=False)
    if w_ih is None:
        return Packed(pack(w_hh), pack_bias(b_hh, w_hh))
    return Packed(pack(w_hh), pack_bias(b_hh, w_hh), pack(w_ih), pack_bias(b_ih, w_ih))


def packed_in(
    dtype: torch.dtype, w_hh: Tensor | None, b_hh: Tensor | None, w_ih: Tensor | None = None, b_ih: Tensor | None = None
) -> Packed:
    """Copies of weights, which are in the computing type, rounded to `dtype` and packed."""
    hh, bias_hh, hh_scales = _rounded(dtype, w_hh, b_hh)
    ih, bias_ih, ih_scales = _rounded(dtype, w_ih, b_ih)
    return Packed(hh, bias_hh, ih, bias_ih, hh_scales, ih_scales)


def _rounded(
    dtype: torch.dtype, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """A packed weight, its bias and its scales."""
    if weight is None:
        return None, None, None
    own_bias = pack_bias(bias, weight).clone()
    if dtype == torch.int8:
        values, scales = quantize(weight)
        return pack(values), own_bias, pack_bias(scales, weight)
    return pack(weight.to(dtype)), own_bias, None


def work_elements(batch: int, hidden: int, inputs: int, gates: int) -> int:
    """Elements of the computing type that a launch works in. inputs: 0 where x holds pre-activations."""
    width = round_up(gates * hidden, PANEL)  # of sums, and of products or pre-activations
    return batch * (round_up(hidden, PANEL) + hidden + 2 * width + round_up(inputs, DEPTH))
