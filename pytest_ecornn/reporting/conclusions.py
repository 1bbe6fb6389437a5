"""What the rows of a run say, for every output alike: the answers, how sure they are, what is undecided, and what failed."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil
from typing import Any

from pytest_ecornn.measurement.noise.bounds import describe, is_disturbed
from pytest_ecornn.reporting import answer_table, standing, undecided
from pytest_ecornn.reporting.answer import Answer, answers
from pytest_ecornn.reporting.undecided import Undecided
from pytest_ecornn.results import formatting, statistics
from pytest_ecornn.results.rows import AGAIN, Row, Timing
from pytest_ecornn.results.run_info import RunInfo
from pytest_ecornn.results.statistics import EQUIVALENCE_MARGINS

_MAX_BUDGET_FACTOR = 20.0  # what takes longer is not worth it
_MAX_NAMED = 6  # rows that more budget would decide
_OF_THE_RUN = re.compile(r" --ecornn-(budget[ =]\S+|seconds[ =]\S+|resume)")  # what another budget does not go with
_VERDICTS = ("faster", "slower", "same", "unclear")
_MAX_NAME_CHARS = 60
_MAX_CASES = 5  # that are named of one failure


@dataclass(frozen=True)
class FailureGroup:
    """One reason of an implementation. shown: some of its rows. more: the number of the others."""

    implementation: str
    shown: list[Row]
    more: int
    reason: str


@dataclass(frozen=True)
class Conclusions:
    """unproven: keys of rows whose times are withheld. settings, command: of the run."""

    rows: list[Row]
    unproven: Collection[standing.Key]
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    @classmethod
    def of_rows(cls, rows: list[Row], settings: Mapping[str, Any], command: str = "") -> Conclusions:
        return cls(rows, standing.unproven(rows), settings, command)

    @classmethod
    def of_run(cls, run: RunInfo, rows: list[Row]) -> Conclusions:
        return cls.of_rows(rows, run.settings, run.command)

    @cached_property
    def answers(self) -> list[Answer]:
        return answers(self.rows, self.unproven)

    @cached_property
    def undecided(self) -> list[Undecided]:
        return undecided.by_cause(self.rows, self.unproven, self.answers)

    @property
    def answer_counts(self) -> str:
        """How many cases have an answer, in a line; empty where nothing was to be timed."""
        return answer_table.counts_line(self.answers)

    @property
    def certainty(self) -> list[str]:
        """How rows ended, who failed, what disturbed the run and its noise, then the basis of its verdicts, in lines."""
        return [*self.counts, *(self.basis if self.answers else ()), *self.more_budget]

    @property
    def counts(self) -> list[str]:
        """How many rows ended how; then who is unproven, and who failed; then what disturbed the run, and its noise."""
        compared = [row for row in self.rows if row.kind == "benchmark"]
        states = Counter(standing.status(row, self.unproven) for row in self.rows)
        line = f"{formatting.count(len(self.rows), 'row')}: " + _counts(states, ("passed", "unproven", "failed", "skipped"))
        if verdicts := self._verdict_counts(compared, "timing"):
            line += f"; {verdicts} ({_compared_with(compared)})"
        if verdicts := self._verdict_counts(compared, "replay"):
            line += f"; {standing.COLUMNS['replay']}: {verdicts}"
        return [line, *self.failure_lines, *_disturbed(self.rows), *_noise(self.rows)]

    @property
    def failure_lines(self) -> list[str]:
        """Lines on unproven implementations, then on failed rows, one for those of one implementation and reason."""
        rows = [row for row in self.rows if row.key in self.unproven]
        domains = dict.fromkeys((row.implementation, row.cell, row.dtype, row.device) for row in rows)
        withheld = [
            f"unproven: {_abbreviate(*domain)}: a case drawn of it failed, so its times are withheld" for domain in domains
        ]
        failed = [(_abbreviate(row.implementation, row.case), row.kind, _others(more)) for row, *more in self._failed]
        return [*withheld, *(f"failed: {name} ({kind}){others}" for name, kind, others in failed)]

    @property
    def failures(self) -> list[FailureGroup]:
        """Rows that failed, each reason once, in the order of the rows."""
        return [
            FailureGroup(
                rows[0].implementation, rows[:_MAX_CASES], max(0, len(rows) - _MAX_CASES),
                rows[0].reason or "no reason was given",
            )
            for rows in self._failed
        ]  # fmt: skip

    @property
    def _failed(self) -> list[list[Row]]:
        """Failed rows, those of one implementation and reason together."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in self.rows:
            if row.status == "failed":
                groups.setdefault((row.implementation, row.reason.partition(AGAIN)[0]), []).append(row)
        return list(groups.values())

    @property
    def basis(self) -> list[str]:
        """What the verdicts rest on, as far as the settings state it: confidence, then budget."""
        confidence = self.settings.get("intervals")
        together = "all ratios of the run hold together 19 times of 20"
        pairs = self.settings.get("fewest pairs")
        effort = [self.settings.get("budget", ""), f"at least {pairs} pairs" if pairs else ""]
        lines = [f"confidence of intervals: {confidence}; {together}" if confidence else ""]
        lines.append(f"budget: {', '.join(map(str, filter(None, effort)))}" if any(effort) else "")
        return [formatting.one_line(line) for line in lines if line]

    @property
    def more_budget(self) -> list[str]:
        """At most one line: which unclear verdicts a longer measurement would decide, and the command.

        An interval narrows with the root of the time.
        """
        budget, times = _seconds(self.settings.get("budget")), dict[str, float]()
        for row in self.rows:
            for column, margin in EQUIVALENCE_MARGINS.items():
                timing = standing.is_publishable(row, self.unproven, column)
                for one in timing.against if timing else ():
                    is_unclear = standing.verdict(row, one, self.unproven) == "unclear"
                    if is_unclear and (needed := one.budget_factor(margin)) <= _MAX_BUDGET_FACTOR:
                        label = f"{row.implementation}-{row.case}"
                        times[label] = max(needed, times.get(label, 0.0))
        if not (times and budget and self.command):
            return []
        named = sorted(times, key=lambda label: times[label])[:_MAX_NAMED]
        seconds = ceil(budget * max(1.5, *(times[label] for label in named)))
        again = f"{_OF_THE_RUN.sub('', self.command)} --ecornn-budget {seconds} -k {shlex.quote(' or '.join(named))}"
        rest = f" (and {len(times) - len(named)} others)" if len(times) > len(named) else ""
        return [f"more budget would decide {formatting.count(len(named), 'row')}{rest}: {formatting.printable(again)}"]

    def _verdict_counts(self, rows: list[Row], column: str) -> str:
        timings = [(row, timing) for row in rows if (timing := standing.is_publishable(row, self.unproven, column))]
        verdicts = Counter(standing.verdict(row, one, self.unproven) for row, timing in timings for one in timing.against)
        return _counts(verdicts, _VERDICTS)


def _others(rows: list[Row]) -> str:
    return f" and {formatting.count(len(rows), 'other row')}" if rows else ""


def _noise(rows: list[Row]) -> Iterator[str]:
    """Noise floor that each control measured, in a line."""
    for row in rows:
        if row.kind == "control" and row.timing and row.timing.against:
            timings = ((name, standing.timing(row, column)) for column, name in standing.COLUMNS.items())
            columns = {name: timing for name, timing in timings if timing and timing.against}
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
    """How many columns others disturbed, and by whom the worst of them was; then in how many the GPU had slowed down."""
    timings = [timing for row in rows for column in standing.COLUMNS if (timing := standing.timing(row, column))]
    disturbed = [timing for timing in timings if is_disturbed(timing.disturbance)]
    if disturbed:
        worst = max(disturbed, key=lambda timing: timing.disturbance.others if timing.disturbance else 0.0)
        yield (
            f"disturbed: {len(disturbed)} of {formatting.count(len(timings), 'time')}; the most: {describe(worst)}; "
            "intervals hold whatever that has cost"
        )
    if throttled := sum("throttled_rounds" in (timing.sensors or {}) for timing in timings):
        yield f"throttled: in rounds of {throttled} of {formatting.count(len(timings), 'time')} the GPU had slowed down"


def _abbreviate(*words: str) -> str:
    return formatting.one_line(" ".join(words), 2 * _MAX_NAME_CHARS)


def _counts(counter: Counter[str], words: tuple[str, ...]) -> str:
    return ", ".join(f"{counter[word]} {word}" for word in words if counter[word])


def _compared_with(rows: Iterable[Row]) -> str:
    return "against " + " or ".join(formatting.one_line(name, _MAX_NAME_CHARS) for name in standing.baselines(rows))


def _seconds(budget: object) -> float:
    """A run's budget as its settings say it; 0 where they do not."""
    try:
        return float(str(budget).partition(" ")[0])
    except ValueError:
        return 0.0
