"""A planned call under autocast: on copies of its tensors, all made in one launch, and so are its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.host_path import PlannedWork, Tensors


def copies(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """Copies of tensors, each of a dtype."""
    made = [torch.empty_like(tensor, dtype=dtype) for tensor, dtype in zip(tensors, dtypes, strict=True)]
    torch._foreach_copy_(made, [*tensors])
    return made


def cast_work(work: PlannedWork, dtype: torch.dtype, num_tensors: int) -> PlannedWork:
    """The same work, of tensors of any floating dtype but float64, which are cast to `dtype`. num_tensors: the call's."""

    def is_cast(tensor: Tensor | None) -> bool:
        return tensor is not None and tensor.is_floating_point() and tensor.dtype != dtype

    def forward(tensors: Tensors) -> Tensors:
        cast = [tensor for tensor in tensors if is_cast(tensor)]
        made = iter(copies(cast, [dtype] * len(cast)) if cast else ())
        of_tensors = [next(made) if is_cast(tensor) else None for tensor in tensors]
        results = work.forward([tensor if copy is None else copy for tensor, copy in zip(tensors, of_tensors, strict=True)])
        return [*results, *of_tensors] if work.saved else results

    def backward(needs: Sequence[bool], overwrites: bool, is_observed: bool, tensors: Tensors) -> Tensors:
        last = num_tensors + len(work.saved)
        given, saved, made = tensors[:num_tensors], tensors[num_tensors:last], tensors[last : last + num_tensors]
        if is_observed:  # by a graph of the casts, too
            made = [tensor.to(dtype) if is_cast(tensor) else None for tensor in given]
        operands = [tensor if copy is None else copy for tensor, copy in zip(given, made, strict=True)]
        gradients = work.backward(needs, overwrites, is_observed, [*operands, *saved, *tensors[last + num_tensors :]])
        pairs = [*zip(gradients, given, strict=True)]
        differing = [(d, tensor.dtype) for d, tensor in pairs if d is not None and d.dtype != tensor.dtype]
        if is_observed:
            cast = iter([d.to(own) for d, own in differing])
        else:
            cast = iter(copies(*zip(*differing, strict=True)) if differing else ())
        return [next(cast) if d is not None and d.dtype != tensor.dtype else d for d, tensor in pairs]

    first = max(work.saved, default=0) + 1
    saved = (*work.saved, *range(first, first + num_tensors)) if work.saved else ()
    return replace(work, forward=forward, backward=backward, saved=saved)
