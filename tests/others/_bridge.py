"""Functions of other libraries between torch's tensors: copies both ways, and gradients by the library's own pullback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pytest_ecornn.contract import Case, Layer, State, Weights, cells

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


def layer(run: Run, case: Case, weights: Weights, takes_lengths: bool = False) -> Layer:
    """A layer of `run` on x, the lengths as numbers of x's dtype where it takes them, all initial states and the weights."""

    def bridged(x: Tensor, state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        zeros = x.new_zeros(case.layers * case.directions, case.batch, case.hidden_size)
        states = cells.unpack_state(state) or [zeros] * len(cells.get(case.cell).states)
        ends = x.new_full((case.batch,), case.steps) if lengths is None else lengths.to(x.dtype)
        output, *final = call(run, x, *([ends] if takes_lengths else []), *states, *weights.values())
        return output, tuple(final) if len(final) > 1 else final[0]

    return bridged


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
