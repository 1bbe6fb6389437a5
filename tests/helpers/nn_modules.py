"""torch.nn's recurrent modules and this project's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import pytest_ecornn.nn

# torch.nn's class and this project's of each cell, and the options that make it that cell.
MODULES: dict[str, tuple[type[nn.RNNBase], type[nn.RNNBase], dict[str, str]]] = {
    "rnn_tanh": (nn.RNN, pytest_ecornn.nn.RNN, {}),
    "rnn_relu": (nn.RNN, pytest_ecornn.nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (nn.LSTM, pytest_ecornn.nn.LSTM, {}),
    "gru": (nn.GRU, pytest_ecornn.nn.GRU, {}),
}


def both(cell: str, *args: Any, **options: Any) -> tuple[nn.RNNBase, Any]:
    """torch.nn's module, and this project's of the same weights."""
    theirs, ours, own = MODULES[cell]
    torch.manual_seed(0)
    reference, module = (of(*args, **{**own, **options}) for of in (theirs, ours))
    module.load_state_dict(reference.state_dict())
    return reference, module


def tensors(found: Any) -> list[Tensor]:
    """All that output and final states hold."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, PackedSequence):
        return [found.data]
    return [one for part in found for one in tensors(part)]
