"""JSON data checked against the types that a dataclass declares: what a file holds is used only as what it should be."""

from __future__ import annotations

import json
import types
from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

# How numbers that JSON lacks are written.
NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}

MAX_INTEGER = 2**63
_WORDS: dict[Any, str] = {dict: "an object", list: "a list"}


@cache
def field_types(kind: Any) -> dict[str, Any]:
    """Types of a dataclass's fields by name, evaluated once."""
    return get_type_hints(kind)


def typed(kind: Any, data: Any, name: str = "") -> Any:
    """`data` with numbers where the fields of `kind` are numbers. Raises ValueError for a value of another type."""
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(data, dict):
        hints = field_types(kind)
        return {key: typed(hints[key], value, key) if key in hints else value for key, value in data.items()}
    if isinstance(kind, types.UnionType):
        kinds = [member for member in get_args(kind) if member is not types.NoneType]
        return None if data is None else typed(kinds[0], data, name)
    if get_origin(kind) is list and isinstance(data, list):
        return [typed(get_args(kind)[0], element, name) for element in data]
    if get_origin(kind) is dict and isinstance(data, dict):
        return {key: typed(get_args(kind)[1], value, f"{name}[{key!r}]") for key, value in data.items()}
    if kind is float and isinstance(data, str) and data in NUMBERS:
        return NUMBERS[data]
    _check(kind, data, name)
    return float(data) if kind is float else data


def _check(kind: Any, data: Any, name: str) -> None:
    """Raises ValueError where the value is not of the kind, or a number too large for it."""
    if kind is Any:
        return
    expected = dict if is_dataclass(kind) else get_origin(kind) or kind
    allowed = (int, float) if expected is float else (expected,)
    if not isinstance(data, allowed) or (isinstance(data, bool) and expected is not bool):
        raise ValueError(f"{name or 'row'}: expected {_WORDS.get(expected, expected.__name__)}, got {_abbreviate(data)}")
    if isinstance(data, int) and not abs(data) < MAX_INTEGER:
        raise ValueError(f"{name}: expected a number below 2**63, got one of {len(str(data))} digits")


def _abbreviate(data: Any) -> str:
    """A value of a file in a few characters. One that is nested as deep as Python goes cannot be written out."""
    return _WORDS[type(data)] if type(data) in _WORDS else json.dumps(data)[:80]
