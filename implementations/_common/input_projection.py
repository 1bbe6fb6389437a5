"""The input product of scans, W_ih x for all steps at once, as torch's op `pytest_ecornn::gate_product`, differentiable.

torch's own linear uses the precisions of the process. Here TF32 is used only where it is asked for. Autocast does not
change the operands' type. Long sums in 16 bits are not split into parts that are rounded before they are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Cost, cells
from pytest_ecornn.implementations._common import long_sums
from pytest_ecornn.implementations._common.autograd_ops import register_autograd
from pytest_ecornn.reference.held_products import held_products
from pytest_ecornn.reference.precision import is_autocast

_library = torch.library.Library("pytest_ecornn", "FRAGMENT")
_library.define("gate_product(Tensor a, Tensor b, bool tf32) -> Tensor")


def _product(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    with held(a, tf32):
        return long_sums.mm(a, b.T)


def held(like: Tensor, tf32: bool) -> AbstractContextManager[None]:
    """Context in which products of tensors like `like` use this module's precisions, whatever the process's settings are."""
    return _without_autocast(like, tf32) if is_autocast(like.device) else held_products(like.dtype, tf32)


@contextmanager
def _without_autocast(like: Tensor, tf32: bool) -> Iterator[None]:
    """`held` with autocast disabled, which would multiply in 16 bits."""
    with torch.autocast(like.device.type, enabled=False), held(like, tf32):
        yield


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, tf32: bool) -> Tensor:
        ctx.tf32 = tf32
        ctx.save_for_backward(a, b)
        product: Tensor = _below_autograd(a, b, tf32)
        return product

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (a, b), (of_a, of_b, _) = ctx.saved_tensors, ctx.needs_input_grad
        of_first = input_projection(gradient, b.T, ctx.tf32) if of_a else None
        return of_first, input_projection(gradient.T, a.T, ctx.tf32) if of_b else None, None


def _fake(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[0])


def _mapped(info: Any, dims: tuple[int | None, ...], a: Tensor, b: Tensor, tf32: bool) -> tuple[Tensor, int]:
    """Under vmap: one product where only `a` is mapped, else one for each."""
    of_a, of_b, _ = dims
    if of_a is not None and of_b is None:
        rows = a.movedim(of_a, 0)
        return input_projection(rows.flatten(0, 1), b, tf32).unflatten(0, rows.shape[:2]), 0
    each_a, each_b = ([x] * info.batch_size if dim is None else x.unbind(dim) for x, dim in ((a, of_a), (b, of_b)))
    return torch.stack([input_projection(*operands, tf32) for operands in zip(each_a, each_b, strict=True)]), 0


_library.impl("gate_product", _product, "CompositeExplicitAutograd")
_below_autograd = register_autograd(_library, "gate_product", _Differentiable.apply)
torch.library.register_fake("pytest_ecornn::gate_product", _fake, lib=_library)
torch.library.register_vmap("pytest_ecornn::gate_product", _mapped, lib=_library)


def input_projection(a: Tensor, b: Tensor, tf32: bool) -> Tensor:
    """a b^T: [R, K], [N, K] -> [R, N]."""
    product: Tensor = torch.ops.pytest_ecornn.gate_product.default(a, b, tf32)
    return product


def gate_products(x: Tensor, weight: Tensor, tf32: bool) -> Tensor:
    """Gate pre-activations W x: [.., I] -> [.., G*H], with two dimensions before the last."""
    return input_projection(x.flatten(0, 1), weight, tf32).view(*x.shape[:2], weight.shape[0])


def product_cost(case: Case) -> Cost:
    """Cost of all layers' input products: each reads its operands and writes its result, in training three times."""
    size, passes = getattr(torch, case.dtype).itemsize, 3 if case.training else 1
    width, rows = case.directions * case.hidden_size, case.steps * case.batch
    gates, moved, operations = width * len(cells.get(case.cell).gates), 0, 0
    for layer in range(1 if case.projected else 0, case.layers):
        inputs = width if layer else case.input_size
        moved += passes * (rows * gates + (rows + gates) * inputs) * size
        operations += passes * 2 * rows * inputs * gates
    return Cost(moved, operations)
