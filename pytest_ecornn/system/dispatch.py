"""A mode that sees every operator that runs, and does not load torch's compiler for that."""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Self

from torch._compile import _disable_dynamo
from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """torch's own keeps the compiler away from every mode, for which it imports it: 2 s, though nobody compiles anything.

    Here it is kept away once somebody has imported it. Higher-order operators, such as scan and cond, pass through it as well.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __enter__(self) -> Self:
        if "torch._dynamo" in sys.modules:
            self._keep_from_compiler()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    _kept: ClassVar[set[type[Any]]] = set()

    @classmethod
    def _keep_from_compiler(cls) -> None:
        if cls not in cls._kept:
            cls._kept.add(cls)
            cls.__torch_dispatch__ = _disable_dynamo(cls.__torch_dispatch__)  # type: ignore[method-assign]
