"""Whether tensors share memory: with each other, or an element of one with another of the same."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Named = tuple[str, Tensor]


def shared(tensors: Sequence[Named], others: Sequence[Named] = ()) -> str:
    """Describes the first tensor in memory of an earlier one, or of the others; empty if there is none."""
    earlier = list(others)
    for name, tensor in tensors:
        for other, known in earlier:
            if overlaps(tensor, known):
                return f"{name}: expected memory of its own, got some of {other}"
        earlier.append((name, tensor))
    return ""


def overlaps(one: Tensor, other: Tensor) -> bool:
    """Whether an element of one lies where an element of the other does."""
    if one.device != other.device or not one.numel() or not other.numel():
        return False
    (start, stop), (low, high) = _span(one), _span(other)
    return start < high and low < stop and bool(torch.isin(_addresses(one), _addresses(other)).any())


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first address of a tensor and the one after its last."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + reach * tensor.element_size()


def _addresses(tensor: Tensor) -> Tensor:
    """Address of each element: int64, on the CPU."""
    found = torch.tensor(tensor.data_ptr())
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        found = found.unsqueeze(-1) + torch.arange(size) * (stride * tensor.element_size())
    return found.flatten()


def is_folded(tensor: Tensor) -> bool:
    """Whether two elements lie in the same place, as in an expanded tensor."""
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1):
        if stride < reach:
            return True
        reach = stride * (size - 1) + reach
    return False
