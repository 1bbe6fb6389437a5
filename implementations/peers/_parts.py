"""A scan of other people's in three parts: what torch does before it, their scan, and what torch does after it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor


class ScanPipeline(NamedTuple):
    """prepare(x, first, cell, kernel, bias) -> tensors; scan(*tensors, kernel) -> states; finish(states, x) -> outputs.

    Called, it makes outputs in x's dtype, differentiable. x: pre-activations. first: [B, H], None for zeros. bias: [G*H], added
    to x. Raises ValueError for a kernel or cell that there is not, and for more steps than a kernel takes.
    """

    prepare: Callable[..., tuple[Any, ...]]
    scan: Callable[..., Tensor]
    finish: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, x: Tensor, first: Tensor | None, cell: str, kernel: str, bias: Tensor | None) -> Tensor:
        return self.finish(self.scan(*self.prepare(x, first, cell, kernel, bias), kernel), x)

    def compiled(self) -> ScanPipeline:
        """Returns a copy whose torch parts are compiled at the first call; the scan is a kernel already."""
        return self._replace(prepare=_compiled(self.prepare), finish=_compiled(self.finish))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A copy, as torch counts how often it compiles a piece of code, of whatever layer, and soon gives up.

    Without torch's warnings while it compiles: of precisions that were chosen, of tensors that it looks at.
    """
    assert isinstance(function, FunctionType)
    copy = FunctionType(function.__code__.replace(), function.__globals__, function.__name__, closure=function.__closure__)
    compiled = torch.compile(copy, fullgraph=True, dynamic=False)

    def quiet(*arguments: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compiled(*arguments)

    return quiet
