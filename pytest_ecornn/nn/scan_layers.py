"""One layer of MinGRU or MinLSTM: its parameters, read anew in each call, and the loop over time where no scan runs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from pytest_ecornn.contract import Case, Layer, Weights, cells
from pytest_ecornn.reference.precision import is_autocast


class LayerWeights(Weights):
    """The parameters of one layer of a module, under the names of a first layer, read anew in each call."""

    def __init__(self, module: Any, layer: int, dtype: torch.dtype):
        super().__init__({})
        self._module, self._dtype = weakref.ref(module), dtype
        self._names = {name.replace(f"_l{layer}", "_l0"): name for name in names_of(module, layer)}

    def __getitem__(self, name: str) -> Any:
        return getattr(self._module(), self._names[name]).to(self._dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def names_of(module: Any, layer: int) -> list[str]:
    """Names of a layer's parameters."""
    kinds = ("weight_ih", "bias_ih")[: 1 + module.bias]
    return [f"{kind}_l{layer}{end}" for end in ("", "_reverse")[: 1 + module.bidirectional] for kind in kinds]


def loop_layer(case: Case, weights: Weights) -> Layer:
    """The layer by a loop over time, in float32 or wider."""
    compute = torch.promote_types(getattr(torch, case.dtype), torch.float32)

    def layer(x: Tensor, state: Tensor | None, lengths: Tensor | None, resets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        parameters = {name: weight.to(compute) for name, weight in weights.items()}
        first = None if state is None else state.to(compute)
        with torch.autocast(x.device.type, enabled=False) if is_autocast(x.device) else nullcontext():
            output, final = cells.reference(case, parameters, x.to(compute), first, lengths, resets)
        assert isinstance(final, Tensor)
        return output.to(x.dtype), final.to(x.dtype)

    return layer
