"""Terminal output on finished rows, beside the answers: a table of a short run's rows, and a few lines of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from pytest_ecornn.measurement.noise.bounds import describe, is_disturbed
from pytest_ecornn.reporting import answer, report_columns, standing
from pytest_ecornn.reporting.answer_table import STYLES, CaseName
from pytest_ecornn.reporting.report_columns import Entry, ReportColumn
from pytest_ecornn.results import formatting, statistics
from pytest_ecornn.results.rows import AGAIN, Row, Timing

__all__ = ["certainty_lines", "failure_groups", "failure_lines", "rows_table", "summary_lines"]

_VERDICTS = ("faster", "slower", "same", "unclear")
_MAX_NAME_CHARS = 60
_MAX_CASES = 5  # that are named of one failure


def rows_table(rows: list[Row], unproven: Collection[standing.Key]) -> Table:
    """A line for each row that was to be timed and was not skipped, below its case; the fastest in bold. Fits 80 columns.

    A row's device-only time has a line of its own below it.
    """
    shown = [row for row in rows if row.kind == "benchmark" and row.status != "skipped"]
    names = standing.baselines(shown)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")
    table.add_column("case, implementation", overflow="fold")
    table.add_column("time", no_wrap=True, justify="right")
    of = formatting.one_line(names[0], 20) if len(names) == 1 else "baseline"
    table.add_column(Text(f"x {of} [interval]"), justify="right", min_width=20)
    table.add_column("verdict", no_wrap=True)
    timing_columns = report_columns.shown(report_columns.TERMINAL_TIMING, [Entry(row, row.timing) for row in shown])
    for figure in (*report_columns.TERMINAL, *timing_columns):
        table.add_column(figure.title, no_wrap=True, justify="right")
    for case, of_case in standing.by_case(standing.in_order(shown)).items():
        bases = standing.baselines(of_case)
        table.add_row(CaseName(formatting.one_line(case, 2 * _MAX_NAME_CHARS)))
        bold = {column: answer.of_case(of_case, unproven, column).bold for column in standing.COLUMNS}
        for row in of_case:
            entries = {column: Entry(row, standing.is_publishable(row, unproven, column)) for column in standing.COLUMNS}
            further = _further(report_columns.TERMINAL, entries["timing"]), _further(timing_columns, entries["timing"])
            table.add_row(*_cells(row, bases, row.implementation == bold["timing"], unproven), *further[0], *further[1])
            if entries["replay"].timing:
                cells = _device_only_cells(row, bases, row.implementation == bold["replay"], unproven)
                table.add_row(*cells, *[Text()] * len(further[0]), *_further(timing_columns, entries["replay"]))
        table.add_section()
    return table


def _cells(row: Row, bases: list[str], is_best: bool, unproven: Collection[standing.Key]) -> list[Text]:
    name = Text(f"  {formatting.one_line(row.implementation, _MAX_NAME_CHARS)}", "bold" if is_best else "")
    timing = standing.is_publishable(row, unproven)
    if timing is None:
        state = standing.status(row, unproven)
        return [name, Text(), Text(), _verdict(state if state != "passed" else "not timed")]
    return [name, *_figures(row, "timing", timing, bases, is_best, unproven)]


def _device_only_cells(row: Row, bases: list[str], is_best: bool, unproven: Collection[standing.Key]) -> list[Text]:
    timing = standing.is_publishable(row, unproven, "replay")
    assert timing is not None
    name = Text(f"    {standing.COLUMNS['replay']}", "bold" if is_best else "")
    return [name, *_figures(row, "replay", timing, bases, is_best, unproven)]


def _further(columns: Iterable[ReportColumn], entry: Entry) -> list[Text]:
    return [Text(column.in_terminal(entry)) for column in columns]


def _figures(
    row: Row, column: str, timing: Timing, bases: list[str], is_best: bool, unproven: Collection[standing.Key]
) -> list[Text]:
    """Time, ratio to the first baseline, and verdict."""
    is_base = row.implementation in bases[:1]
    one = None if is_base else standing.ratio_to(row, bases[0] if bases else None, column)
    return [
        Text(formatting.duration(timing.time_us), "bold" if is_best else ""),
        Text(formatting.ratio_interval(one.ratio, one.low, one.high) if one else ""),
        _verdict(standing.verdict(row, one, unproven) if one else "baseline" if is_base else ""),
    ]


def _verdict(word: str) -> Text:
    return Text(formatting.one_line(word, 20), STYLES.get(word, ""))


def summary_lines(rows: list[Row], unproven: Collection[standing.Key]) -> list[str]:
    """How many rows ended how; then who is unproven, and who failed; then what disturbed the run, and its noise."""
    compared = [row for row in rows if row.kind == "benchmark"]
    states = Counter(standing.status(row, unproven) for row in rows)
    line = f"{formatting.count(len(rows), 'row')}: " + _counts(states, ("passed", "unproven", "failed", "skipped"))
    if verdicts := _verdict_counts(compared, "timing", unproven):
        line += f"; {verdicts} ({_compared_with(compared)})"
    if verdicts := _verdict_counts(compared, "replay", unproven):
        line += f"; {standing.COLUMNS['replay']}: {verdicts}"
    return [line, *failure_lines(rows, unproven), *_disturbed(rows), *_noise(rows)]


def failure_lines(rows: Iterable[Row], unproven: Collection[standing.Key]) -> list[str]:
    """Lines on unproven implementations, then on failed rows, one for those of one implementation and reason."""
    rows = list(rows)
    doubted = dict.fromkeys((row.implementation, row.cell, row.dtype, row.device) for row in rows if row.key in unproven)
    failed = [row for row in rows if row.status == "failed"]
    return [
        *(f"unproven: {_abbreviate(*one)}: a case drawn of it failed, so its times are withheld" for one in doubted),
        *(
            f"failed: {_abbreviate(one.implementation, one.case)} ({one.kind}){_others(more)}"
            for one, *more in by_reason(failed)
        ),
    ]


def by_reason(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one implementation that ended for the same reason, together."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.implementation, row.reason.partition(AGAIN)[0]), []).append(row)
    return list(groups.values())


@dataclass(frozen=True)
class FailureGroup:
    """One reason of an implementation. shown: some of its rows. more: the number of the others."""

    implementation: str
    shown: list[Row]
    more: int
    reason: str


def failure_groups(rows: Iterable[Row]) -> list[FailureGroup]:
    """Rows that failed, each reason once, in the order of the rows, as report.md and report.html show them."""
    return [
        FailureGroup(
            group[0].implementation,
            group[:_MAX_CASES],
            max(0, len(group) - _MAX_CASES),
            group[0].reason or "no reason was given",
        )
        for group in by_reason(row for row in rows if row.status == "failed")
    ]


def _others(rows: list[Row]) -> str:
    return f" and {formatting.count(len(rows), 'other row')}" if rows else ""


def _noise(rows: list[Row]) -> Iterator[str]:
    """Noise floor that each control measured, in a line."""
    for row in rows:
        if row.kind == "control" and row.timing is not None:
            columns = {name: timing for column, name in standing.COLUMNS.items() if (timing := standing.timing(row, column))}
            floors = [f"{name} {_floor(timing)}" if row.replay else _floor(timing) for name, timing in columns.items()]
            is_same = all(timing.against[0].verdict == "same" for timing in columns.values())
            doubt = "" if is_same else ": differences as small are this run's noise"
            position = _abbreviate(f"{row.implementation} against itself on {row.case}")
            yield f"noise floor: {position}: {', '.join(floors)}{doubt}"


def _floor(timing: Timing) -> str:
    itself = timing.against[0]
    ratio = formatting.ratio_interval(itself.ratio, itself.low, itself.high)
    noise = formatting.percent(statistics.pair_noise(timing.samples_us, itself.samples_us))
    return f"{ratio} {itself.verdict} (a pair spreads by {noise})"


def _disturbed(rows: list[Row]) -> Iterator[str]:
    """How many columns others disturbed, and by whom the worst of them was."""
    timed_rows = [timing for row in rows for column in standing.COLUMNS if (timing := standing.timing(row, column))]
    disturbed = [timing for timing in timed_rows if is_disturbed(timing.disturbance)]
    if disturbed:
        worst_error = max(disturbed, key=lambda timing: timing.disturbance.others if timing.disturbance else 0.0)
        yield (
            f"disturbed: {len(disturbed)} of {formatting.count(len(timed_rows), 'time')}; the most: {describe(worst_error)}; "
            "intervals hold whatever that has cost"
        )


def _verdict_counts(rows: list[Row], column: str, unproven: Collection[standing.Key]) -> str:
    publishable = [(row, timing) for row in rows if (timing := standing.is_publishable(row, unproven, column))]
    found = Counter(standing.verdict(row, one, unproven) for row, timing in publishable for one in timing.against)
    return _counts(found, _VERDICTS)


def _abbreviate(*words: str) -> str:
    return formatting.one_line(" ".join(words), 2 * _MAX_NAME_CHARS)


def certainty_lines(settings: Mapping[str, Any]) -> list[str]:
    """The basis of a run's verdicts, as far as its settings state it."""
    confidence = settings.get("intervals")
    together = "all ratios of the run hold together 19 times of 20"
    effort = [settings.get("budget", ""), f"at least {pairs} pairs" if (pairs := settings.get("fewest pairs")) else ""]
    lines = [f"confidence of intervals: {confidence}; {together}" if confidence else ""]
    lines.append(f"budget: {', '.join(map(str, filter(None, effort)))}" if any(effort) else "")
    return [formatting.one_line(line) for line in lines if line]


def _counts(found: Counter[str], words: tuple[str, ...]) -> str:
    return ", ".join(f"{found[word]} {word}" for word in words if found[word])


def _compared_with(rows: list[Row]) -> str:
    return "against " + " or ".join(formatting.one_line(name, _MAX_NAME_CHARS) for name in standing.baselines(rows))
