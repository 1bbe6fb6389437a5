"""Gradients of this project's ops, each by an autograd Function.

Registered below `torch.library.custom_op`, whose checks of every call cost more host time than a short scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
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


Backward = Callable[..., Any]


def differentiable_once(op: str) -> Callable[[Backward], Backward]:
    """A Function's `backward` whose gradients, where they are to have gradients (create_graph), raise when those are asked for.

    torch's `once_differentiable` makes them constants where the incoming gradients are: what is made of them then is wrong in
    silence. Raises NotImplementedError.
    """

    def once(backward: Backward) -> Backward:
        @wraps(backward)
        def run(ctx: Any, *gradients: Any) -> Any:
            with torch.no_grad():
                found = backward(ctx, *gradients)
            if not torch.is_grad_enabled():
                return found
            return _Last.apply(op, *(None if one is None else one.detach().requires_grad_() for one in found))  # type: ignore[no-untyped-call]

        return run

    return once


class _Last(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: str, *found: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.op = op
        return tuple(None if one is None else one.view_as(one) for one in found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        raise NotImplementedError(f"{ctx.op} is differentiable once: its gradients, here made with create_graph, have none")


def refuse_forward_mode(op: str, given: Sequence[Any]) -> None:
    """Raises NotImplementedError where one of them has a tangent, which would be lost."""
    if forward_ad._current_level < 0:
        return
    if any(isinstance(one, Tensor) and forward_ad.unpack_dual(one).tangent is not None for one in given):
        raise NotImplementedError(f"{op} has no forward-mode gradient, only one by backward")
