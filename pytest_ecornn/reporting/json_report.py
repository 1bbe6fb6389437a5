"""report.json: everything, all samples included, and the way back. Strict JSON, of which any other program can make use.

A number that JSON lacks is written as the string "nan", "inf" or "-inf", and read back as a number wherever one is due.
Each row has a line of its own, so that two reports can be compared by diff and a fault can be told by its line.
"""

from __future__ import annotations

import json
import types
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from pytest_ecornn.gate import Outcome
from pytest_ecornn.reporting import files, standing
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.reporting.run_info import RunInfo
from pytest_ecornn.rows import SCHEMA_VERSION, Row

_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}
_FIRST_ROW = 4  # the line of the file
_LATER = {"skipped"}  # fields of a run that reports of the first version lack


def render(run: RunInfo, rows: list[Row], unproven: Collection[standing.Key], compared: Outcome | None = None) -> str:
    """`compared` becomes "comparison", which is not read back."""
    lines = [_line({**row.as_dict(), "status": standing.status(row, unproven)}) for row in rows]
    head = f'{{"schema_version": {SCHEMA_VERSION},\n"run": {_line(run.as_dict())},\n"rows": [\n'
    tail = f',\n"comparison": {_line(compared.as_dict())}' if compared else ""
    return head + ",\n".join(lines) + f"\n]{tail}}}\n"


def _line(data: dict[str, Any]) -> str:
    return json.dumps(strict(data), allow_nan=False)


def strict(value: Any) -> Any:
    """`value` of nothing but what JSON has: foreign numbers as numbers, anything else as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, dict):
        return {str(key): strict(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [strict(one) for one in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if isfinite(value) else str(float(value))
    return str(value)


def read_report(path: Path) -> tuple[RunInfo, list[Row]]:
    """What `render` wrote; rows it marked stay "unproven". Raises ReportError in one line: file, place, what was expected."""
    text = files.read(path)
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise ReportError(f"{path}, line {error.lineno}: expected JSON ({error.msg} at column {error.colno})") from None
    except (ValueError, RecursionError) as error:
        raise ReportError(f"{path}: expected strict JSON ({error})") from None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        found = data.get("schema_version") if isinstance(data, dict) else type(data).__name__
        raise ReportError(f"{path}, line 1: expected an object with schema_version {SCHEMA_VERSION}, got {found!r}")
    rows = data.get("rows")
    if not isinstance(rows, list):
        raise ReportError(f"{path}: expected a list of rows, got {type(rows).__name__}")
    return _run(path, data.get("run")), [_row(path, text, n, row) for n, row in enumerate(rows)]


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"found {constant}, which JSON has not")


def _run(path: Path, data: Any) -> RunInfo:
    known = {one.name for one in fields(RunInfo)}
    if not isinstance(data, dict) or set(data) | _LATER != known:
        found = ", ".join(sorted(data)) if isinstance(data, dict) else type(data).__name__
        raise ReportError(f"{path}: expected run to be an object with {', '.join(sorted(known))}, got {found}")
    try:
        run = RunInfo(**_restored(RunInfo, data))
    except ValueError as error:
        raise ReportError(f"{path}: run: {error}") from None
    run.ceilings = _numbers(run.ceilings)
    return run


def _row(path: Path, text: str, number: int, data: Any) -> Row:
    try:
        return Row.from_dict(_restored(Row, data))
    except ValueError as error:
        raise ReportError(f"{path}, {_place(text, number, data)}: {error}") from None


def _place(text: str, number: int, data: Any) -> str:
    """The row's line, if the file still has the lines that `render` gave it."""
    lines = text.split("\n", _FIRST_ROW + number)
    try:
        is_there = json.loads(lines[_FIRST_ROW + number - 1].removesuffix(",")) == data
    except (IndexError, ValueError):
        is_there = False
    return f"line {_FIRST_ROW + number} (row {number + 1})" if is_there else f"row {number + 1}"


def _restored(kind: Any, data: Any, name: str = "") -> Any:
    """`data` with numbers where the fields of `kind` are numbers. Raises ValueError for a value of another type."""
    if is_dataclass(kind) and isinstance(data, dict):
        hints = get_type_hints(kind)
        return {key: _restored(hints[key], value, key) if key in hints else value for key, value in data.items()}
    if isinstance(kind, types.UnionType):
        kinds = [one for one in get_args(kind) if one is not types.NoneType]
        return None if data is None else _restored(kinds[0], data, name)
    if get_origin(kind) is list and isinstance(data, list):
        return [_restored(get_args(kind)[0], one, name) for one in data]
    if get_origin(kind) is dict and isinstance(data, dict):
        return {key: _restored(get_args(kind)[1], one, f"{name}[{key!r}]") for key, one in data.items()}
    if kind is float and isinstance(data, str) and data in _NUMBERS:
        return _NUMBERS[data]
    _check(kind, data, name)
    return data


def _check(kind: Any, data: Any, name: str) -> None:
    if kind is Any or is_dataclass(kind):
        return  # Row.from_dict tells what is wrong with a dataclass
    expected = get_origin(kind) or kind
    allowed = (int, float) if expected is float else (expected,)
    if not isinstance(data, allowed) or (isinstance(data, bool) and expected is not bool):
        raise ValueError(f"{name}: expected {expected.__name__}, got {json.dumps(data)[:80]}")


def _numbers(value: Any) -> Any:
    """Ceilings hold numbers only, at any depth."""
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    return _NUMBERS.get(value, value) if isinstance(value, str) else value
