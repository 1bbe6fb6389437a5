"""The results are of a subclass of Tensor that does the work once somebody looks at them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, State, Weights
from pytest_ecornn.planted._correct import AroundLoop

CAUGHT_BY = "form"
CELL = "gru"


class Promise(Tensor):
    """Stands for the output until any function is called on it."""

    work: Any = None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*[one.work()[0] if isinstance(one, cls) and one.work else one for one in args], **(kwargs or {}))


class Cheat(AroundLoop):
    def call(self, layer: Layer, case: Case, weights: Weights, x: Tensor, state: State, lengths: Tensor | None) -> Any:
        promise: Any = torch.Tensor._make_subclass(Promise, torch.zeros(()))
        promise.work = partial(layer, x, state, lengths)
        return promise, layer(x, state, lengths)[1]
