"""Dataclasses as `dataclasses.asdict` and JSON left them, made again by the types of their fields."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin

from pytest_ecornn.results.typed_json import field_types


def from_json(kind: Any, value: Any) -> Any:
    """`value` as `kind`: a dataclass, dict, list, tuple or optional one of such, or what JSON has itself.

    A field that was added after `value` was written has its default. Raises TypeError for one without.
    """
    if is_dataclass(kind) and isinstance(kind, type):
        hints = field_types(kind)
        known = [field.name for field in fields(kind) if field.name in value]
        return kind(**{name: from_json(hints[name], value[name]) for name in known})
    origin, given = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else from_json(next(one for one in given if one is not types.NoneType), value)
    if origin is dict:
        return {key: from_json(given[1], one) for key, one in value.items()}
    if origin is list:
        return [from_json(given[0], one) for one in value]
    if origin is tuple:
        return tuple(from_json(of, one) for of, one in zip(given, value, strict=True))
    return value
