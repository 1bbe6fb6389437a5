"""Names of the operators that run: how often, in which order, and whether this project's are among them."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Operators(TorchDispatchMode):
    """Lists the operators that run within it, without their overloads: `aten::mm`.

    sees_inside_ops: whether this project's functions run their kernels and torch's operators directly, not by their own ops.
    """

    def __init__(self, sees_inside_ops: bool = False) -> None:
        super().__init__()
        self.sees_inside_ops, self.names = sees_inside_ops, list[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function._schema.name)
        return function(*args, **(kwargs or {}))
