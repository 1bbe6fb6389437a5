"""Rows of functions that were checked or compared: a table in a terminal and in a notebook, and JSON as of a run's report."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pytest_ecornn.regression.gate_limits import COLUMNS
from pytest_ecornn.reporting import answer_table, files, json_report
from pytest_ecornn.reporting.console import page, summary
from pytest_ecornn.reporting.console.rows_table import rows_table
from pytest_ecornn.reporting.stored.load import load_report
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import BaselineRatio, Row
from pytest_ecornn.results.run_info import RunInfo
from pytest_ecornn.system import machine

_HTML = '<pre style="white-space: pre; line-height: 1.3">{code}</pre>'


@dataclass(eq=False)
class KernelReport:
    """What `check` and `compare` return. rows: a row for each function, as reports of a run have them."""

    rows: list[Row]
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def row(self) -> Row:
        """The only row. Raises ValueError where there are several."""
        (row,) = self.rows
        return row

    def ratio(self, name: str, than: str, column: str = "") -> BaselineRatio:
        """The time of one function over another's, with its interval and verdict; device only where that was measured.

        column: "timing", as called, or "replay", device only. Raises ValueError for a function that was not compared.
        """
        if column not in ("", *COLUMNS):
            raise ValueError(f"column: expected one of {', '.join(COLUMNS)}, got {column!r}")
        row = next((one for one in self.rows if one.implementation == name), None)
        timing = row and (getattr(row, column) if column else row.replay or row.timing)
        found = next((one for one in timing.against if one.baseline == than), None) if timing else None
        if found is None:
            names = ", ".join(one.implementation for one in self.rows)
            raise ValueError(f"expected two of {names} that took turns, got {name!r} and {than!r}")
        return found

    def assert_not_slower(self, name: str, than: str, by: str | float = "5%", column: str = "") -> None:
        """Raises AssertionError where the whole interval says that `name` takes longer than the other by more than this."""
        limit = _share(by)
        one = self.ratio(name, than, column)
        if one.low > 1 + limit:
            interval = formatting.ratio_interval(one.ratio, one.low, one.high)
            raise AssertionError(f"{name} takes {interval} times as long as {than}: expected at most {1 + limit:g}\n{self}")

    def __str__(self) -> str:
        return self._printed().export_text().rstrip("\n")

    def _repr_html_(self) -> str:
        return self._printed().export_html(inline_styles=True, code_format=_HTML)

    def _printed(self) -> Console:
        console = Console(record=True, file=io.StringIO(), width=page.PLAIN_WIDTH)
        if any(row.timing for row in self.rows):
            page.print_table(console, rows_table(self.rows, ()))
        for row in self.rows:
            if row.kind == "drawn":
                page.print_table(console, _proof_table(row))
        texts = dict.fromkeys(text for row in self.rows for text in (row.reason, row.notes) if text)
        summary.print_lines(console, [*texts])
        return console

    def save(self, path: str | Path) -> Path:
        """Writes a report.json that `load` and `pytest_ecornn.load_report` read; into a folder under that name.

        Raises ReportError where it cannot be written.
        """
        path = Path(path)
        path = path if path.suffix == ".json" else path / "report.json"
        run = RunInfo(self.started, sum(row.seconds for row in self.rows), "pytest_ecornn", machine.fingerprint(Path.cwd()))
        files.write(path, json_report.render(run, self.rows, ()))
        return path

    @classmethod
    def load(cls, path: str | Path) -> KernelReport:
        """Raises ReportError, in one line, for a file that is none."""
        report = load_report(path)
        return cls(report.rows, report.run.started)


class WrongKernel(AssertionError):
    """A function that is wrong, with the report that says so."""

    def __init__(self, message: str, report: KernelReport):
        super().__init__(message)
        self.report = report


def _share(by: str | float) -> float:
    try:
        share = float(by[:-1]) / 100 if isinstance(by, str) and by.endswith("%") else float(by)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise ValueError(f"by: expected a share as 0.05 or '5%', got {by!r}")
    return share


def _proof_table(row: Row) -> Table:
    """A line for each tensor and its worst error, and one for the properties."""
    table = answer_table.empty_table()
    table.add_column(Text(f"{row.implementation}: {row.case}"), overflow="fold")
    for name in ("of limit", "rms error", "largest", "draws", "status"):
        table.add_column(name, no_wrap=True, justify="right")
    names = {one.tensor for one in row.tensors}
    for one in row.tensors:
        figures = [f"{one.share:.0%}", f"{one.rms:.2g}", f"{one.maximum:.2g}", str(row.informative.get(one.tensor, 0))]
        table.add_row(Text(one.tensor), *figures, Text(one.status, answer_table.STYLES.get(one.status, "")))
    for name in [name for name in (*row.informative, *row.uninformative) if name not in names]:
        held = row.informative.get(name, 0)
        table.add_row(Text(name), "", "", "", str(held), "held" if held else "not checked")
    return table
