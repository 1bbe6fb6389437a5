"""Findings of the gate, as the terminal, report.md, a CI job's summary and a comment show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from pytest_ecornn.regression.gate import DISTURBED, RegressionFinding, RegressionReport, StatusChange
from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.answer_table import empty_table
from pytest_ecornn.reporting.markdown_syntax import escape, table
from pytest_ecornn.results import formatting
from pytest_ecornn.results.statistics import Ratio

_HEADER = (
    "Case",
    "Implementation",
    "Column",
    "Time then, now",
    "Ratio then",
    "Ratio now",
    "Change [interval]",
    "Limit",
    "Verdict",
)
_ORDER = ("slower", "unclear", "not judged", "faster", "not slower")
_MAX_ROWS = 20  # of a list in a terminal or a summary
_MAX_CHARS = 60
_RULE = """\
Change: the row's ratio to its anchor, a baseline measured in both runs, now over then. Slower only where the whole interval
lies beyond the limit, in this run and in each of the measurements that were made again; unclear where the interval holds the
limit. A row without an anchor is shown and not judged."""


def section(outcome: RegressionReport | None) -> Iterator[str]:
    """Section of report.md; nothing without a comparison."""
    if outcome is not None:
        yield f"## Compared with the run of {escape(outcome.started)}"
        yield "\n".join(f"- {escape(line)}" for line in summary_lines(outcome))
        yield _RULE
        yield _findings(in_order(outcome.findings))
        yield from _changes(outcome.changes)
        yield from (f"Only in {when}: {_listed(rows)}" for when, rows in _unmatched_rows(outcome) if rows)


def headline(outcome: RegressionReport) -> str:
    """The verdict in a line."""
    return f"Recurrent layers: {'; '.join(outcome.problems) or 'nothing slower'}"


def shown_rows(outcome: RegressionReport) -> Iterator[str]:
    """Tables of what got slower, of what changed its status, the worse first, and of what is unclear; 20 rows in all."""
    ordered = in_order(outcome.findings)
    slower, unclear = ([one for one in ordered if one.verdict == verdict] for verdict in ("slower", "unclear"))
    changes = sorted(outcome.changes, key=lambda one: not one.is_worse)[: max(0, _MAX_ROWS - len(slower))]
    findings = [*slower, *unclear][: _MAX_ROWS - len(changes)]
    if findings:
        yield _findings(findings)
    yield from _changes(changes)
    if more := len(slower) + len(unclear) + len(outcome.changes) - len(findings) - len(changes):
        yield f"{formatting.count(more, 'more row')} in report.md."


def sentence(one: RegressionFinding) -> str:
    """How much slower a row is, in plain text."""
    return f"{standing.COLUMNS[one.column]}: {_percent(one.change)} to {one.anchor}, over its limit of {_limit(one)}"


def summary_lines(outcome: RegressionReport) -> list[str]:
    """How many rows ended how, and why the gate fails, in plain text."""
    counts = Counter(one.verdict for one in outcome.findings)
    found = ", ".join(f"{counts[word]} {word}" for word in _ORDER if counts[word]) or "no row in both"
    lines = [f"compared with {outcome.stored} of {outcome.started}: {found}"]
    lines += [f"differs: {line}" for line in outcome.warnings]
    if disturbed := sum(one.reason.startswith(DISTURBED) for one in outcome.findings):
        lines.append(f"{disturbed} not judged: {DISTURBED}; a report to compare with needs a quiet machine")
    lines += [f"{len(rows)} rows only in {when}" for when, rows in _unmatched_rows(outcome) if rows]
    lines += [f"{_name(one)}: passed then, {one.now} now" for one in outcome.changes if one.is_worse]
    return [*lines, *(f"gate failed: {problem}" for problem in outcome.problems)]


def terminal_table(outcome: RegressionReport) -> Table | None:
    """Table of what got slower, and of what may have; None where nothing did."""
    shown = [one for one in in_order(outcome.findings) if one.verdict == "slower" or outcome.is_due(one)][:_MAX_ROWS]
    if not shown:
        return None
    found = empty_table()
    found.add_column("case, implementation", overflow="fold")
    for name in ("anchor", "then", "now", "change [interval]", "limit", "verdict"):
        found.add_column(name, no_wrap=name != "anchor", justify="left" if name in ("anchor", "verdict") else "right")
    for one in shown:
        name = f"{_name(one)}, {standing.COLUMNS[one.column]}" if one.column != "timing" else _name(one)
        cells = [formatting.one_line(one.anchor, 20), _ratio(one.then), _ratio(one.now), _percent(one.change)]
        style = "bold red" if one.verdict == "slower" else "yellow"
        found.add_row(Text(name), *map(Text, cells), Text(_limit(one)), Text(one.verdict, style))
    return found


def in_order(findings: Iterable[RegressionFinding]) -> list[RegressionFinding]:
    """The worst first."""
    return sorted(findings, key=lambda one: (_ORDER.index(one.verdict), -one.change.low if one.change else 0.0))


def _findings(findings: list[RegressionFinding]) -> str:
    lines = []
    for one in findings:
        times = ", ".join(map(formatting.duration, one.times_us))
        repeated = f", measured {one.measured} times" if one.measured > 1 else ""
        said = f"{one.verdict}{repeated}" + (f": {escape(one.reason, 160)}" if one.reason else "")
        common = f" x {escape(one.anchor)}" if one.anchor else ""
        ratios = [f"{_interval(ratio)}{common}" if ratio else "" for ratio in (one.then, one.now)]
        cells = [standing.COLUMNS[one.column], times, *ratios, _percent(one.change), _limit(one), said]
        lines.append([escape(one.case), escape(one.implementation), *cells])
    return table(_HEADER, lines) if lines else ""


def _changes(changes: list[StatusChange]) -> Iterator[str]:
    if changes:
        yield "Proven in one of the two runs only:"
        lines = [
            [escape(one.case), escape(one.implementation), one.kind, escape(one.then), escape(one.now), escape(one.reason, 200)]
            for one in changes
        ]
        yield table(["Case", "Implementation", "Kind", "Then", "Now", "Reason"], lines)


def _unmatched_rows(outcome: RegressionReport) -> list[tuple[str, list[str]]]:
    return [("the stored report", outcome.only_then), ("this run", outcome.only_now)]


def _listed(rows: list[str]) -> str:
    more = f" and {len(rows) - _MAX_ROWS} more" if len(rows) > _MAX_ROWS else ""
    return ", ".join(escape(row) for row in rows[:_MAX_ROWS]) + more


def _name(one: RegressionFinding | StatusChange) -> str:
    return formatting.one_line(f"{one.case} {one.implementation}", 2 * _MAX_CHARS)


def _ratio(ratio: Ratio | None) -> str:
    return formatting.significant(ratio.ratio) if ratio else ""


def _interval(ratio: Ratio) -> str:
    return formatting.ratio_interval(ratio.ratio, ratio.low, ratio.high)


def _percent(change: Ratio | None) -> str:
    """How much slower, or with a minus faster."""
    if change is None:
        return ""
    middle, low, high = (f"{100 * (value - 1):+.1f}" for value in (change.ratio, change.low, change.high))
    return f"{middle} % [{low}, {high}]"


def _limit(one: RegressionFinding) -> str:
    return f"{100 * one.limit:g} %"
