"""The report of short steps: times by module, and the bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import significant
from pytest_ecornn.suites.published.common.bars import MaxTarget, format_ratio
from pytest_ecornn.suites.published.host_time_parts.step_times import ARMS, PERSISTENT, PROBLEMS, ArmTime, Row, Times
from pytest_ecornn.suites.published.selection_parts.modules import AUTO, BASELINE

TARGETS = dict(zip(PROBLEMS, ((AUTO, 0.6), (AUTO, 0.8), (PERSISTENT, 1.0), (AUTO, 1.0)), strict=True))


def render(rows: Sequence[Row]) -> str:
    header = ("step", "pass", "module", "as called, us", f"over {BASELINE}", "host, us", "from a graph, us")
    lines = [_cells(row, name, row.arms[name]) for row in rows for name in ARMS if not row.arms[name].reason]
    reasons = [(row.label, name, arm.reason) for row in rows for name, arm in row.arms.items() if arm.reason]
    return document(
        [
            "## Steps",
            "As called: wall clock of blocks of calls that take turns, the device idle before and after. Host: until the calls "
            "of the same blocks return. From a graph: one CUDA graph a step. Medians. Ratios below 1 mean that the module is "
            "faster (99 % intervals).",
            table(header, lines, header[3:]) if lines else "",
            "\n".join(f"- {escape(label)}, {name}: {escape(reason)}" for label, name, reason in reasons),
            targets(rows),
        ]
    )


def _cells(row: Row, name: str, arm: ArmTime) -> list[str]:
    ratio = format_ratio(arm.over_baseline) if arm.over_baseline else "-"
    times = [_median(found) for found in (arm.called_us, arm.host_us, arm.replayed_us)]
    return [escape(str(row.problem)), row.problem.mode, name, times[0], ratio, *times[1:]]


def _median(found: Times | None) -> str:
    return significant(found[0], 4) if found else "-"


def targets(rows: Sequence[Row]) -> str:
    """Returns a table of the bars and what was measured."""
    lines = list(_target_lines(rows))
    return table(("step", "figure", "measured", "bar", "holds"), lines) if lines else ""


def _target_lines(rows: Sequence[Row]) -> Iterator[list[str]]:
    for row in rows:
        if row.problem not in TARGETS:
            continue
        name, limit = TARGETS[row.problem]
        if ratio := row.arms[name].over_baseline:
            bar = MaxTarget(limit)
            found = ratio.ratio, ratio.low, ratio.high
            yield [escape(row.label), f"{name} over {BASELINE}", format_ratio(ratio), str(bar), bar.is_met(found)]
