"""TF32 on or off in exactly the calls that ask for it, forward and backward: torch keeps it for the whole process.

torch 2.9 and later keep a precision of each operation, earlier ones a flag for all of cuDNN. The newer form is used wherever
it exists, never both: it can always be read, while the older raises once anybody has set the newer, and cuDNN and cuBLAS
read the newer. What is put back is the precision in force, written out where it was inherited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from pytest_ecornn.contract import Case
from pytest_ecornn.reference.rounding import Rounding

Operation = Literal["matmul", "rnn"]
Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]

_HAS_OPERATIONS = hasattr(torch.backends.cudnn.rnn, "fp32_precision")
_read: Any = getattr(torch._C, "_get_fp32_precision_getter", None)  # which the attribute takes 2 us of the host to call


def tf32_refusal(case: Case) -> str | None:
    """Why no such precision exists for the case's dtype, or None."""
    return "TF32 is a precision of float32 products" if case.precision == "tf32" and case.dtype != "float32" else None


def cudnn_precision(case: Case) -> str | None:
    """The precision of float32 products that a case of cuDNN needs; None where it does not matter.

    Unless TF32 is allowed, torch forbids cuDNN the tensor cores, in bfloat16 too.
    """
    return {"float32": case.precision, "bfloat16": "tf32"}.get(case.dtype)


def current(operation: Operation) -> str:
    """The process's precision of float32 products: "tf32", or "ieee" or "none", which mean the same."""
    if _HAS_OPERATIONS:
        is_traced = _read is None or torch.compiler.is_compiling()
        precision: str = _place(operation).fp32_precision if is_traced else _read("cuda", operation)
        return precision
    return "tf32" if _place(operation).allow_tf32 else "ieee"


def reader(operation: Operation) -> Callable[[], str]:
    """Returns the quickest function that reads `current`, for code that torch.compile does not trace."""
    return partial(current, operation) if _read is None else partial(_read, "cuda", operation)


def is_autocast(device: torch.device) -> bool:
    """Whether autocast is enabled on that kind of device; quick where it is on none."""
    return torch._C._is_any_autocast_enabled() and torch.is_autocast_enabled(device.type)


@contextmanager
def fp32_precision(operation: Operation, wanted: str | None) -> Iterator[None]:
    """Sets the precision of float32 products of cuBLAS ("matmul") or cuDNN ("rnn") within it; None leaves the process's."""
    if wanted is None or (before := current(operation)) == wanted:
        yield
        return
    set_precision(operation, wanted)
    try:
        yield
    finally:
        set_precision(operation, before)


def hold_in_node(node: torch.autograd.graph.Node, operation: Operation, wanted: str) -> None:
    """Sets the precision while the backward pass runs this node, on whichever thread. It stays if the node itself raises."""
    held: list[AbstractContextManager[None]] = []

    def enter(gradients: Any) -> None:
        held.append(fp32_precision(operation, wanted))
        held[-1].__enter__()

    def exit_node(inputs: Any, gradients: Any) -> None:
        held.pop().__exit__(None, None, None)

    node.register_prehook(enter)
    node.register_hook(exit_node)


def ieee_linear() -> Linear:
    """torch's linear where the process multiplies in IEEE precision now, else one that does, forward and backward."""
    return partial(_linear, lambda operand: operand) if current("matmul") == "tf32" else linear


def tf32_linear(rounding: Rounding) -> Linear:
    """A linear whose products, forward and backward, take operands without the bits that TF32 does not have, on any device."""
    return partial(_linear, rounding.tf32)


def _linear(prepare: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    result: Tensor = _Linear.apply(prepare, x, weight, bias)  # type: ignore[no-untyped-call]
    return result


class _Linear(torch.autograd.Function):
    """IEEE products of operands that are prepared."""

    @staticmethod
    def forward(ctx: Any, prepare: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        x, weight = prepare(x), prepare(weight)
        ctx.prepare = prepare
        ctx.save_for_backward(x, weight)
        with fp32_precision("matmul", "ieee"):
            return linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x, weight), (_, of_x, of_weight, of_bias) = ctx.saved_tensors, ctx.needs_input_grad
        operand = ctx.prepare(gradient)
        with fp32_precision("matmul", "ieee"):
            return (
                None,
                operand @ weight if of_x else None,
                operand.flatten(0, -2).T @ x.flatten(0, -2) if of_weight else None,
                gradient.flatten(0, -2).sum(0) if of_bias else None,
            )


def _place(operation: Operation) -> Any:
    if operation == "matmul":
        return torch.backends.cuda.matmul
    return torch.backends.cudnn.rnn if _HAS_OPERATIONS else torch.backends.cudnn


def set_precision(operation: Operation, precision: str) -> None:
    """Sets the process's precision of float32 products."""
    if _HAS_OPERATIONS:
        _place(operation).fp32_precision = precision
    else:
        _place(operation).allow_tf32 = precision == "tf32"
