"""Casts that autocast makes of a layer's tensors, all of its parameters in one launch, and of their gradients in another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.implementations._common.autograd_ops import can_skip_dispatch, is_plain_tensor
from pytest_ecornn.implementations._common.cast_work import cast_gradients, copies
from pytest_ecornn.reference.precision import is_autocast


def autocast_of(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Returns a function that casts as autocast casts its operators' arguments: float64 stays float64."""
    if not is_autocast(device):
        return lambda given: given
    dtype = torch.get_autocast_dtype(device.type)
    return lambda given: given if given.dtype == torch.float64 else given.to(dtype)


def cast_parameters(parameters: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    """The parameters as `autocast_of` casts each of them. device: theirs."""
    if not is_autocast(device):
        return [*parameters]
    dtype = torch.get_autocast_dtype(device.type)
    is_cast = [one is not None and one.dtype not in (torch.float64, dtype) for one in parameters]
    given = [one for one, wanted in zip(parameters, is_cast, strict=True) if wanted]
    if not given or not can_skip_dispatch(given):
        cast = autocast_of(device)
        return [None if one is None else cast(one) for one in parameters]
    made = iter(_apply_directly(dtype, *given))
    return [next(made) if wanted else one for one, wanted in zip(parameters, is_cast, strict=True)]


class _CastTogether(torch.autograd.Function):
    """Copies of tensors of another dtype, and of their gradients of the tensors' own."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = [one.dtype for one in given]
        made = copies(given, [dtype] * len(given))
        is_wanted = ctx.needs_input_grad[1:]
        ctx.mark_non_differentiable(*(copy for copy, wanted in zip(made, is_wanted, strict=True) if not wanted))
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        is_observed = torch.is_grad_enabled() or not (can_skip_dispatch(gradients) and all(map(is_plain_tensor, gradients)))
        return None, *cast_gradients(gradients, ctx.dtypes, is_observed)


# `apply` without what it does for torch.func, in Python, for each argument.
_apply_directly: Callable[..., Any] = super(torch.autograd.Function, _CastTogether).apply
