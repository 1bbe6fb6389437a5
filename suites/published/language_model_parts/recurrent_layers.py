"""The recurrent layers that the language models are compared by: torch.nn's, this project's modules, and implementations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

import pytest_ecornn.nn
from pytest_ecornn.contract import Case, Implementation, Layer, Weights
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.reference.precision import fp32_precision
from pytest_ecornn.run.discovery import discover

BASELINE, DEFAULT, NONE, YARDSTICK = "nn.LSTM", "sequential", "no recurrent layer", "yardstick"
OURS = ("transposed_gpu", "persistent_gpu", "auto")
_MODULES = ("persistent_gpu", "auto")
LAYERS = 2
_SUFFIX = "_l0"


@dataclass(frozen=True)
class ModelSizes:
    """H units, embedding and layers alike; V words; B sequences of T words. precision: training.PRECISIONS's, or float64."""

    hidden: int
    vocabulary: int
    precision: str
    dropout: float = 0.5
    batch: int = 32
    steps: int = 35

    def case(self, device: str) -> Case:
        """One of the recurrent layers."""
        return Case(
            cell="lstm", steps=self.steps, batch=self.batch, hidden_size=self.hidden, dtype=self.dtype, device=device,
            precision="tf32" if self.precision == "tf32" else "ieee", has_state=True, mode="training",
        )  # fmt: skip

    @property
    def label(self) -> str:
        return f"{LAYERS} x {self.hidden}, {self.precision}"

    @property
    def dtype(self) -> str:
        """The dtype that the recurrent layer computes in."""
        return "float32" if self.precision == "tf32" else self.precision

    @contextmanager
    def precision_set(self) -> Iterator[None]:
        """Sets the precision of float32 products; cuDNN takes tensor cores in bfloat16 only with TF32."""
        products = "ieee" if self.precision in ("float32", "float64") else "tf32"
        with fp32_precision("rnn", products), fp32_precision("matmul", products):
            yield


class NoLayer(nn.Module):
    """The identity, in place of a recurrent layer: what is left of a training step without it."""

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return x, state


class ContractLSTM(nn.Module):
    """Layers of an implementation, with torch.nn.LSTM's parameters, states and dropout between layers."""

    def __init__(self, implementation: Implementation, sizes: ModelSizes, device: str):
        super().__init__()
        self._dropout, self._dtype = sizes.dropout, getattr(torch, sizes.dtype)
        for parameter, value in nn.LSTM(sizes.hidden, sizes.hidden, LAYERS).named_parameters():
            self.register_parameter(parameter, nn.Parameter(value.detach()))
        self.to(device)
        weights = [_CastWeights(self, layer, self._dtype) for layer in range(LAYERS)]
        self._layers: list[Layer] = [implementation.build(sizes.case(device), of_layer) for of_layer in weights]

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """x: [T, B, H]. state: two of [L, B, H]."""
        finals: list[Any] = []
        with torch.autocast(x.device.type, enabled=False):
            x, state = x.to(self._dtype), (state[0].to(self._dtype), state[1].to(self._dtype))
            for number, layer in enumerate(self._layers):
                if number:
                    x = dropout(x, self._dropout, self.training)
                x, final = layer(x, (state[0][number : number + 1], state[1][number : number + 1]), None)
                finals.append(final)
        hidden, cell = (torch.cat(of_layers) for of_layers in zip(*finals, strict=True))
        return x, (hidden, cell)


class _CastWeights(Weights):
    """One layer's parameters under the names of a first layer, cast in each call as autocast casts them.

    Cast ones stay in one place, as a layer may have made CUDA graphs that read them there.
    """

    def __init__(self, module: nn.Module, layer: int, dtype: torch.dtype):
        ending = f"_l{layer}"
        parameters: dict[str, Any] = dict(module.named_parameters())
        super().__init__({name.removesuffix(ending) + _SUFFIX: parameters[name] for name in parameters if ending in name})
        self._cast = {name: torch.empty_like(self._parameters[name], dtype=dtype) for name in self}

    def __getitem__(self, name: str) -> Any:
        parameter, cast = self._parameters[name], self._cast[name]
        return parameter if parameter.dtype == cast.dtype else cast.detach().copy_(parameter)


def make_layer(name: str, sizes: ModelSizes, device: str, seed: int = 0) -> nn.Module:
    """The layers by name, with torch.nn's initial values.

    Raises Unsupported, or ValueError with the reason, where they do not run.
    """
    if name == NONE:
        return NoLayer()
    torch.manual_seed(seed)
    sizes_of_nn = sizes.hidden, sizes.hidden, LAYERS
    initial = nn.LSTM(*sizes_of_nn, dropout=sizes.dropout)
    if name == BASELINE:
        return initial.to(device)
    if name in _MODULES:
        os.environ.setdefault("ECORNN_COMPILE", "wait")  # what is measured is the choice, not what runs before it
        layer: nn.Module = pytest_ecornn.nn.LSTM(*sizes_of_nn, dropout=sizes.dropout, backend=name)
    else:
        layer = _of_implementation(name, sizes, device)
    layer.load_state_dict(initial.state_dict())
    return layer.to(device)


def _of_implementation(name: str, sizes: ModelSizes, device: str) -> nn.Module:
    if name == YARDSTICK:
        return ContractLSTM(ReferenceLoop(), sizes, device)
    if name == DEFAULT:
        sizes = replace(sizes, precision=sizes.dtype)  # it has no TF32
    implementation = discover([])[name].cls()
    if reason := implementation.refusal(sizes.case(device)):
        raise ValueError(reason)
    return ContractLSTM(implementation, sizes, device)
