"""The heat map: implementations by cases, each cell how many times as fast as the baseline, coloured by the verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite, log2

from pytest_ecornn.reporting import answer_table, standing
from pytest_ecornn.reporting.answer import Answer
from pytest_ecornn.reporting.report_columns import ReportColumn
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import Row

_MAX_NAME = 20  # of a baseline in a cell
_LEVELS = (1.25, 2.0, 4.0)  # times as fast or as slow from which a colour is stronger


@dataclass(frozen=True)
class Cell:
    """One implementation on one case. number: of its row among the details. speed: how a column is sorted, "" sorts last.

    level: a class of the style sheet: faster-0 to faster-3, slower-0 to slower-3, same, unclear, baseline or none.
    """

    number: int
    text: str
    time: str = ""
    level: str = "none"
    speed: str = ""


@dataclass(frozen=True)
class Line:
    """One case. fastest: its name, its verdict beside; certain: whether that is sure. further: texts of `HeatMap.headings`."""

    case: str
    cell: str
    dtype: str
    mode: str
    device: str
    fastest: str
    verdict: str
    is_certain: bool
    cells: list[Cell | None]
    further: list[str]


@dataclass(frozen=True)
class HeatMap:
    """Times of one column: as called, or device only. headings: of columns beside the implementations'."""

    column: str
    title: str
    names: list[str]
    headings: list[str]
    lines: list[Line]


def of_rows(rows: Sequence[Row], unproven: Collection[standing.Key], summary: Sequence[Answer]) -> list[HeatMap]:
    """A map for each column of times that the rows have. rows: those that were to be timed and were not skipped."""
    return [_map(rows, unproven, summary, column) for column in (standing.columns(rows) if rows else ())]


def _map(rows: Sequence[Row], unproven: Collection[standing.Key], summary: Sequence[Answer], column: str) -> HeatMap:
    names = standing.implementations(rows)
    by_case: dict[str, dict[str, tuple[int, Row]]] = {}
    for number, row in enumerate(rows):
        by_case.setdefault(row.case, {})[row.implementation] = number, row
    answered = {answer.case: answer for answer in summary if answer.column == column}
    further = answer_table.further_columns(summary)
    lines = [_line(of_case, names, answered[case], unproven, further) for case, of_case in by_case.items() if case in answered]
    return HeatMap(column, standing.COLUMNS[column], names, [one.heading for one in further], lines)


def _line(
    of_case: dict[str, tuple[int, Row]],
    names: Sequence[str],
    answer: Answer,
    unproven: Collection[standing.Key],
    further: Sequence[ReportColumn],
) -> Line:
    rows = [row for _, row in of_case.values()]
    cells = [_cell(*of_case[name], rows, unproven, answer.column) if name in of_case else None for name in names]
    fastest, *_, verdict = answer_table.cells(answer)
    first = rows[0]
    return Line(
        answer.case, first.cell, first.dtype, first.mode, first.device, fastest, verdict, answer.is_certain, cells,
        [column.in_terminal(answer_table.entry(answer)) for column in further],
    )  # fmt: skip


def _cell(number: int, row: Row, rows: Sequence[Row], unproven: Collection[standing.Key], column: str) -> Cell:
    """rows: all of the case."""
    timing = standing.is_publishable(row, unproven, column)
    if timing is None:
        state = standing.status(row, unproven)
        return Cell(number, "not timed" if state == "passed" else state, level="failed" if state == "failed" else "none")
    time, baselines = formatting.duration(timing.time_us), standing.baselines(rows)
    if row.implementation in baselines[:1]:
        return Cell(number, "baseline", time, "baseline", "1")
    headline = standing.headline(row, baselines, column)
    if headline is None:
        timed = [one for one in rows if standing.is_publishable(one, unproven, column)]
        return Cell(number, "timed alone" if len(timed) == 1 else "no ratio", time)
    of = "" if headline.baseline == baselines[0] else f" {formatting.one_line(headline.baseline, _MAX_NAME)}"
    verdict = standing.verdict(row, headline, unproven)
    if not (isfinite(headline.ratio) and headline.ratio > 0):
        return Cell(number, f"{verdict}{of}", time, "unclear")
    speed = 1 / headline.ratio
    return Cell(number, f"{formatting.significant(speed)}x{of}", time, _level(verdict, speed), f"{speed:.6g}")


def _level(verdict: str, speed: float) -> str:
    """Returns the style of a verdict: the further from 1, the stronger."""
    if verdict not in ("faster", "slower"):
        return "same" if verdict == "same" else "unclear"
    return f"{verdict}-{sum(abs(log2(speed)) >= log2(limit) for limit in _LEVELS)}"
