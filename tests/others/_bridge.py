"""Functions of other libraries between torch's tensors: copies both ways, and gradients by the library's own pullback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Arrays = Sequence[Any]  # of NumPy, or of what NumPy reads
Run = Callable[[Arrays], tuple[Arrays, Callable[[Arrays], Arrays]]]  # arguments -> results, and gradients of the arguments


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Run, *tensors: Tensor) -> tuple[Tensor, ...]:
        results, ctx.pullback = run(_to_numpy(tensors))
        return _to_torch(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return (None, *_to_torch(ctx.pullback(_to_numpy(gradients))))


def call(run: Run, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The results of `run` on the tensors, with gradients."""
    return _Bridge.apply(run, *tensors)


@cache
def jax(function: Callable[..., Arrays]) -> Run:
    """A function of JAX arrays that returns a tuple of them, compiled once for each shape."""
    import jax

    compiled = jax.jit(function)

    def run(arrays: Arrays) -> tuple[Arrays, Callable[[Arrays], Arrays]]:
        results, pullback = jax.vjp(compiled, *map(jax.numpy.array, arrays))
        return results, lambda gradients: pullback(tuple(map(jax.numpy.array, gradients)))

    return run


def _to_numpy(tensors: Sequence[Tensor]) -> list[Any]:
    return [tensor.detach().numpy().copy() for tensor in tensors]


def _to_torch(arrays: Arrays) -> tuple[Tensor, ...]:
    return tuple(torch.from_numpy(np.array(array)) for array in arrays)
