"""What a terminal shows of finished rows: the summary table and a few lines of counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pytest_ecornn import statistics
from pytest_ecornn.reporting import formatting, standing
from pytest_ecornn.reporting.picture import render_svg
from pytest_ecornn.reporting.progress import Progress
from pytest_ecornn.rows import Row, Timing

__all__ = ["Progress", "render_svg", "summary_lines", "summary_table"]

_STYLES = {
    "faster": "green", "slower": "red", "same": "", "unclear": "yellow", "baseline": "dim",
    "unproven baseline": "yellow", "failed": "bold red", "unproven": "bold yellow", "skipped": "dim", "not timed": "dim",
}  # fmt: skip
_VERDICTS = ("faster", "slower", "same", "unclear")
_LONGEST = 60


def summary_table(rows: list[Row], unproven: Collection[standing.Key]) -> Table:
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
    table.add_column("error", no_wrap=True, justify="right")
    table.add_column("floor", no_wrap=True, justify="right")
    for case in standing.cases(shown):
        of_case = [row for row in standing.in_order(shown) if row.case == case]
        bases = standing.baselines(of_case)
        table.add_row(_CaseName(formatting.one_line(case, 2 * _LONGEST)))
        best = {column: standing.fastest(of_case, unproven, column) for column in standing.COLUMNS}
        for row in of_case:
            table.add_row(*_cells(row, bases, row.key in best["timing"], unproven))
            if standing.published(row, unproven, "replay"):
                table.add_row(*_device_only_cells(row, bases, row.key in best["replay"], unproven))
        table.add_section()
    return table


class _CaseName:
    """Broken at its hyphens where the column is too narrow."""

    def __init__(self, name: str) -> None:
        self._tokens = name.replace("-", "-\0").split("\0")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        lengths = [len(token) for token in self._tokens]
        return Measurement(max(lengths), sum(lengths)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pieces = [""]
        for token in self._tokens:
            if pieces[-1] and len(pieces[-1] + token) > options.max_width:
                pieces.append("")
            pieces[-1] += token
        yield Text("\n".join(pieces), "cyan", overflow="fold")


def _cells(row: Row, bases: list[str], is_best: bool, unproven: Collection[standing.Key]) -> list[Text]:
    name = Text(f"  {formatting.one_line(row.implementation, _LONGEST)}", "bold" if is_best else "")
    worst = standing.worst_error(row)
    error = Text(formatting.limit_share(worst.share) if worst else "")
    timing = standing.published(row, unproven)
    if timing is None:
        state = standing.status(row, unproven)
        return [name, Text(), Text(), _verdict(state if state != "passed" else "not timed"), error, Text()]
    time, ratio, verdict = _figures(row, "timing", timing, bases, is_best, unproven)
    return [name, time, ratio, verdict, error, Text(formatting.percent(timing.floor_share))]


def _device_only_cells(row: Row, bases: list[str], is_best: bool, unproven: Collection[standing.Key]) -> list[Text]:
    timing = standing.published(row, unproven, "replay")
    assert timing is not None
    name = Text(f"    {standing.COLUMNS['replay']}", "bold" if is_best else "")
    figures = _figures(row, "replay", timing, bases, is_best, unproven)
    return [name, *figures, Text(), Text(formatting.percent(timing.floor_share))]


def _figures(
    row: Row, column: str, timing: Timing, bases: list[str], is_best: bool, unproven: Collection[standing.Key]
) -> list[Text]:
    """Time, ratio to the first baseline, and verdict."""
    is_base = row.implementation in bases[:1]
    one = None if is_base else standing.against(row, bases[0] if bases else None, column)
    return [
        Text(formatting.duration(timing.time_us), "bold" if is_best else ""),
        Text(formatting.ratio_interval(one.ratio, one.low, one.high) if one else ""),
        _verdict(standing.verdict(row, one, unproven) if one else "baseline" if is_base else ""),
    ]


def _verdict(word: str) -> Text:
    return Text(formatting.one_line(word, 20), _STYLES.get(word, ""))


def summary_lines(rows: list[Row], unproven: Collection[standing.Key]) -> list[str]:
    """How many rows ended how; then who is unproven, and who failed."""
    compared = [row for row in rows if row.kind == "benchmark"]
    states = Counter(standing.status(row, unproven) for row in rows)
    line = f"{formatting.count(len(rows), 'row')}: " + _counts(states, ("passed", "unproven", "failed", "skipped"))
    if verdicts := _verdict_counts(compared, "timing", unproven):
        line += f"; {verdicts} ({_compared_with(compared)})"
    if verdicts := _verdict_counts(compared, "replay", unproven):
        line += f"; {standing.COLUMNS['replay']}: {verdicts}"
    doubted = dict.fromkeys((row.implementation, row.cell, row.dtype, row.device) for row in rows if row.key in unproven)
    failed = [row for row in rows if row.status == "failed"]
    return [
        line,
        *_noise(rows),
        *(f"unproven: {_short(*one)}: a case drawn of it failed, so its times are withheld" for one in doubted),
        *(f"failed: {_short(row.implementation, row.case)} ({row.kind})" for row in failed),
    ]


def _noise(rows: list[Row]) -> Iterator[str]:
    """What each control found."""
    for row in rows:
        for column, name in standing.COLUMNS.items() if row.kind == "control" else ():
            if found := standing.timing(row, column):
                one = found.against[0]
                ratio = formatting.ratio_interval(one.ratio, one.low, one.high)
                noise = formatting.percent(statistics.spread(found.samples_us, one.samples_us))
                place = f"{row.implementation} against itself on {row.case}" + (f", {name}" if column == "replay" else "")
                doubt = "" if one.verdict == "same" else ": differences as small are this run's noise"
                yield f"noise floor: {_short(place)}: {ratio} {one.verdict}, a pair spreads by {noise}{doubt}"


def _verdict_counts(rows: list[Row], column: str, unproven: Collection[standing.Key]) -> str:
    published = [(row, timing) for row in rows if (timing := standing.published(row, unproven, column))]
    found = Counter(standing.verdict(row, one, unproven) for row, timing in published for one in timing.against)
    return _counts(found, _VERDICTS)


def _short(*words: str) -> str:
    return formatting.one_line(" ".join(words), 2 * _LONGEST)


def _counts(found: Counter[str], words: tuple[str, ...]) -> str:
    return ", ".join(f"{found[word]} {word}" for word in words if found[word])


def _compared_with(rows: list[Row]) -> str:
    return "against " + " or ".join(formatting.one_line(name, _LONGEST) for name in standing.baselines(rows))
