"""The gate: a run beside a stored report, column by column and row by row; what got slower, and what is no longer proven.

Times of two runs are never compared, only ratios: a row's time over its anchor's, both from alternating blocks of one run,
so that a machine that is slower today divides out. A row's anchor is the first of its baselines now that it had then as
well, failed neither time. A row without one is shown and not judged: a baseline itself, whose time nothing else vouches for.
(A baseline that gets slower shows as others getting faster; two baselines judge each other.)

The change is the ratio now over the ratio then. Its interval goes from the low end of now's over the high end of then's to
the high over the low, each of them two order statistics of the pairs' ratios (`statistics.paired_ratio`). With K columns
compared, "slower" is wrong with a chance of at most A = min(0.0003, 0.01 / K), half of it for either end: a false one takes
an end on the wrong side of its median. A row is slower where the whole interval lies beyond its limit. At 13 pairs (for up
to 33 columns) the order statistics alone promise that; of fewer, the ends are moved apart until they do, and such rows
end unclear unless they differ by much.

What looks slower is measured again, `MAX_REMEASUREMENTS` times at most, and fails where it is slower by its interval each time.
This is for disturbances that last longer than a measurement, of which no interval can know. What was measured then cannot be
measured again, so a report to compare with should hold many pairs (`--ecornn-pairs`), and a row of it that others are known to
have disturbed is not judged by. One that is disturbed now has an interval that holds whatever that has cost, and one whose
anchor took other times elsewhere in its run an interval that is wider by that.

What differs from process to process no interval of one process holds. Where the stored report has replicates, a row that looks
slower is measured by as many fresh processes, and judged by Student's interval of the processes then and now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pytest_ecornn.measurement.noise.bounds import describe, is_disturbed, ratio_of
from pytest_ecornn.results import statistics
from pytest_ecornn.results.rows import EXPECTED, BaselineRatio, Row, Timing, widened
from pytest_ecornn.results.statistics import Ratio, ReplicatedRatio

MAX_REMEASUREMENTS = 3
WRONG_ROWS, WRONG_RUNS = 3e-4, 0.01  # chance of a false "slower": for a column of a row, and for a run
DISTURBED = "the stored row was disturbed"
_COLUMNS = ("timing", "replay")
Key = tuple[str, str, str]


@dataclass
class RegressionFinding:
    """One column of a row, then and now. verdict: slower, faster, not slower, unclear or not judged, which has a reason.

    times_us: of a call then and now. anchor: what both ratios are to. measured: how often in this run. was_compared: whether
    the stored report has a ratio of the row to any baseline.
    """

    implementation: str
    case: str
    column: str
    times_us: tuple[float, float]
    limit: float
    anchor: str = ""
    then: Ratio | None = None
    now: Ratio | None = None
    change: Ratio | None = None
    verdict: str = "not judged"
    reason: str = ""
    measured: int = 1
    was_compared: bool = False

    @property
    def is_undecided(self) -> bool:
        """Whether a row that was compared then neither holds its limit nor breaks it."""
        return self.verdict == "unclear" or (self.verdict == "not judged" and self.was_compared)

    @property
    def looks_slower(self) -> bool:
        """Whether another measurement is due: by more than half the limit, and perhaps by all of it."""
        is_possible = self.verdict in ("slower", "unclear")
        return is_possible and self.change is not None and self.change.ratio > 1 + self.limit / 2


@dataclass
class StatusChange:
    """A row that was proven in one run only: its status in both, and the reason of the one that did not pass."""

    kind: str
    implementation: str
    case: str
    then: str
    now: str
    reason: str

    @property
    def is_worse(self) -> bool:
        return self.then == "passed" and not self.reason.startswith(EXPECTED)


@dataclass
class RegressionReport:
    """All that the gate found. `warnings`: what differs between the two machines that does not forbid the comparison.

    is_strict: whether a row that is undecided fails the gate.
    """

    findings: list[RegressionFinding]
    changes: list[StatusChange]
    only_then: list[str]
    only_now: list[str]
    confidence: float
    stored: str = ""
    started: str = ""
    warnings: list[str] = field(default_factory=list)
    is_strict: bool = False

    @property
    def slower(self) -> list[RegressionFinding]:
        return [one for one in self.findings if one.verdict == "slower"]

    @property
    def undecided(self) -> list[RegressionFinding]:
        return [one for one in self.findings if one.is_undecided]

    def is_due(self, one: RegressionFinding) -> bool:
        """Whether another measurement may spare the gate a failure."""
        return one.looks_slower or (self.is_strict and one.verdict == "unclear")

    @property
    def replicates_due(self) -> dict[Key, int]:
        """Rows that are due and were measured by several processes then, but by one now; and by how many then."""
        due = [one for one in self.findings if self.is_due(one) and not isinstance(one.now, ReplicatedRatio)]
        return {
            ("benchmark", one.implementation, one.case): len(one.then.replicates)
            for one in due
            if isinstance(one.then, ReplicatedRatio)
        }

    @property
    def problems(self) -> list[str]:
        """Why the gate fails, a line each; empty where it does not."""
        worse = sum(change.is_worse for change in self.changes)
        is_judged = any(one.verdict != "not judged" for one in self.findings)
        lines = [
            (bool(self.slower), f"{len(self.slower)} slower than their limit"),
            (bool(worse), f"{worse} passed then and not now"),
            (self.is_strict and bool(self.undecided), f"{len(self.undecided)} undecided, by --ecornn-strict"),
            (not is_judged, "no row could be judged"),
        ]
        return [line for is_so, line in lines if is_so]

    def mark_inconclusive(self) -> None:
        """Marks as unclear each finding that looks slower and was not measured again."""
        for one in self.findings:
            if one.looks_slower and one.measured == 1:
                one.verdict, one.reason = "unclear", "not measured again"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "problems": self.problems}


def compare(
    then: Iterable[Row], now: Iterable[Row], doubted: Collection[Key], limit: Callable[[str, str, str], float]
) -> RegressionReport:
    """Compares two runs, column by column and row by row.

    doubted: keys of the rows of now that are unproven. limit: of an implementation, a cell and a column.
    """
    before, after = {row.key: row for row in then}, {row.key: _marked(row, doubted) for row in now}
    common = [(before[key], row) for key, row in after.items() if key in before]
    both = [(a, b) for a, b in common if a.status == b.status == "passed" and b.kind == "benchmark"]
    wrong = {row.key for row in (*before.values(), *after.values()) if row.status in ("failed", "unproven")}
    findings = [
        _finding(a, b, column, limit(b.implementation, b.cell, column), wrong)
        for a, b in both
        for column in _COLUMNS
        if getattr(a, column) is not None and getattr(b, column) is not None
    ]
    confidence = confidence_of(sum(bool(one.anchor) for one in findings))
    found = {row.key: (a, row) for a, row in both}
    for one in findings:
        _judge_first(one, *found["benchmark", one.implementation, one.case], confidence)
    changes = [_change(a, b) for a, b in common if (a.status == "passed") != (b.status == "passed")]
    only = [[_label(row) for key, row in one.items() if key not in other] for one, other in ((before, after), (after, before))]
    return RegressionReport(findings, changes, only[0], only[1], confidence)


def unusable(rows: Iterable[Row]) -> str:
    """Why no later run can be judged by any of these rows; empty where one can, and where nothing was timed."""
    passed = [row for row in rows if row.kind == "benchmark" and row.status == "passed"]
    timings = [timing for row in passed for name in _COLUMNS if (timing := getattr(row, name)) is not None]
    compared = [timing for timing in timings if timing.against]
    if timings and not compared:
        return "nothing took turns with a baseline"
    reasons = [_disturbed(timing) or _too_few(timing, confidence_of(len(compared))) for timing in compared]
    return reasons[0] if reasons and all(reasons) else ""


def _too_few(timing: Timing, confidence: float) -> str:
    """What is wrong with the pairs of blocks of every ratio; empty where one can be judged by."""
    try:
        for against in timing.against:
            ratio_of(timing, against, confidence)
    except ValueError as error:
        return str(error)
    return ""


def confidence_of(columns: int) -> float:
    """Confidence of one interval, then or now, for so many compared columns."""
    return 1 - min(WRONG_ROWS, WRONG_RUNS / max(1, columns))


def reevaluate(one: RegressionFinding, now: Ratio, confidence: float) -> RegressionFinding:
    """The finding with what was measured last."""
    assert one.then is not None
    change = statistics.change(one.then, now, confidence)
    return replace(one, now=now, change=change, verdict=verdict(change, one.limit))


def verdict(change: Ratio, limit: float) -> str:
    """The verdict on two times, of which what is not slower needs no lower bound."""
    word = statistics.verdict(change, limit)
    return "not slower" if word in ("same", "unclear") and change.high <= 1 + limit else word


def with_remeasurement(
    one: RegressionFinding, again: Callable[[RegressionFinding], Ratio], confidence: float
) -> RegressionFinding:
    """The finding after new measurements, until one does not find it slower. again: a new ratio of the row to its anchor."""
    for _ in range(MAX_REMEASUREMENTS):
        one = reevaluate(one, again(one), confidence)
        one.measured += 1
        if one.verdict != "slower":
            break
    return one


def _finding(then: Row, now: Row, column: str, limit: float, wrong: Collection[Key]) -> RegressionFinding:
    before, after = getattr(then, column), getattr(now, column)
    one = RegressionFinding(now.implementation, now.case, column, (before.time_us, after.time_us), limit)
    names = [{found.baseline for found in timing.against} for timing in (before, after)]
    one.was_compared = bool(names[0])
    common = [found.baseline for found in after.against if found.baseline in names[0]]
    one.anchor = next((name for name in common if (now.kind, name, now.case) not in wrong), "")
    if not one.anchor:
        then_, now_ = (", ".join(sorted(found)) or "none" for found in names)
        one.reason = f"no anchor: baselines then {then_}, now {now_}"
    elif said := _disturbed(before) or _veto(before, one.anchor):
        one.anchor, one.reason = "", f"{DISTURBED}: {said}"
    return one


def _disturbed(timing: Timing) -> str:
    return describe(timing) if is_disturbed(timing.disturbance) else ""


def _veto(timing: Timing, anchor: str) -> str:
    """Why an earlier version called a comparison unclear, without a measure of it."""
    against = _against(timing, anchor)
    return "" if against.doubts else against.doubt


def _against(timing: Timing, anchor: str) -> BaselineRatio:
    return next(one for one in timing.against if one.baseline == anchor)


def _judge_first(one: RegressionFinding, then: Row, now: Row, confidence: float) -> None:
    """Fills in the ratios and the verdict of the measurements that both runs made."""
    if not one.anchor:
        return
    try:
        one.then, one.now = (_ratio(getattr(row, one.column), one.anchor, confidence) for row in (then, now))
    except ValueError as error:
        one.reason = str(error)
        return
    one.measured = len(one.now.replicates) if isinstance(one.now, ReplicatedRatio) else 1
    done = reevaluate(one, one.now, confidence)
    one.change, one.verdict = done.change, done.verdict
    if one.verdict == "unclear":
        doubts = (_against(getattr(row, one.column), one.anchor).doubt for row in (then, now))
        one.reason = "; ".join(filter(None, doubts))


def _ratio(timing: Timing, anchor: str, confidence: float) -> Ratio:
    against = _against(timing, anchor)
    return widened(ratio_of(timing, against, confidence), against.doubts)


def _marked(row: Row, doubted: Collection[Key]) -> Row:
    return replace(row, status="unproven") if row.status == "passed" and row.key in doubted else row


def _change(then: Row, now: Row) -> StatusChange:
    reason = then.reason if now.status == "passed" else now.reason
    return StatusChange(now.kind, now.implementation, now.case, then.status, now.status, reason)


def _label(row: Row) -> str:
    return f"{row.implementation} {row.case} ({row.kind})"
