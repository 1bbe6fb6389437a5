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


def cast_work(dtype: torch.dtype, dtypes: Sequence[torch.dtype], device: torch.device) -> PlannedWork:
    """Copies of tensors of `dtypes`, of another dtype. Nothing is saved for backward."""

    def backward(needs: Sequence[bool], overwrites: bool, is_observed: bool, gradients: Tensors) -> Tensors:
        pairs = [(d, own) for d, own, is_wanted in zip(gradients, dtypes, needs, strict=True) if is_wanted and d is not None]
        made = iter([d.to(own) for d, own in pairs] if is_observed else copies(*zip(*pairs, strict=True)) if pairs else ())
        return [next(made) if is_wanted and d is not None else None for d, is_wanted in zip(gradients, needs, strict=True)]

    return PlannedWork(
        "autocast", device, len(dtypes), (), 0, None, lambda tensors: copies(tensors, [dtype] * len(dtypes)), backward,
        saves_inputs=False,
    )  # fmt: skip
