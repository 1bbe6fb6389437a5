"""Gradients of this project's ops, each by an autograd Function, their rules for vmap, and which calls may bypass them.

Registered below `torch.library.custom_op`, whose checks of every call cost more host time than a short scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _modes


def register_autograd(library: torch.library.Library, name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Registers an autograd Function's `apply`, run where a gradient is wanted. Returns the op without it, for it to call."""
    op = getattr(torch.ops.pytest_ecornn, name).default

    def below_autograd(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return op(*arguments)

    def autograd(*arguments: Any) -> Any:
        tensors = list(_flat(arguments))
        refuse_forward_mode(op.name(), tensors)
        return apply(*arguments) if wants_gradient(tensors) else below_autograd(*arguments)

    library.impl(name, autograd, "Autograd")
    return below_autograd


_ROWS = ("x", "kept", "output", "d_output", "resets")  # arguments of scans that have steps: [T, B, ..] or [B, T, ..]


def register_vmap(library: torch.library.Library, name: str) -> None:
    """Registers that a scan under vmap runs once, the mapped dimension merged with that of sequences, B.

    Its arguments: those of _ROWS, batch_first, states and lengths [B, ..], and bias [G*H], which is added to x where it is
    mapped. Its results: rows of three dimensions, states of two, and what has no elements.
    """
    op = getattr(torch.ops.pytest_ecornn, name).default
    names = [argument.name for argument in op._schema.arguments]

    def mapped(info: Any, dims: Sequence[int | None], *values: Any) -> Any:
        count, arguments, dim_of = info.batch_size, dict(zip(names, values, strict=True)), dict(zip(names, dims, strict=True))
        place = 0 if arguments["batch_first"] else 1  # of B in rows
        bias = arguments.pop("bias", None)
        arguments = {
            name: _merged(value, dim_of[name], place if name in _ROWS else 0, count) if isinstance(value, Tensor) else value
            for name, value in arguments.items()
        }
        if bias is not None and dim_of["bias"] is not None:
            per_sequence = bias.movedim(dim_of["bias"], 0).repeat_interleave(arguments["x"].shape[place] // count, 0)
            arguments["x"], bias = arguments["x"] + per_sequence.unsqueeze(1 - place), None
        results = op(*((arguments | {"bias": bias})[name] for name in names))
        places = [(None, None, 0, place)[result.dim()] for result in results]
        split = [
            result if at is None else result.unflatten(at, (count, result.shape[at] // count))
            for result, at in zip(results, places, strict=True)
        ]
        return tuple(split), tuple(places)

    torch.library.register_vmap(op, mapped, lib=library)


def _merged(x: Tensor, dim: int | None, place: int, count: int) -> Tensor:
    """x with its dimension `dim` of `count`, or with so many copies of x, merged into what is at `place` without it."""
    moved = x.unsqueeze(place).expand(*x.shape[:place], count, *x.shape[place:]) if dim is None else x.movedim(dim, place)
    return moved.flatten(place, place + 1)


def _flat(arguments: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among an op's arguments, and in lists among them."""
    for argument in arguments:
        if isinstance(argument, Tensor):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _flat(argument)


def wants_gradient(tensors: Iterable[Tensor | None]) -> bool:
    return torch.is_grad_enabled() and True in [tensor.requires_grad for tensor in tensors if tensor is not None]


Backward = Callable[..., Any]


def differentiable_once(op: str) -> Callable[[Backward], Backward]:
    """Decorates a Function's `backward`. With create_graph its gradients raise NotImplementedError when differentiated.

    torch's `once_differentiable` makes them constants where the incoming gradients are: what is computed of them then is
    silently wrong.
    """

    def once(backward: Backward) -> Backward:
        @wraps(backward)
        def run(ctx: Any, *gradients: Any) -> Any:
            if not torch.is_grad_enabled():
                return backward(ctx, *gradients)
            with torch.no_grad():
                d_inputs = backward(ctx, *gradients)
            leaves = [None if gradient is None else gradient.detach().requires_grad_() for gradient in d_inputs]
            return NoSecondGradient.apply(op, *leaves)  # type: ignore[no-untyped-call]

        return run

    return once


class NoSecondGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, op: str, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        ctx.op = op
        return tuple(None if gradient is None else gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        raise NotImplementedError(f"{ctx.op} is differentiable once: its gradients, here made with create_graph, have none")


def refuse_second_gradients(op: str, tensors: Iterable[Tensor | None]) -> None:
    """Has gradients of these but leaves raise as those of `differentiable_once` do: for kernels of other packages."""

    def without_a_gradient(gradient: Tensor) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        marked: Tensor = NoSecondGradient.apply(op, gradient.detach().requires_grad_())[0]  # type: ignore[no-untyped-call]
        return marked

    for tensor in tensors:
        if tensor is not None and not tensor.is_leaf:
            tensor.register_hook(without_a_gradient)


def refuse_forward_mode(op: str, tensors: Iterable[Tensor | None]) -> None:
    """Raises NotImplementedError where a tensor has a tangent, which would be lost."""
    if forward_ad._current_level < 0:
        return
    if any(tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors):
        raise NotImplementedError(f"{op} has no forward-mode gradient, only one by backward")


PRE_DISPATCH = torch._C.DispatchKey.PreDispatch  # of make_fx(pre_dispatch=True), whose mode is in a stack of its own
_PLAIN = {Tensor, torch.nn.Parameter, type(None)}


def can_skip_dispatch(tensors: Iterable[Tensor | None]) -> bool:
    """Whether a function may replace its op unnoticed: no compiler, transform or mode, plain tensors alone.

    A mode with `sees_inside_ops` is allowed: it prefers to see what the op calls.
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state() is not None
        or torch._C._dispatch_tls_is_dispatch_key_included(PRE_DISPATCH)
    ):
        return False
    if forward_ad._current_level >= 0 or (torch._C._len_torch_dispatch_stack() and not all(map(_looks_into_ops, _modes()))):
        return False
    return _PLAIN.issuperset(map(type, tensors))


def _looks_into_ops(mode: object) -> bool:
    return getattr(mode, "sees_inside_ops", False)


def is_plain_tensor(tensor: Tensor | None) -> bool:
    """Whether it is None or a tensor with memory of its own, not one that stands for several, as batched gradients do."""
    return tensor is None or (type(tensor) is Tensor and not torch._C._functorch.is_legacy_batchedtensor(tensor))


def graph_is_freed() -> bool:
    """Whether the current backward pass frees the graph, so that saved tensors are no longer needed."""
    return not torch._C._autograd._get_current_graph_task_keep_graph()
