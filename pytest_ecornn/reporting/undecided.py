"""What a run leaves undecided, and why: unclear verdicts, and cases whose baseline nobody beats for certain, by their cause."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pytest_ecornn.measurement.noise.bounds import is_disturbed
from pytest_ecornn.reporting import standing
from pytest_ecornn.reporting.answer import Answer
from pytest_ecornn.reporting.markdown_syntax import escape, table
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import CAUSES, BaselineRatio, Row, Timing

_WIDE = "intervals too wide to tell; a larger --ecornn-budget narrows them"
_DISTURBED = "others used the machine meanwhile"
_OTHER_TIMES = "a baseline took other times elsewhere in the run"  # as reports of before say
_SAME = "two took the same time, as far as the clock can tell"
_APART = "two that did not take turns have intervals that overlap"


@dataclass(frozen=True)
class UnclearVerdict:
    """A row's ratio to one baseline in one column of times."""

    row: Row
    column: str
    ratio: BaselineRatio


@dataclass
class Undecided:
    """What one cause leaves undecided: verdicts of rows, or the answers of cases whose verdicts are all clear."""

    cause: str
    verdicts: list[UnclearVerdict] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def line(self) -> str:
        """How much it is and why, in one line."""
        cases = {verdict.row.case for verdict in self.verdicts} | {answer.case for answer in self.answers}
        of_cases = formatting.count(len(cases), "case")
        verdicts = f"{formatting.count(len(self.verdicts), 'verdict')} on " if self.verdicts else ""
        return f"{verdicts}{of_cases}: {self.cause}"

    @property
    def lines(self) -> list[tuple[str, str, str, str]]:
        """Case, implementation, ratios and the baseline's other times, a line a row: both columns of times share it."""
        by_row: dict[standing.Key, list[UnclearVerdict]] = {}
        for verdict in self.verdicts:
            by_row.setdefault(verdict.row.key, []).append(verdict)
        lines = []
        for (_, name, case), of_row in by_row.items():
            ratios = [f"{_interval(one.ratio)} x {one.ratio.baseline}{_column(one)}" for one in of_row]
            doubts = dict.fromkeys(one.ratio.doubt for one in of_row if one.ratio.doubt)
            lines.append((case, name, "; ".join(ratios), "; ".join(doubts)))
        return lines + [(one.case, _names(one), _of_column(one), "") for one in self.answers]


def by_cause(rows: Iterable[Row], unproven: Collection[standing.Key], answers: Iterable[Answer]) -> list[Undecided]:
    """The commonest cause first."""
    groups: dict[str, Undecided] = {}
    unclear = list(_unclear_verdicts(rows, unproven))
    for cause, verdict in unclear:
        groups.setdefault(cause, Undecided(cause)).verdicts.append(verdict)
    explained = {(verdict.row.case, verdict.column) for _, verdict in unclear}
    for answer in answers:
        is_won = answer.is_certain or answer.verdict == "faster"
        if answer.rivals and not is_won and (answer.case, answer.column) not in explained:
            cause = _SAME if answer.verdict == "same" else _APART
            groups.setdefault(cause, Undecided(cause)).answers.append(answer)
    return sorted(groups.values(), key=lambda group: -len(group.verdicts) - len(group.answers))


def _unclear_verdicts(rows: Iterable[Row], unproven: Collection[standing.Key]) -> Iterator[tuple[str, UnclearVerdict]]:
    for row in rows:
        for column in standing.COLUMNS:
            timing = standing.is_publishable(row, unproven, column)
            for ratio in timing.against if timing else ():
                if standing.verdict(row, ratio, unproven) == "unclear":
                    assert timing is not None
                    yield _cause(timing, ratio), UnclearVerdict(row, column, ratio)


def _cause(timing: Timing, ratio: BaselineRatio) -> str:
    """What is most likely to have widened the interval. Others on the machine change a baseline's times too."""
    if is_disturbed(timing.disturbance):
        return _DISTURBED
    if ratio.doubts:
        widest = max(ratio.doubts, key=lambda doubt: max(doubt.high, 1 / doubt.low) if doubt.low > 0 else float("inf"))
        return f"a baseline took another time {CAUSES[widest.cause]} than beside the candidate"
    return _OTHER_TIMES if ratio.doubt else _WIDE


HEADER = ("Case", "Implementation", "Ratio [interval]", "Baseline's other times")


def section(groups: Sequence[Undecided]) -> Iterator[str]:
    """Heading, and for each cause its line and a table, for report.md; nothing where all is decided."""
    if groups:
        yield "## What is undecided, and why"
    for group in groups:
        yield f"{escape(group.line)}."
        yield table(HEADER, [list(map(escape, line)) for line in group.lines])


def _interval(ratio: BaselineRatio) -> str:
    return formatting.ratio_interval(ratio.ratio, ratio.low, ratio.high)


def _column(verdict: UnclearVerdict) -> str:
    return "" if verdict.row.replay is None else f", {standing.COLUMNS[verdict.column]}"


def _names(answer: Answer) -> str:
    return " or ".join([answer.fastest.name if answer.fastest else "", *answer.rivals])


def _of_column(answer: Answer) -> str:
    """The fastest one's ratio to the baseline, with its column of times."""
    ratio = f"{_interval(answer.ratio)} x {answer.ratio.baseline}, " if answer.ratio else ""
    return ratio + standing.COLUMNS[answer.column]
