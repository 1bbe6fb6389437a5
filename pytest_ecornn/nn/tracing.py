"""Marks for torch.compile and torch.fx. Decorators of torch.compiler import the compiler at once, which takes seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._compile import _disable_dynamo

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
