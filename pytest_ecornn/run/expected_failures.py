"""Failures that are known: a file's lines, each with an implementation, a case that must still fail, and the reason."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pytest_ecornn.cases.sweeps import numbered_lines

if TYPE_CHECKING:
    from pytest_ecornn.results.rows import Row


class ExpectedFailure(NamedTuple):
    """A line. implementation, case: names or globs. properties:CASE is of rows that check properties, CASE of all others."""

    implementation: str
    case: str
    reason: str

    def matches(self, row: Row) -> bool:
        """Whether the row is to fail. Controls, which judge the clock, never are."""
        _, separator, case = self.case.rpartition("properties:")
        is_of_kind = row.kind != "control" and (row.kind == "properties") == bool(separator)
        return is_of_kind and fnmatchcase(row.implementation, self.implementation) and fnmatchcase(row.case, case)

    def nearest(self, rows: Iterable[Row]) -> str:
        """The name of the row that is most like the line's, as a line has it; empty where none is alike."""
        prefixes = {"properties": "properties:"}
        names = {f"{row.implementation} {prefixes.get(row.kind, '')}{row.case}" for row in rows if row.kind != "control"}
        return next(iter(get_close_matches(f"{self.implementation} {self.case}", sorted(names), 1)), "")


class ExpectedFailures(NamedTuple):
    """A file, by its name."""

    name: str
    lines: tuple[ExpectedFailure, ...]

    @classmethod
    def read(cls, path: Path) -> ExpectedFailures:
        """Raises ValueError, in one line, naming the line that is none."""
        lines = [(number, text.split(maxsplit=2)) for number, text in numbered_lines(path)]
        for number, line in lines:
            if len(line) < len(ExpectedFailure._fields):
                raise ValueError(f"{path}, line {number}: expected IMPLEMENTATION CASE REASON, got {' '.join(line)!r}")
        return cls(path.name, tuple(ExpectedFailure(*line) for _, line in lines))

    def of(self, row: Row) -> ExpectedFailure | None:
        """The first line that the row matches."""
        return next((line for line in self.lines if line.matches(row)), None)
