"""One line for each finished row, on disk before the next row starts, so that a killed run loses the row in flight at most."""

from __future__ import annotations

import contextlib
import json
import os
from math import inf
from pathlib import Path
from typing import Any

from pytest_ecornn.results.rows import SCHEMA_VERSION, Row
from pytest_ecornn.results.run_info import check_fingerprint
from pytest_ecornn.results.typed_json import typed

NAME = "journal.jsonl"


class JournalError(Exception):
    """One line: which file, what was expected, what came."""


def cannot_write(path: Path, error: OSError) -> JournalError:
    """Error for an unwritable journal, raised before any measurement so that another folder can still be chosen."""
    return JournalError(f"{path}: cannot be written ({error.strerror or error}); choose another --ecornn-report")


class Journal:
    """Appends rows to `directory`/journal.jsonl; its first line says which run it belongs to."""

    def __init__(self, directory: Path, header: dict[str, Any], is_resumed: bool):
        self.path = directory / NAME
        self.header, self.rows = header, list[Row]()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if is_resumed and self.path.exists():
                self._resume()
            else:
                self._start(header)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._keys = {row.key for row in self.rows}

    def _start(self, header: dict[str, Any]) -> None:
        if self.path.exists():
            os.replace(self.path, self.path.with_suffix(".previous.jsonl"))
        self._append({"schema_version": SCHEMA_VERSION, **header})

    def _resume(self) -> None:
        self.header, self.rows, length = read(self.path)
        if length < self.path.stat().st_size:
            with self.path.open("r+b") as file:  # the line that the kill cut short
                file.truncate(length)

    def add(self, *rows: Row) -> None:
        """Writes the rows through to the disk, save those that stand there already.

        Raises JournalError where the disk is full.
        """
        new = [row for row in rows if row.key not in self._keys]
        if not new:
            return
        self._keys |= {row.key for row in new}
        self.rows += new
        try:
            self._append(*(row.as_dict() for row in new))
        except OSError as error:
            raise JournalError(f"{self.path}: cannot be written ({error.strerror or error})") from error

    @property
    def kept(self) -> int:
        """How many rows are on disk. Raises JournalError where that cannot be read."""
        return len(read(self.path)[1])

    def _append(self, *data: dict[str, Any]) -> None:
        """A whole line each, or none."""
        before = None
        try:
            with self.path.open("a", encoding="utf-8") as file:
                before = file.tell()
                file.writelines(json.dumps(line) + "\n" for line in data)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            if before is not None:
                with contextlib.suppress(OSError):
                    os.truncate(self.path, before)
            raise


def read(path: Path) -> tuple[dict[str, Any], list[Row], int]:
    """Header, rows, and the length in bytes of what is whole. A last line cut short by a kill is left out.

    Raises JournalError naming the file and line of anything else that is not a row of this schema.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise JournalError(f"{path}: cannot be read ({error.strerror or error})") from error
    if lines and not lines[-1].endswith(b"\n"):
        lines.pop()
    if not lines:
        raise JournalError(f"{path}: is empty; expected a journal's header; run without --ecornn-resume")
    header = _parse(path, 1, lines[0])
    if header.get("schema_version") != SCHEMA_VERSION:
        raise JournalError(
            f"{path}: expected schema_version {SCHEMA_VERSION}, got {header.get('schema_version')!r}; "
            "run without --ecornn-resume"
        )
    _check_header(path, header)
    rows = []
    for number, line in enumerate(lines[1:], 2):
        try:
            row = Row.from_dict(typed(Row, _parse(path, number, line)))
            _check_times(row)
            rows.append(row)
        except ValueError as error:
            raise JournalError(f"{path}, line {number}: {error}; run without --ecornn-resume") from None
    return header, rows, sum(map(len, lines))


def _check_times(row: Row) -> None:
    """Raises ValueError where a row that is said to have passed was not timed as its kind is."""
    if row.status == "passed" and row.kind in ("benchmark", "control") and row.timing is None:
        raise ValueError(f"timing: expected an object in a {row.kind} row that passed, got none")
    for timing in filter(None, (row.timing, row.replay)):
        columns = [timing.samples_us, *(against.samples_us for against in timing.against)]
        if not all(len(column) == len(timing.samples_us) > 0 for column in columns) or (row.kind, timing.against) == (
            "control",
            [],
        ):
            raise ValueError("samples_us: expected as many times of the row as of each that it is compared with, got others")
        if not all(0 <= time < inf for times in ([timing.time_us], *columns) for time in times):
            raise ValueError("time_us: expected finite times of 0 or more, got others")


def _check_header(path: Path, header: dict[str, Any]) -> None:
    """Raises JournalError where a run cannot be told from this one by what the header says of it."""
    stored_setup = header.get("setup", {})
    try:
        check_fingerprint(header.get("machine", {}))
        for name, value in (
            ("setup", stored_setup),
            ("setup.sources", stored_setup.get("sources", {}) if isinstance(stored_setup, dict) else {}),
        ):
            if not isinstance(value, dict):
                raise ValueError(f"{name}: expected an object, got {type(value).__name__}")
    except ValueError as error:
        raise JournalError(f"{path}, line 1: {error}; run without --ecornn-resume") from None


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"{path}, line {number}: expected a JSON object ({error}); run without --ecornn-resume") from None
    if not isinstance(data, dict):
        raise JournalError(
            f"{path}, line {number}: expected a JSON object, got {type(data).__name__}; run without --ecornn-resume"
        )
    return data
