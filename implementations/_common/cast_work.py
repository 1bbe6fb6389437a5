"""Casts of a call's tensors under autocast as a planned call: all copies are made in one launch, and so are their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.host_path import PlannedWork, Tensors


def copies(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Copies of tensors, each of a dtype."""
    made = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(made, [*tensors])
    return made


def cast_gradients(gradients: Tensors, dtypes: Sequence[torch.dtype], is_observed: bool) -> Tensors:
    """Gradients in the dtypes of what was cast, None for None. is_observed: somebody looks on, or differentiates them."""
    pairs = [(gradient, dtype) for gradient, dtype in zip(gradients, dtypes, strict=True) if gradient is not None]
    if is_observed:
        made = iter([gradient.to(dtype) for gradient, dtype in pairs])
    else:
        made = iter(copies(*zip(*pairs, strict=True)) if pairs else [])
    return [None if gradient is None else next(made) for gradient in gradients]


def cast_work(dtype: torch.dtype, dtypes: Sequence[torch.dtype], device: torch.device) -> PlannedWork:
    """Copies of tensors of `dtypes`, of another dtype. Nothing is saved for backward."""

    def backward(needs: Sequence[bool], overwrites: bool, is_observed: bool, gradients: Tensors) -> Tensors:
        wanted = [gradient if is_wanted else None for gradient, is_wanted in zip(gradients, needs, strict=True)]
        return cast_gradients(wanted, dtypes, is_observed)

    return PlannedWork(
        "autocast", device, len(dtypes), (), 0, None, lambda tensors: copies(tensors, [dtype] * len(dtypes)), backward,
        saves_inputs=False,
    )  # fmt: skip
