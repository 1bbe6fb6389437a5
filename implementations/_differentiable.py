"""Gradients of this project's ops, each by an autograd Function.

Registered below `torch.library.custom_op`, whose checks of every call cost more host time than a short scan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def register_gradient(library: torch.library.Library, name: str, function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function` runs where a gradient is wanted, forward-mode ones too, which it refuses unless it has them.

    Returns the op without its gradient, for `function` to call.
    """
    op = getattr(torch.ops.pytest_ecornn, name).default

    def below(*given: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*given)

    def autograd(*given: Any) -> Any:
        return function.apply(*given) if _is_wanted(given) else below(*given)

    library.impl(name, autograd, "Autograd")
    return below


def _is_wanted(given: tuple[Any, ...]) -> bool:
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(isinstance(one, Tensor) and one.requires_grad for one in given)
