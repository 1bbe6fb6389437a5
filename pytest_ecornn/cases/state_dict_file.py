"""Tensors by names from a file that anyone may have made: whatever it holds, a ValueError of one line is the worst.

torch's own messages are not passed on: they advise to load the file unsafely.
"""

from __future__ import annotations

import re
import stat
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from pytest_ecornn.contract import DTYPES
from pytest_ecornn.results.formatting import one_line

EXPECTED = "expected what torch.save(model.state_dict(), FILE) writes of a torch.nn.RNN, LSTM or GRU"
MAX_LAYERS = 1000
_MAX_NAME_LENGTH = 60
_RECURRENT_DIMENSIONS = 2


def load(path: Path) -> dict[str, Tensor]:
    """The file's tensors. Raises ValueError for another file, and for anything in it that is no tensor with a name."""
    _check_is_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a parser of foreign bytes may raise anything
        raise ValueError(f"cannot read {path} ({_reason(error)}): {EXPECTED}") from error
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}: {EXPECTED}")
    for name, value in content.items():
        if not isinstance(name, str):
            raise ValueError(f"{path}: expected names as keys, got {shown(repr(name))}: {EXPECTED}")
        if not isinstance(value, Tensor):
            raise ValueError(f"{path} holds something else than tensors by names, {shown(name)}: {EXPECTED}")
    return dict(content)


def _check_is_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {path} ({getattr(error, 'strerror', None) or error}): {EXPECTED}") from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no regular file"
        raise ValueError(f"cannot read {path} (it is {kind}): {EXPECTED}")


def _reason(error: Exception) -> str:
    """Why torch could not read the file, in our words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if name := re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", str(error)):
        return f"it holds an object of {shown(name[1])}, not tensors alone"
    if "TorchScript" in str(error):
        return "it is a TorchScript archive"
    return "it is damaged, or torch.save did not write it"


def check(source: str, name: str, value: Tensor) -> None:
    """Raises ValueError unless the tensor can be used as a weight: dense, in memory, not empty, of finite numbers."""
    if problem := _problem(value):
        raise ValueError(f"{source}: {shown(name)}: expected {problem[0]}, got {problem[1]}")


def _problem(value: Tensor) -> tuple[str, str] | None:
    """Returns (expected, actual) for an unusable weight; None for a usable one."""
    kinds = {"nested": value.is_nested, "quantized": value.is_quantized, str(value.layout): value.layout != torch.strided}
    kinds[type(value).__name__] = type(value) not in (Tensor, Parameter)
    if special := [kind for kind, is_so in kinds.items() if is_so]:
        return "a dense tensor", f"one that is {special[0]}"
    if value.device.type != "cpu":
        return "a tensor with values", f"one on the device {value.device}"
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in DTYPES:
        return f"one of {', '.join(DTYPES)}", str(value.dtype)
    if value.numel() == 0:
        return "at least one element", f"shape {list(value.shape)}"
    if value.numel() * value.element_size() > value.untyped_storage().nbytes():
        return "as many elements in the file as in the tensor", f"shape {list(value.shape)} of fewer"
    return None if value.isfinite().all() else ("finite numbers", "NaN or infinity")


def check_matrix(source: str, name: str, value: Tensor) -> None:
    """Raises ValueError unless the tensor has rows and columns."""
    if value.dim() != _RECURRENT_DIMENSIONS:
        raise ValueError(f"{source}: {shown(name)}: expected two dimensions, [G*H, columns], got shape {list(value.shape)}")


def count_layers(source: str, names: Iterable[str]) -> int:
    """Counts layers by the numbers in parameter names. Raises ValueError where these are not 0, 1, ..., or too many."""
    numbers = {int(match[1]): name for name in names if (match := re.search(r"_l([0-9]{1,9})(?:_reverse)?$", name))}
    if len(numbers) > MAX_LAYERS or sorted(numbers) != list(range(len(numbers))):
        last = shown(numbers[max(numbers)])
        raise ValueError(f"{source}: {last}: expected layers 0, 1, ... without a gap, {MAX_LAYERS} at most")
    return len(numbers)


def masked(source: str, name: str, value: Tensor, mask: Tensor) -> Tensor:
    """Applies the mask to the parameter. Raises ValueError for a mask that is not one of torch.nn.utils.prune."""
    if mask.shape != value.shape:
        raise ValueError(f"{source}: {shown(name)}_mask: expected shape {list(value.shape)}, got {list(mask.shape)}")
    if not ((mask == 0) | (mask == 1)).all():
        raise ValueError(f"{source}: {shown(name)}_mask: expected zeros and ones, got other numbers")
    return value * mask


def shown(name: Any) -> str:
    """Foreign text in one short line."""
    return one_line(name, _MAX_NAME_LENGTH)
