"""Rows of a run's report.json by their cases, as pages about published problems read them.

`pytest --ecornn-bench --ecornn-cases NAME` measures them. A page reads its report, and measures nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_ecornn.cases.case_sets import Origin, case_set
from pytest_ecornn.contract import Case
from pytest_ecornn.reporting import standing
from pytest_ecornn.results.rows import AGAIN, BaselineRatio, Row, Timing
from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published.common.bars import Times

CALLED, REPLAYED = "as called", "graph replay"
TIMING_MODES = (CALLED, REPLAYED)
_MISSING = "not compared with|no device-only time of"  # how a row notes why another, or itself, has no time
_NUMBER = re.compile(r"[\d,.]*\d")


def cases_of(name: str, device: str = "cuda") -> dict[Case, Origin]:
    """The cases of a set on a device, each with its origin."""
    return {replace(case, device=device): origin for case, origin in case_set(name).items()}


def precision_of(case: Case) -> str:
    """Returns a case's precision in one word: its dtype, or for float32 in TF32 `tf32`."""
    return case.precision if case.precision != "ieee" else case.dtype


def without_numbers(reason: str) -> str:
    """The reason without its numbers, by which alone others may differ."""
    return _NUMBER.sub("", reason)


@dataclass(frozen=True)
class CaseRows:
    """The timed or refused rows of one case by implementation. names: of those that a page shows.

    A time, ratio or reason is of a `timing_mode`, as called or from graph replay; of the case's own where that is empty.
    """

    case: Case
    names: Sequence[str]
    rows: Mapping[str, Row]

    @cached_property
    def timing_mode(self) -> str:
        """Graph replay, or as called where that has times of more implementations."""
        return max(reversed(TIMING_MODES), key=lambda mode: sum(self.time_us(name, mode) is not None for name in self.names))

    @property
    def is_timed(self) -> bool:
        return any(self.time_us(name) for name in self.names)

    def time_us(self, name: str, timing_mode: str = "") -> Times | None:
        """Median, low and high; of a baseline without a row of its own the median alone. None where there is no time."""
        if timing := self._timing(name, timing_mode):
            return timing.time_us, timing.low_us, timing.high_us
        against = (ratios[name] for other in self.rows if name in (ratios := self._against(other, timing_mode)))
        return next(((ratio.time_us,) * 3 for ratio in against), None)

    def ratio(self, name: str, baseline: str, timing_mode: str = "") -> Ratio | None:
        """The baseline's time over that of `name`: over 1 `name` is faster. None where one has no time."""
        against = self._against(name, timing_mode).get(baseline)
        return Ratio(1 / against.ratio, 1 / against.high, 1 / against.low) if against else None

    def reason(self, name: str, timing_mode: str = "") -> str:
        """Why `name` has no time: its own row's reason, or what any row of the case notes of it; empty where it has one."""
        if self.time_us(name, timing_mode):
            return ""
        if name in self.rows and (reason := self.rows[name].reason.partition(AGAIN)[0]):
            return reason
        notes = (note for row in self.rows.values() for note in row.notes.split("; "))
        reasons = (match[1] for note in notes if (match := re.match(rf"(?:{_MISSING}) {re.escape(name)}: (.*)", note)))
        return next(reasons, "")

    def _timing(self, name: str, timing_mode: str) -> Timing | None:
        row = self.rows.get(name)
        return None if row is None else row.timing if (timing_mode or self.timing_mode) == CALLED else row.replay

    def _against(self, name: str, timing_mode: str) -> dict[str, BaselineRatio]:
        timing = self._timing(name, timing_mode)
        return {ratio.baseline: ratio for ratio in timing.against} if timing else {}


def by_case(rows: Iterable[Row], cases: Iterable[Case], names: Sequence[str]) -> dict[Case, CaseRows]:
    """The rows of each of these cases that has one, in the order of the cases. What is not proven has no time."""
    rows = list(rows)
    unproven = standing.unproven(rows)
    of_case: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.key in unproven:
            row = replace(row, reason="a drawn case or a property failed", timing=None, replay=None)
        if row.kind == "benchmark":
            of_case.setdefault(row.case, {})[row.implementation] = row
    return {case: CaseRows(case, names, of_case[str(case)]) for case in cases if str(case) in of_case}
