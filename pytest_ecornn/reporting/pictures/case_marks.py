"""Rows that were to be timed -> bands of the chart: what each implementation's row of a case shows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import inf

from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.answer import Answer
from pytest_ecornn.reporting.pictures.case_chart import Band, Mark
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import AGAIN, BaselineRatio, Row
from pytest_ecornn.results.statistics import Ratio

_MAX_REASON, _MAX_NAME = 200, 16
_ITSELF = Ratio(1.0, 1.0, 1.0)
_ENDINGS = {"skipped": "refused", "passed": "not timed"}


def bands_of(rows: Sequence[Row], summary: Sequence[Answer], unproven: Collection[standing.Key]) -> list[Band]:
    """Returns a band for each case, in their order. summary: the cases' answers, of which the certainly fastest is bold."""
    by_case = standing.by_case(standing.in_order(rows))
    bold: dict[str, dict[str, str]] = {}
    for answer in summary:
        bold.setdefault(answer.case, {})[answer.column] = answer.bold
    return [_band(case, of_case, bold.get(case, {}), unproven) for case, of_case in by_case.items()]


def _band(case: str, rows: Sequence[Row], bold: dict[str, str], unproven: Collection[standing.Key]) -> Band:
    """rows: all of the case. bold: the certainly fastest by column."""
    baselines = standing.baselines(rows)
    marks = [mark for row in rows for mark in _marks(row, baselines, bold, unproven)]
    base = next(iter(baselines), "")
    if base and all(row.implementation != base for row in rows):
        compared = next(ratio for row in rows if (ratio := standing.ratio_to(row, base)))
        marks.insert(0, Mark(base, "baseline", _ITSELF, formatting.duration(compared.time_us)))
    details = [word for word in (rows[0].mode, rows[0].device) if word not in case.split("-")]
    return Band(case, ", ".join(details), base, marks)


def _marks(row: Row, baselines: Sequence[str], bold: dict[str, str], unproven: Collection[standing.Key]) -> Iterator[Mark]:
    """Yields a row's mark, and one below it of the device alone where that was measured."""
    if standing.is_publishable(row, unproven) is None:
        status = standing.status(row, unproven)
        verdict = _ENDINGS.get(status, status)
        reason = formatting.one_line(row.reason.partition(AGAIN)[0], _MAX_REASON)
        yield Mark(row.implementation, verdict, note=f"{verdict}: {reason}" if reason else verdict)
    for column, words in standing.COLUMNS.items():
        if timing := standing.is_publishable(row, unproven, column):
            verdict, speed, note = _speed(row, baselines, column, unproven)
            of = standing.headline(row, baselines, column)
            beside = f" / {formatting.one_line(of.baseline, _MAX_NAME)}" if of and of.baseline != baselines[0] else ""
            is_below = column != "timing"
            name, is_bold = (words if is_below else row.implementation) + beside, bold.get(column) == row.implementation
            yield Mark(name, verdict, speed, formatting.duration(timing.time_us), note, is_bold, is_below)


def _speed(
    row: Row, baselines: Sequence[str], column: str, unproven: Collection[standing.Key]
) -> tuple[str, Ratio | None, str]:
    """The verdict, the speed, and what stands in its place where there is none."""
    if row.implementation in baselines[:1]:
        return "baseline", _ITSELF, ""
    ratio = standing.headline(row, baselines, column)
    if ratio is None:
        return "not compared", None, "timed alone" if not baselines else "not compared"
    verdict = standing.verdict(row, ratio, unproven)
    return "unclear" if verdict == "unproven baseline" else verdict, _inverse(ratio), f"{verdict}, without a finite ratio"


def _inverse(ratio: BaselineRatio) -> Ratio:
    """How many times as fast as the baseline. What is not above 0 becomes infinite."""
    return Ratio(*(1 / value if value > 0 else inf if value <= 0 else value for value in (ratio.ratio, ratio.high, ratio.low)))
