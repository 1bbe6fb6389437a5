"""What modules ask of torch's tracers, marks for torch.fx, and decorators for torch.compile.

Those of torch.compiler import the compiler where they are written, which takes seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch._compile import _disable_dynamo

from pytest_ecornn.implementations._common.autograd_ops import PRE_DISPATCH

_set_tracing_state: Any = getattr(torch._C, "_set_tracing_state", None)  # which torch's stubs lack
Function = TypeVar("Function", bound=Callable[..., Any])
LEAF_MODULE = "torch.nn"  # __module__ of an instance that torch.fx is to take as one node, as it asks only for this


def constant_in_graphs(function: Function) -> Function:
    """torch.compiler.assume_constant_result: torch.compile calls the function while it traces, and keeps what it returns."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def outside_of_graphs(function: Function) -> Function:
    """torch.compiler.disable: torch.compile breaks its graph at a call, and traces nothing that the function calls."""
    run: Any = _disable_dynamo(function)  # which imports the compiler when it is called
    run._torchdynamo_disable = True  # so that an error of fullgraph=True names torch.compiler.disable
    return run  # type: ignore[no-any-return]


@constant_in_graphs
def exports_onnx() -> bool:
    """Whether one of torch's exporters to ONNX traces, whose graphs hold no ops but torch's."""
    return "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export()


def is_recorded() -> bool:
    """Whether torch.jit.trace or make_fx records the calls, in which no tensor's value may decide anything."""
    if torch._C._get_tracing_state() is not None or torch._C._dispatch_tls_is_dispatch_key_included(PRE_DISPATCH):
        return True
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def untraced() -> AbstractContextManager[None]:
    """Context in which sizes are numbers, where torch.jit.trace has made them tensors."""
    return nullcontext() if torch._C._get_tracing_state() is None else _without_tracing_state()


@contextmanager
def _without_tracing_state() -> Iterator[None]:
    state = torch._C._get_tracing_state()
    _set_tracing_state(None)
    try:
        yield
    finally:
        _set_tracing_state(state)
