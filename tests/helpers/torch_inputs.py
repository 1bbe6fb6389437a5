"""Inputs that torch has for tests of its own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


def torch_inputs(module: type[nn.Module], dtype: torch.dtype, device: str = "cpu") -> list[Any]:
    """Each has `constructor_input` and `forward_input`, with args and kwargs; of a module in training."""
    modules = pytest.importorskip("torch.testing._internal.common_modules")
    info = next(one for one in modules.module_db if one.module_cls is module)
    found: list[Any] = info.module_inputs_func(info, device, dtype, True, True)
    return found
