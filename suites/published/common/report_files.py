"""A published report's two files: Markdown to read, and JSON from which it is continued or joined."""

from __future__ import annotations

import json
import types
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from pytest_ecornn.results.typed_json import field_types

Report = TypeVar("Report")


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


def write_report(report: Any, markdown: str, folder: Path, name: str, schema_version: int) -> None:
    """Writes FOLDER/NAME.md and FOLDER/NAME.json. report: a dataclass."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(markdown)
    (folder / f"{name}.json").write_text(json.dumps({"schema_version": schema_version, **asdict(report)}) + "\n")


def read_report(kind: type[Report], path: Path, schema_version: int) -> Report:
    """Returns the report that `write_report` wrote. Raises ValueError for one of another schema version."""
    fields = json.loads(path.read_text())
    if (version := fields.pop("schema_version", None)) != schema_version:
        raise ValueError(f"{path}: expected schema version {schema_version}, got {version}")
    report: Report = from_json(kind, fields)
    return report
