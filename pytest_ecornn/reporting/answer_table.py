"""The table of answers, a line a case, as Markdown and on a terminal: the same words in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import zip_longest

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pytest_ecornn.reporting import markdown_syntax, report_columns, standing
from pytest_ecornn.reporting.answer import Answer
from pytest_ecornn.reporting.report_columns import Entry, ReportColumn
from pytest_ecornn.results import formatting

STYLES = {
    "faster": "green", "others slower": "green", "slower": "red", "same": "", "unclear": "yellow", "baseline": "dim",
    "unproven baseline": "yellow", "failed": "bold red", "unproven": "bold yellow", "skipped": "dim", "not timed": "dim",
}  # fmt: skip
_STANDINGS = (
    "with a fastest implementation", "with several ahead of the baseline", "undecided", "with one implementation alone",
    "without a proven time", "refused by every implementation",
)  # fmt: skip
MIN_FULL_WIDTH = 110  # of a terminal
_MAX_NARROW_NAME = 22
_MAX_NAMES = 3  # of implementations in a cell
_MAX_LENGTH = 60


def markdown_table(answers: list[Answer]) -> str:
    """All cases; the fastest in bold where it is certain. A GPU's two columns of times are two lines a case."""
    columns, further = dict.fromkeys(answer.column for answer in answers), further_columns(answers)
    lines = []
    for answer in answers:
        name, time, *rest = map(markdown_syntax.escape, cells(answer))
        with_time = [standing.COLUMNS[answer.column]] if len(columns) > 1 else []
        shown = [f"**{name}**", f"**{time}**"] if answer.bold else [name, time]
        further_texts = (column.in_markdown(entry(answer)) for column in further)
        lines.append([markdown_syntax.escape(answer.case), *with_time, *shown, *rest, *further_texts])
    header = ["Case", *(["Measured"] if len(columns) > 1 else []), "Fastest", "Time", "Ratio [interval]", "Baseline", "Verdict"]
    right = [column.heading for column in further if column.is_aligned_right]
    return markdown_syntax.table([*header, *(column.heading for column in further)], lines, right=["Time", *right])


def empty_table() -> Table:
    """A table of a terminal without a column."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, header_style="bold")


def terminal_table(answers: list[Answer], width: int = MIN_FULL_WIDTH) -> Table:
    """`markdown_table` for a terminal: device-only times are a line below those as called. Narrow tables name no baseline,
    and nothing of the sets of the cases.
    """
    is_narrow = width < MIN_FULL_WIDTH
    table = empty_table()
    table.add_column("case")
    longest = max((len(name) for answer in answers for name in _names(answer)), default=0)
    table.add_column("fastest", overflow="fold", min_width=min(longest, _MAX_NARROW_NAME))
    table.add_column("time", no_wrap=True, justify="right")
    table.add_column(Text("ratio [interval]"), no_wrap=True)
    for name in ("verdict",) if is_narrow else ("baseline", "verdict"):
        table.add_column(name, overflow="fold")
    further = [] if is_narrow else further_columns(answers)
    for column in further:
        table.add_column(column.title, overflow="fold")
    for answer in answers:
        shown = cells(answer)
        *texts, verdict = shown[:3] + shown[4:] if is_narrow else shown
        case = CaseName(formatting.one_line(answer.case, 2 * _MAX_LENGTH))
        label = case if answer.column == "timing" else Text(f"  {standing.COLUMNS[answer.column]}")
        styles = ["bold", "bold"] if answer.bold else []
        figures = (Text(text, style) for text, style in zip_longest(texts, styles, fillvalue=""))
        further_texts = (Text(formatting.one_line(column.in_terminal(entry(answer)))) for column in further)
        table.add_row(label, *figures, Text(verdict, STYLES.get(verdict, "")), *further_texts)
    return table


def further_columns(answers: Collection[Answer]) -> list[ReportColumn]:
    """What the sets of the cases say of these, where they say anything."""
    return report_columns.shown(report_columns.ANSWER, [entry(answer) for answer in answers])


def entry(answer: Answer) -> Entry:
    """The row of the fastest with its time."""
    return Entry(answer.row, standing.timing(answer.row, answer.column) if answer.fastest else None)


class CaseName:
    """A case's name, broken at its hyphens where the column is too narrow."""

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


def counts_line(answers: Collection[Answer]) -> str:
    """How many cases have an answer, and how many are in doubt, in words; empty where nothing was to be timed."""
    return "; ".join(filter(None, (_counts_of_column(answers, column) for column in standing.COLUMNS)))


def _counts_of_column(answers: Collection[Answer], column: str) -> str:
    here = [answer for answer in answers if answer.column == column]
    counts = Counter(map(_standing, here))
    parts = ", ".join(f"{counts[words]} {words}" for words in _STANDINGS if counts[words])
    label = "" if column == "timing" else f"{standing.COLUMNS[column]}: "
    return f"{label}{formatting.count(len(here), 'case')}: {parts}" if here else ""


def _standing(answer: Answer) -> str:
    """How a case ended, in the words of the counts."""
    if answer.fastest is None:
        return "refused by every implementation" if answer.verdict == "skipped" else "without a proven time"
    if answer.is_certain:
        return "with a fastest implementation"
    if answer.verdict == "faster":
        return "with several ahead of the baseline"
    return "with one implementation alone" if answer.verdict == "alone" else "undecided"


def cells(answer: Answer) -> tuple[str, str, str, str, str]:
    """Names, time, ratio, its baseline and verdict, in plain text."""
    if answer.fastest is None:
        return "none", "", "", "", answer.verdict
    ratio, baseline = "", "itself" if answer.is_baseline else ""
    if answer.ratio is not None:
        ratio = formatting.ratio_interval(answer.ratio.ratio, answer.ratio.low, answer.ratio.high)
        baseline = formatting.one_line(answer.ratio.baseline, _MAX_LENGTH)
    return " or ".join(_names(answer)), formatting.duration(answer.fastest.time_us), ratio, baseline, answer.verdict


def with_comparison(answer: Answer) -> tuple[str, str]:
    """The fastest with its time; and its ratio to the baseline with the verdict, or the verdict alone."""
    name, time, ratio, baseline, verdict = cells(answer)
    return f"{name} {time}".strip(), f"{ratio} to {baseline}, {verdict}" if ratio else verdict


def _names(answer: Answer) -> Iterator[str]:
    """The fastest, then those that may be as fast."""
    if answer.fastest is None:
        return
    names = [answer.fastest.name, *answer.rivals]
    shown = names if len(names) <= _MAX_NAMES else names[: _MAX_NAMES - 1]
    yield from (formatting.one_line(name, _MAX_LENGTH) for name in shown)
    if len(shown) < len(names):
        yield f"{len(names) - len(shown)} more"
