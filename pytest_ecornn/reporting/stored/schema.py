"""The JSON Schema of report.json, derived from the types that a run and its rows declare."""

from __future__ import annotations

import types
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import getdoc
from typing import Any, get_args, get_origin, get_type_hints

from pytest_ecornn.reporting import report_columns
from pytest_ecornn.reporting.json_report import LATER_FIELDS
from pytest_ecornn.results.rows import SCHEMA_VERSION, SENSORS, SLOWED_ROUNDS, WORDS, Row, Timing
from pytest_ecornn.results.run_info import RunInfo
from pytest_ecornn.results.typed_json import NUMBERS

_NUMBER = {"anyOf": [{"type": "number"}, {"enum": list(NUMBERS)}]}
_OBJECT_OR_NULL = {"type": ["object", "null"]}
_THREE = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
_TEXTS = {"type": "array", "items": {"type": "string"}}
# Fields of any content of which parts are read.
_PARTICULARS: dict[type, dict[str, Any]] = {
    RunInfo: {
        "machine": {
            "type": "object",
            "properties": {
                **dict.fromkeys(("packages", "threads", "caches"), _OBJECT_OR_NULL),
                "gpu": {**_OBJECT_OR_NULL, "properties": {"names": {"anyOf": [_TEXTS, {"type": "null"}]}}},
            },
        }
    },
    Timing: {
        "sensors": {
            "type": ["object", "null"],
            "properties": {
                **dict.fromkeys(SENSORS, _THREE),
                "throttled": _TEXTS,
                **{name: {"type": "integer"} for name in SLOWED_ROUNDS},
            },
        }
    },
}
_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"}, bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"$ref": "#/$defs/Number"}, Any: {},
    dict: {"type": "object"}, list: {"type": "array"},
}  # fmt: skip


def report_schema() -> dict[str, Any]:
    """Returns the schema, of draft 2020-12. A number that JSON lacks is one of the strings "nan", "inf" and "-inf"."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:pytest-ecornn:report:{SCHEMA_VERSION}",
        "title": "report.json of pytest-ecornn",
        "type": "object",
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            "run": _reference(RunInfo),
            "rows": {"type": "array", "items": _reference(Row)},
            "comparison": {"type": "object", "description": "With an earlier report, where the run was compared with one."},
        },
        "required": ["schema_version", "run", "rows"],
        "additionalProperties": False,
        "$defs": {"Number": _NUMBER, **{kind.__name__: _object(kind) for kind in (*_classes(RunInfo), *_classes(Row))}},
    }


def _classes(kind: type) -> Iterator[type]:
    """Yields a dataclass and those that its fields hold."""
    yield kind
    for hint in get_type_hints(kind).values():
        for part in (hint, *get_args(hint)):
            if is_dataclass(part) and isinstance(part, type):
                yield from _classes(part)


def _object(kind: type) -> dict[str, Any]:
    """Returns the schema of a dataclass. Fields with a default may be missing, of a run only those of later versions."""
    hints = get_type_hints(kind)
    has_default = {one.name: one.default is not MISSING or one.default_factory is not MISSING for one in fields(kind)}
    optional = LATER_FIELDS if kind is RunInfo else {name for name in has_default if has_default[name]}
    properties = {name: _value(hints[name], WORDS.get((kind.__name__, name))) for name in has_default}
    properties |= _PARTICULARS.get(kind, {})
    if kind in (Row, Timing):
        described = report_columns.descriptions().items()
        properties |= {name: {**properties[name], "description": text} for name, text in described if name in properties}
    return {
        "type": "object",
        "description": getdoc(kind) or "",
        "properties": properties,
        "required": [name for name in has_default if name not in optional],
        "additionalProperties": False,
    }


def _value(hint: Any, words: tuple[str, ...] | None = None) -> dict[str, Any]:
    if words:
        return {"enum": list(words)}
    if is_dataclass(hint):
        return _reference(hint)
    if isinstance(hint, types.UnionType):
        return {"anyOf": [{"type": "null"} if one is types.NoneType else _value(one) for one in get_args(hint)]}
    if get_origin(hint) is list:
        return {"type": "array", "items": _value(get_args(hint)[0])}
    if get_origin(hint) is dict:
        return {"type": "object", "additionalProperties": _value(get_args(hint)[1])}
    return _SCALARS[hint]


def _reference(kind: Any) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{kind.__name__}"}
