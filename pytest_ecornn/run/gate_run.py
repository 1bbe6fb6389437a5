"""The gate within a run: refuses what cannot be compared before anything runs, and measures again what looks slower at the end.

Under pytest-xdist this is the controller's: its workers have ended by then, so a row is measured again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_ecornn import reporting
from pytest_ecornn.contract import Unsupported
from pytest_ecornn.measurement import capture, clocks
from pytest_ecornn.measurement.clocks import Timer
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import Arm, measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.regression import gate
from pytest_ecornn.regression.gate import RegressionFinding, RegressionReport
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import Ratio, ReplicatedRatio
from pytest_ecornn.run.failures import describe_error
from pytest_ecornn.run.items.benchmark_items import BenchmarkItem
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.system import machine
from pytest_ecornn.system.locking import turn
from pytest_ecornn.verification.guards.exit_guard import ExitGuard
from pytest_ecornn.verification.outcomes import RAISED, SkipCheck, skips_as_unsupported
from pytest_ecornn.verification.verification import Candidate, failed_tensors

REMEASUREMENT_BUDGETS = 3.0  # how much longer than at first a row is measured again, for at most


class RemeasurementFailed(Exception):
    """A row that passed before cannot be measured again, as the message says."""


class RegressionGate:
    """Raises pytest.UsageError for a report that this run cannot be compared with."""

    def __init__(self, session: RunSession, fingerprint: dict[str, Any]):
        path = session.options.compare
        assert path is not None
        self._session, self._path = session, path
        try:
            self._run, self._rows = reporting.read_report(path)
        except reporting.ReportError as error:
            raise pytest.UsageError(f"--ecornn-compare: {error}") from error
        has_gpu = any(device.startswith("cuda") for device in session.devices)
        forbidden, self._warnings = machine.check_comparable(self._run.machine, fingerprint, has_gpu)
        if forbidden:
            raise pytest.UsageError(f"--ecornn-compare: {path}: is of another kind of machine ({'; '.join(forbidden)})")
        self._check_rows()

    def _check_rows(self) -> None:
        """A gate that compares nothing would always be open."""
        timed_rows = [row for row in self._rows if row.timing is not None]
        keys = {(item.kind, item.implementation.name, str(item.case)) for item in self._session.benchmark_items()}
        if not any(row.key in keys for row in timed_rows):
            had = f"its devices: {', '.join(sorted({row.device for row in timed_rows})) or 'none'}"
            ours = f"of this run: {', '.join(self._session.devices)}"
            raise pytest.UsageError(f"--ecornn-compare: {self._path}: has a time of no row of this run ({had}; {ours})")

    def outcome(self, rows: list[Row], doubted: Collection[gate.Key]) -> RegressionReport:
        """Compares what both runs measured, without measuring again."""
        report = gate.compare(self._rows, rows, doubted, self._session.options.limits.share)
        report.stored, report.started, report.warnings = self._path.name, self._run.started, self._warnings
        report.is_strict = self._session.options.strict
        return report

    def measure_again(self, outcome: RegressionReport, say: Callable[[str], None]) -> None:
        """Each finding that looks slower, in place, until one measurement does not find it so; if strict, unclear ones too.

        What several processes measured now is left as it is.
        """
        for index, finding in enumerate(outcome.findings):
            is_here = finding.anchor in self._session.implementations  # another process times a revision's own
            if outcome.is_due(finding) and is_here and not isinstance(finding.now, ReplicatedRatio):
                state = "looks slower" if finding.looks_slower else "unclear"
                say(f"{state}, measured again: {finding.implementation} {finding.case}")
                outcome.findings[index] = self._judged_again(finding, outcome)

    def _judged_again(self, finding: RegressionFinding, outcome: RegressionReport) -> RegressionFinding:
        """A row that fails now where it passed before is a change for the worse."""
        item = next(
            item
            for item in self._session.benchmark_items()
            if (item.implementation.name, str(item.case)) == (finding.implementation, finding.case)
        )
        try:
            with skips_as_unsupported(), ExitGuard():
                return gate.with_remeasurement(
                    finding, lambda remeasured: self._remeasure(item, remeasured, outcome.confidence), outcome.confidence
                )
        except (RemeasurementFailed, SkipCheck, Unsupported) as error:
            reason = str(error)
        except RAISED as error:
            reason = describe_error(item.implementation, item.case, error)
        reason = f"measured again: {reason}\nagain: {item.rerun(is_timed=True)}"
        row = (item.kind, finding.implementation, finding.case)
        outcome.changes.append(gate.StatusChange(*row, "passed", "failed", reason))
        return replace(finding, verdict="not judged", reason=reason)

    def _remeasure(self, item: BenchmarkItem, one: RegressionFinding, confidence: float) -> Ratio:
        """A new ratio of a row's column to its anchor's, its calls verified as all that are timed are."""
        session, pool = self._session, InputPool(item.case)
        with session.lock.shared():
            both = [session.verified(name, item.case) for name in (one.implementation, one.anchor)]
        if wrong := [candidate for candidate in both if isinstance(candidate, str)]:
            raise RemeasurementFailed("; ".join(wrong))
        candidates = [candidate for candidate in both if isinstance(candidate, Candidate)]
        arms = [Arm(one, pool) for one in candidates]
        with session.lock.exclusive():
            device = item.case.device
            timed: Sequence[Arm] | Sequence[GraphArm]
            timed, clock = (arms, clocks.for_device(device)) if one.column == "timing" else _replayed(arms)
            column = TimingColumn(timed, clock, confidence)
            ratio = column.measure_full_budget(REMEASUREMENT_BUDGETS * session.options.budget)
        with session.lock.shared():
            message = failed_tensors(one.implementation, item.case, timed[0].kept.verify(candidates[0].declared))
        if message:
            raise RemeasurementFailed(f"a timed call returned a wrong result\n{message}")
        return ratio


def _replayed(arms: list[Arm]) -> tuple[Sequence[GraphArm], Timer]:
    """Arms and clock for device-only times. Graphs are captured after a few calls, as a program captures them."""
    device = arms[0].candidate.device
    measure(arms, clocks.for_device(device), 0.0, lambda: True)
    with turn():
        graphs, missing = capture.graph_arms(arms)
    if len(graphs) < len(arms):
        raise RemeasurementFailed("; ".join(missing))
    return graphs, clocks.CudaGraphTimer(device)
