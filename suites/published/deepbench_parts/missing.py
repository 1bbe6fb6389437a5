"""Lists what has no time: each reason once, with the cases that it holds of."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ecornn.contract import Case
from pytest_ecornn.reporting.markdown_syntax import escape
from pytest_ecornn.results.formatting import count
from pytest_ecornn.suites.published.common.case_times import Row, precision_of, timing_mode
from pytest_ecornn.suites.published.common.optional import NOT_REACHED, without_numbers
from pytest_ecornn.suites.published.deepbench_parts.problem_times import PASSES, ProblemTimes


def is_reached(row: Row) -> bool:
    return not any(cell.reason == NOT_REACHED for cells in row.cells.values() for cell in cells.values())


def describe_missing(times: ProblemTimes, rows: Sequence[Row]) -> str:
    """How many cases each implementation ran, then the reasons, which differ by more than their numbers."""
    reached = [row for row in rows if is_reached(row)]
    lines = [f"{len(reached)} of {len(times.cases())} cases were reached."]
    for name in times.comparison.names:
        timed = sum(row.cells[timing_mode(row)][name].time_us is not None for row in reached)
        lines.append(f"{name} has a time on {timed} of them.")
    for name in times.comparison.names:
        lines += [f"{name}, {line}" for line in _reasons(name, reached)]
    return "\n".join(f"- {escape(line)}" for line in lines)


def _reasons(name: str, rows: Sequence[Row]) -> list[str]:
    by_reason: dict[tuple[str, str], dict[Case, str]] = {}
    for row in rows:
        if reason := row.cells[timing_mode(row)][name].reason:
            by_reason.setdefault((row.case.mode, without_numbers(reason)), {}).setdefault(row.case, reason)
    return [
        f"{PASSES[mode]}, {count(len(cases), 'case')}: {next(iter(cases.values()))} ({_labels(list(cases))})"
        for (mode, _), cases in by_reason.items()
    ]


def _labels(cases: Sequence[Case]) -> str:
    """Each shape once, with its precisions."""
    precisions: dict[str, list[str]] = {}
    for case in cases:
        density = f" {case.density:.0%}" if case.density < 1 else ""
        shape = f"{case.cell} {case.hidden_size:,} B {case.batch} T {case.steps:,}{density}"
        precisions.setdefault(shape, []).append(precision_of(case))
    return "; ".join(f"{shape} {', '.join(of_shape)}" for shape, of_shape in precisions.items())
