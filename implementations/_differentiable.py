"""Gradients of this project's ops, each by an autograd Function.

Registered below `torch.library.custom_op`, whose checks of every call cost more host time than a short scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def register_gradient(library: torch.library.Library, name: str, function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function` runs where a gradient is wanted. Returns the op without its gradient, for `function` to call."""
    op = getattr(torch.ops.pytest_ecornn, name).default

    def below(*given: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*given)

    def autograd(*given: Any) -> Any:
        refuse_forward_mode(op.name(), given)
        is_wanted = torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in given)
        return function.apply(*given) if is_wanted else below(*given)

    library.impl(name, autograd, "Autograd")
    return below


def refuse_forward_mode(op: str, given: Sequence[Any]) -> None:
    """Raises NotImplementedError where one of them has a tangent, which would be lost."""
    if forward_ad._current_level < 0:
        return
    if any(isinstance(one, Tensor) and forward_ad.unpack_dual(one).tangent is not None for one in given):
        raise NotImplementedError(f"{op} has no forward-mode gradient, only one by backward")
