"""The calls with which torch tests its own modules, which another process reads.

torch.testing._internal changes its process: it locks the settings of torch.backends, and has Hypothesis draw ten examples.
"""

from __future__ import annotations

import io
import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import TestCase

import pytest
import torch
from torch import nn

_DTYPES = torch.float32, torch.float64


class Call(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class ModuleInput(NamedTuple):
    constructor_input: Call
    forward_input: Call


class ErrorInput(NamedTuple):
    """forward_input: None where the constructor is to raise."""

    constructor_input: Call
    forward_input: Call | None
    error: type[Exception]
    message: str


def torch_inputs(module: type[nn.Module], dtype: torch.dtype, device: str = "cpu") -> list[ModuleInput]:
    """Calls of a module in training, whose tensors require gradients. All callers have the same, so change none."""
    return [ModuleInput(Call(*made), Call(*call)) for made, call in _of(module, dtype, device)[0]]


def torch_error_inputs(module: type[nn.Module], dtype: torch.dtype) -> list[ErrorInput]:
    """Calls that raise."""
    errors = _of(module, dtype, "cpu")[1]
    return [ErrorInput(Call(*made), call and Call(*call), *expected) for made, call, *expected in errors]


def _of(module: type[nn.Module], dtype: torch.dtype, device: str) -> Any:
    if find_spec("torch.testing._internal") is None or find_spec("torch.testing._internal.common_modules") is None:
        pytest.skip("this torch comes without torch.testing._internal.common_modules")
    return _read(device)[module, dtype]


@lru_cache
def _read(device: str) -> Any:
    done = subprocess.run([sys.executable, __file__, device], capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()
    return torch.load(io.BytesIO(done.stdout), weights_only=False)


def _write(device: str) -> None:
    """Writes inputs and errors of each module and dtype to standard output, without classes of torch.testing."""
    # torch.testing imports a package for tests, of which it needs a base class alone.
    sys.modules["expecttest"] = SimpleNamespace(TestCase=TestCase)  # type: ignore[assignment]
    from torch.testing._internal.common_modules import module_db

    def both(calls: Any) -> tuple[Any, Any]:
        made, call = (call and (call.args, call.kwargs) for call in (calls.constructor_input, calls.forward_input))
        return made, call

    calls = {}
    for info in module_db:
        for dtype in _DTYPES if info.module_cls in (nn.RNN, nn.GRU, nn.LSTM) else ():
            inputs = info.module_inputs_func(info, device, dtype, True, True, with_packed_sequence=True)
            errors = [
                (*both(error.module_error_input), error.error_type, error.error_regex)
                for error in info.module_error_inputs_func(info, device, dtype, True, True)
            ]
            calls[info.module_cls, dtype] = list(map(both, inputs)), errors
    saved = io.BytesIO()
    torch.save(calls, saved)
    sys.stdout.buffer.write(saved.getvalue())


if __name__ == "__main__":
    _write(sys.argv[1])
