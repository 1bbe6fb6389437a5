"""Functional forms of nn's modules: parameters are given at each call, under the names of a module's `state_dict`."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from pytest_ecornn.nn.calls import missing_transform, store_bounded
from pytest_ecornn.nn.recurrent import GRU, LSTM, RNN, _Recurrent
from pytest_ecornn.nn.scan import MinGRU, MinLSTM

__all__ = ["gru", "lstm", "mingru", "minlstm", "rnn"]

_GATES = {RNN: 1, GRU: 3, LSTM: 4, MinGRU: 2, MinLSTM: 3}
_LAYER = re.compile(r"weight_ih_l(\d+)(_reverse)?")
_MAX_MODULES = 64
_of_this_thread = threading.local()


def rnn(input: Any, weights: Mapping[str, Tensor], hx: Any = None, **options: Any) -> Any:
    """output, final states of an RNN; options: `nonlinearity`, and those of `lstm`."""
    return _call(RNN, input, weights, hx, options)


def gru(input: Any, weights: Mapping[str, Tensor], hx: Any = None, **options: Any) -> Any:
    """output, final states of a GRU; options as `lstm`'s."""
    return _call(GRU, input, weights, hx, options)


def lstm(input: Any, weights: Mapping[str, Tensor], hx: Any = None, **options: Any) -> Any:
    """output, final states of an LSTM, as `LSTM.forward`; layers, directions and biases are those of which there are weights.

    weights: by torch.nn's names (`weight_ih_l0` [4*H, I] ...), through which gradients pass. options: `lengths`, as of
    `LSTM.forward`; `batch_first`, `dropout`, `training` (of dropout and cuDNN; by default whether gradients are computed) and
    `backend`. Raises ValueError for weights that do not make a module, and what the module raises.
    """
    return _call(LSTM, input, weights, hx, options)


def mingru(input: Any, weights: Mapping[str, Tensor], hx: Any = None, **options: Any) -> Any:
    """output, final states of a minGRU; options: `positive`, `resets`, and those of `lstm`."""
    return _call(MinGRU, input, weights, hx, options)


def minlstm(input: Any, weights: Mapping[str, Tensor], hx: Any = None, **options: Any) -> Any:
    """output, final states of a minLSTM; options as `mingru`'s."""
    return _call(MinLSTM, input, weights, hx, options)


def _call(cls: type[Any], input: Any, weights: Mapping[str, Tensor], hx: Any, options: dict[str, Any]) -> Any:
    training, resets, lengths = (options.pop(name, None) for name in ("training", "resets", "lengths"))
    shape = _shape(cls, weights)
    module = _module(cls, shape, tuple(sorted(options.items())), weights["weight_ih_l0"].device)
    module.train(torch.is_grad_enabled() if training is None else training)
    try:
        return torch.func.functional_call(module, dict(weights), (input, hx, resets, lengths), strict=True)
    finally:
        if isinstance(module, _Recurrent):
            module._init_flat_weights()  # or it would hold the caller's weights, as would its short calls
            module._chooser.short.clear()


def _shape(cls: type[Any], weights: Mapping[str, Tensor]) -> tuple[tuple[str, Any], ...]:
    """The arguments of a module that has such weights."""
    found = [match for name in weights if (match := _LAYER.fullmatch(name))]
    first = weights.get("weight_ih_l0")
    if first is None or first.dim() != 2 or first.shape[0] % _GATES[cls]:
        given = ", ".join(f"{name} {list(weight.shape)}" for name, weight in weights.items()) or "none"
        raise ValueError(f"expected the weights of a {cls.__name__}, weight_ih_l0 [{_GATES[cls]}*H, I] first, got {given}")
    projection = weights.get("weight_hr_l0")
    return (
        ("input_size", first.shape[1]),
        ("hidden_size", first.shape[0] // _GATES[cls]),
        ("num_layers", 1 + max(int(match[1]) for match in found)),
        ("bias", "bias_ih_l0" in weights),
        ("bidirectional", any(match[2] for match in found)),
        ("dtype", first.dtype),
        *((("proj_size", projection.shape[0]),) if projection is not None else ()),
    )


def _module(
    cls: type[Any], shape: tuple[tuple[str, Any], ...], options: tuple[tuple[str, Any], ...], device: torch.device
) -> nn.Module:
    """A module without data, of this thread and for weights of a device, which remembers what its calls chose."""
    modules: dict[Any, nn.Module] = _of_this_thread.__dict__.setdefault("modules", {})
    key = cls, shape, options, device
    if key not in modules:
        with (
            nullcontext() if missing_transform() is None else temporarily_clear_interpreter_stack()
        ):  # torch.vmap forbids to draw
            store_bounded(modules, _MAX_MODULES, key, cls(**dict(shape), **dict(options), device="meta"))
    return modules[key]
