"""report.json: everything, all samples included, and the way back. Strict JSON, of which any other program can make use.

A number that JSON lacks is written as the string "nan", "inf" or "-inf", and read back as a number wherever one is due.
Each row has a line of its own, so that two reports can be compared by diff and a fault can be told by its line.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import fields
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting import files, standing
from pytest_ecornn.reporting.files import ReportError
from pytest_ecornn.results.rows import SCHEMA_VERSION, Row
from pytest_ecornn.results.run_info import RunInfo, check_fingerprint
from pytest_ecornn.results.score import MutationScore
from pytest_ecornn.results.typed_json import NUMBERS, typed

_FIRST_ROW = 4  # the line of the file
LATER_FIELDS = {"skipped"}  # of a run, which reports of the first version lack


def render(run: RunInfo, rows: list[Row], unproven: Collection[standing.Key], compared: RegressionReport | None = None) -> str:
    """`compared` becomes "comparison", which is not read back."""
    lines = [_line({**row.as_dict(), "status": standing.status(row, unproven)}) for row in rows]
    head = f'{{"schema_version": {SCHEMA_VERSION},\n"run": {_line(run.as_dict())},\n"rows": [\n'
    tail = f',\n"comparison": {_line(compared.as_dict())}' if compared else ""
    return head + ",\n".join(lines) + f"\n]{tail}}}\n"


def _line(data: dict[str, Any]) -> str:
    return json.dumps(to_json(data), allow_nan=False)


def to_json(value: Any) -> Any:
    """`value` of nothing but what JSON has: foreign numbers as numbers, anything else as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, dict):
        return {str(key): to_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if isfinite(value) else str(float(value))
    return str(value)


def read_report(path: Path) -> tuple[RunInfo, list[Row]]:
    """Reads what `render` wrote; rows it marked stay "unproven". Raises ReportError in one line: file, place, expectation."""
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
    if not isinstance(data, dict) or set(data) | LATER_FIELDS != known:
        found = ", ".join(sorted(data)) if isinstance(data, dict) else type(data).__name__
        raise ReportError(f"{path}: expected run to be an object with {', '.join(sorted(known))}, got {found}")
    try:
        run = RunInfo(**typed(RunInfo, data))
        check_fingerprint(run.machine)
        run.score = _score(data.get("score"))
    except ValueError as error:
        raise ReportError(f"{path}: run: {error}") from None
    run.ceilings = _numbers(run.ceilings)
    return run


def _score(data: Any) -> MutationScore | None:
    """Raises ValueError for what is no score."""
    try:
        return None if data is None else MutationScore(**typed(MutationScore, data))
    except TypeError as error:
        raise ValueError(f"score: {error}") from None


def _row(path: Path, text: str, number: int, data: Any) -> Row:
    try:
        return Row.from_dict(typed(Row, data))
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


def _numbers(value: Any) -> Any:
    """Ceilings hold numbers only, at any depth."""
    if isinstance(value, dict):
        return {key: _numbers(one) for key, one in value.items()}
    return NUMBERS.get(value, value) if isinstance(value, str) else value
