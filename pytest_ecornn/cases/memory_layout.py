"""How x, the initial states and the lengths of a case lie in memory.

"strided": with gaps, x and states between rows, lengths between elements. "offset": from the second element of their memory on.
"transposed": the first two dimensions of x and of a state in the other order, as a view of a buffer whose batch comes first has
them, or last. "feature_major": the last dimension comes first. Lengths have one dimension, and lie plainly where it is alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from pytest_ecornn.contract import Case

_GAP = 3
_FIRST = {"transposed": 1, "feature_major": -1}  # dimension in memory


def rows_of_x(case: Case, values: Tensor) -> Tensor:
    """Contents of x, [rows, width], one row after the other as `x_at` takes them, laid out as the case says.

    The first T*B rows come in the order of x's dimensions, others in any.
    """
    if case.layout == "transposed":
        own = values[: case.steps * case.batch]
        return values.index_copy_(0, _in_memory_order(case).to(values.device), own.clone())
    if case.layout == "feature_major":
        return values.t().contiguous().t()
    return _apart(case, values)


def _in_memory_order(case: Case) -> Tensor:
    """The row in memory of each (first, second) index pair of x."""
    first, second = leading(case)
    return torch.arange(first * second).view(second, first).t().flatten()


def x_at(case: Case, rows: Tensor, start: int) -> Tensor:
    """The T*B rows from `start` as x, without a copy: [T, B, width] or [B, T, width]."""
    first, second = leading(case)
    between, element = rows.stride()
    strides = (between, first * between) if case.layout == "transposed" else (second * between, between)
    return rows.as_strided((first, second, rows.shape[1]), (*strides, element), rows.storage_offset() + start * between)


def leading(case: Case) -> tuple[int, int]:
    """The first two dimensions of x."""
    return (case.batch, case.steps) if case.batch_first else (case.steps, case.batch)


def laid_out(case: Case, tensor: Tensor) -> Tensor:
    """A state [L*D, B, H] or lengths [B], as the case's layout has them."""
    if tensor.dim() == 1:
        return _apart(case, tensor.unsqueeze(-1)).squeeze(-1)
    if dimension := _FIRST.get(case.layout):
        return with_first(tensor, dimension)
    rows = _apart(case, tensor.flatten(0, 1))
    return rows.unflatten(0, tensor.shape[:2])  # type: ignore[no-any-return]


def _apart(case: Case, values: Tensor) -> Tensor:
    """[rows, width] with gaps between rows or from the second element on, where the case's layout says so."""
    if case.layout not in ("strided", "offset"):
        return values
    rows, width = values.shape
    buffer = values.new_zeros(rows * (width + _GAP) + 1)
    strides, start = ((width + _GAP, 1), 0) if case.layout == "strided" else ((width, 1), 1)
    return buffer.as_strided((rows, width), strides, start).copy_(values)


def with_first(tensor: Tensor, dimension: int) -> Tensor:
    """The same values, with that dimension the first in memory; of one dimension or none as they are."""
    return tensor if tensor.ndim < 2 else tensor.movedim(dimension, 0).contiguous().movedim(0, dimension)


def spaced(tensor: Tensor) -> Tensor:
    """The same values as every other element of a larger tensor, from its second on; what lies between is NaN, or 0."""
    if not tensor.ndim:
        return tensor
    buffer = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1] + 1), _filler(tensor))
    return buffer[..., 1::2].copy_(tensor.detach())


def behind(tensor: Tensor, count: int) -> Tensor:
    """The same values, contiguous behind so many elements of NaN, or 0, as the parts of `torch.cat` are."""
    buffer = tensor.new_full((count + tensor.numel(),), _filler(tensor))
    return buffer[count:].view(tensor.shape).copy_(tensor.detach())


# Of incoming gradients.
GRADIENT_LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "expanded from one number, as those of sum()": lambda gradient: gradient.new_ones(()).expand(gradient.shape),
    "expanded over the first dimension": lambda gradient: gradient[:1].expand(gradient.shape) if gradient.ndim else gradient,
    "with the first two dimensions transposed": partial(with_first, dimension=1),
    "with the last dimension first": partial(with_first, dimension=-1),
    "strided and offset": spaced,
    "contiguous and offset, as those of parts of torch.cat": partial(behind, count=64),
}


def _filler(tensor: Tensor) -> float:
    return float("nan") if tensor.is_floating_point() else 0
