"""Rows as they come in: a live bar on a terminal, a line a row elsewhere, or a line for several that were only verified.

Drawn only between rows and never by a thread: a bar that refreshes itself would take time from what is being timed.
"""

from __future__ import annotations

import time
from typing import IO, Any

from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from pytest_ecornn.measurement.noise.bounds import describe as describe_disturbance
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row, Timing

_MAX_CHARS = 200
# A line of verified rows stands for so many, and ends after so long a time.
MAX_FOLDED_ROWS, MAX_FOLDED_SECONDS = 10, 60.0
_MAX_UNSUPPORTED = 3  # implementations that have a line each, with what they do not support


class Progress:
    """Writes to `file`; where that is a terminal, the bar vanishes with `stop` and only failures stay.

    folds: elsewhere, rows that passed and were not timed share lines.
    """

    def __init__(self, file: IO[str], folds: bool = False) -> None:
        self._file = file
        self._folds = folds and not file.isatty()
        self._folded, self._folded_since = list[Row](), 0.0
        self._position = ""
        self._unsupported = list[tuple[str, str]]()
        self._bar: progress.Progress | None = None
        self._task = progress.TaskID(0)
        if file.isatty():
            self._start(file)

    def _start(self, file: IO[str]) -> None:
        columns: list[Any] = [
            progress.BarColumn(bar_width=20, table_column=Column(min_width=20)),
            progress.MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
            progress.TimeRemainingColumn(elapsed_when_finished=True, table_column=Column(no_wrap=True, min_width=7)),
            progress.TextColumn("{task.fields[text]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        ]
        self._console = Console(file=file)
        self._bar = progress.Progress(
            *columns, console=self._console, auto_refresh=False, transient=True, expand=True,
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def row_done(self, row: Row, done: int, total: int) -> None:
        """Reports one finished row, the `done`th item of `total`."""
        if not self._folds or row.status != "passed" or row.timing is not None:
            self.item_done(describe(row), row.status, done, total)
            return
        if not self._folded:
            self._folded_since = time.monotonic()
        self._folded.append(row)
        self._position = _position(done, total)
        if len(self._folded) == MAX_FOLDED_ROWS or time.monotonic() - self._folded_since > MAX_FOLDED_SECONDS:
            self._unfold()

    def _unfold(self) -> None:
        """Writes the line of the rows that wait for one."""
        if self._folded:
            names = ", ".join(dict.fromkeys(row.implementation for row in self._folded))
            rows = formatting.count(len(self._folded), "row")
            examples = formatting.count(sum(row.examples for row in self._folded), "example")
            self._file.write(f"{self._position} {formatting.one_line(f'verified: {rows}, {examples}: {names}', _MAX_CHARS)}\n")
            self._file.flush()
            self._folded.clear()

    def item_done(self, text: str, status: str, done: int, total: int) -> None:
        """Reports in one line what a finished item has to say, the `done`th of `total`."""
        self._unfold()
        text = formatting.one_line(text, _MAX_CHARS)
        if self._bar is None:
            self._file.write(f"{_position(done, total)} {text}\n")
            self._file.flush()
            return
        self.update(done, total, text)
        if status == "failed":
            self._console.print(Text(text, "red"))

    def unsupported(self, summary: str, done: int, total: int) -> None:
        """Reports by `UnsupportedItem.summary` what an implementation does not run; elsewhere than on a bar at the end."""
        if self._bar is None:
            self._unsupported.append((_position(done, total), summary))
        else:
            self.update(done, total, summary)

    def _write_unsupported(self) -> None:
        """Writes a line an implementation where these are few, else one of all."""
        lines = self._unsupported
        if len(lines) > _MAX_UNSUPPORTED:
            counts = ", ".join(summary.partition(" rows unsupported")[0] for _, summary in lines)
            lines = [(lines[-1][0], f"rows unsupported, as report.md says: {counts}")]
        self._file.write("".join(f"{position} {formatting.one_line(text, _MAX_CHARS)}\n" for position, text in lines))
        self._unsupported = []

    def update(self, done: int, total: int, text: str) -> None:
        """Redraws the bar, if there is one."""
        if self._bar is None:
            return
        if not self._bar.task_ids:
            self._task = self._bar.add_task("", total=total, text="")
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, text=formatting.one_line(text, _MAX_CHARS), refresh=True)

    def print_above(self, text: str) -> bool:
        """Prints a line above the bar. Whether there is a bar."""
        is_drawn = self._bar is not None and bool(self._bar.task_ids)
        if is_drawn:
            self._console.print(Text(text))
        return is_drawn

    def stop(self) -> None:
        """Removes the bar, or writes what waits for a line. May be called twice."""
        self._unfold()
        self._write_unsupported()
        if self._bar is not None and self._bar.task_ids:
            self._bar.stop()


def _position(done: int, total: int) -> str:
    return f"[{done:{len(str(total))}}/{total}]"


def describe(row: Row) -> str:
    """A row's outcome in one line."""
    return f"{formatting.one_line(f'{row.implementation} {row.case}', _MAX_CHARS)} {_outcome(row)}"


def _outcome(row: Row) -> str:
    if row.status != "passed":
        lines = row.reason.strip().splitlines() or [""]
        return f"{row.status}: {formatting.one_line(lines[0], _MAX_CHARS)}".removesuffix(": ")
    if row.timing is None:
        return f"passed, {formatting.count(row.examples, 'example')}" if row.examples else "passed"
    device_only = f"; device only {_times(row.replay)}" if row.replay else ""
    return _times(row.timing) + device_only


def _times(timing: Timing) -> str:
    parts = [formatting.duration(timing.time_us)]
    for one in timing.against:
        ratio = formatting.ratio_interval(one.ratio, one.low, one.high)
        parts.append(f"{ratio} x {formatting.one_line(one.baseline, _MAX_CHARS)}: {one.verdict}")
    said = describe_disturbance(timing)
    return ", ".join(parts) + (f"; {said}" if said else "")
