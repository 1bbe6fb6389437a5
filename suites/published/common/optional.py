"""Fetches by name, when used, what this version or a machine may lack; gives the reason where it is absent."""

from __future__ import annotations

import importlib
import importlib.util
import re
from typing import Any

import torch

from pytest_ecornn.system.error_line import error_line

NOT_REACHED = "not reached in the time allowed"  # the reason where a part's time was over before
OUT_OF_MEMORY = torch.OutOfMemoryError.__name__  # in the reason where a device's memory did not suffice
_IMPLEMENTATIONS = "pytest_ecornn.implementations"
_NUMBER = re.compile(r"[\d,.]*\d")


class Unavailable(Exception):
    """One line: why there is no such thing here."""


def import_optional(module: str, name: str) -> Any:
    """`name` of a module of the implementations. Raises Absent where there is no such module, or a package that it needs."""
    path = f"{_IMPLEMENTATIONS}.{module}"
    if importlib.util.find_spec(path) is None:
        raise Unavailable("absent from this version")
    try:
        return getattr(importlib.import_module(path), name)
    except ImportError as error:
        raise Unavailable(f"cannot be imported: {error}") from error


def without_numbers(reason: str) -> str:
    """The reason without its numbers, by which alone others may differ."""
    return _NUMBER.sub("", reason)


def reason(error: BaseException) -> str:
    """An exception in one line, as a table's cell has it."""
    if isinstance(error, Unavailable):
        return str(error)
    return error_line(error, 160)
