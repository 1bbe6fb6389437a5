"""A call of a torch.nn-like module by fused_cpu: on its parameters as they are now, nothing kept between calls but kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.padding import zero_padding
from pytest_ecornn.implementations._common.recurrent_problem import PARAMETERS
from pytest_ecornn.implementations.fused_cpu.stack import Stack, TrackWeights

_stack = lru_cache(maxsize=256)(Stack)


def stack_of(cell: str, hidden: int, dtype: torch.dtype, batch_first: bool, bidirectional: bool) -> Stack:
    """The layers' runner on the threads that torch has now."""
    return _stack(cell, hidden, dtype, batch_first, bidirectional, torch.get_num_threads())


def tracks_of(weights: Sequence[Tensor | None], dtype: torch.dtype) -> list[TrackWeights]:
    """Each track's parameters in the computing type of `dtype`. weights: weight_ih, weight_hh, bias_ih, bias_hh of each."""
    compute = torch.promote_types(dtype, torch.float32)
    cast = [one if one is None or one.dtype == compute else one.to(compute) for one in weights]
    return [TrackWeights(*cast[at : at + len(PARAMETERS)]) for at in range(0, len(cast), len(PARAMETERS))]  # type: ignore[arg-type]


def run(
    x: Tensor, first: Sequence[Tensor], weights: Sequence[Tensor | None], lengths: Tensor | None, cell: str, batch_first: bool,
    bidirectional: bool,
) -> list[Tensor]:  # fmt: skip
    """Output [.., D*H] in x's layout, and final states [L*D, B, H], differentiable.

    x: [T, B, I], or [B, T, I] with `batch_first`, on a CPU. first: initial states [L*D, B, H], () for zeros. weights: of each
    layer and direction weight_ih, weight_hh, bias_ih and bias_hh (None for none), as torch.nn has them. lengths: int64 [B].
    Nothing depends on x in the padding, where the output and x's gradient are 0. Raises RuntimeError, as torch.nn does, for
    states of another dtype or device.
    """
    for state in first:
        if state.dtype != x.dtype or state.device != x.device:
            raise RuntimeError(f"expected states of {x.dtype} on {x.device}, got {state.dtype} on {state.device}")
    hidden = next(one.shape[1] for one in weights[1:2] if one is not None)
    stack = stack_of(cell, hidden, x.dtype, batch_first, bidirectional)
    if lengths is not None and torch.is_grad_enabled():  # else what the padding holds would be in the weights' gradients
        x = zero_padding(x, lengths, batch_first)
    return stack(x, first, tracks_of(weights, x.dtype), lengths)
