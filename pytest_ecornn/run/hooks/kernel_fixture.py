"""The fixture `ecornn`: `check` and `compare` in a user's own test, their rows in its report."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.kernels import checking, comparing
from pytest_ecornn.kernels.arguments import Function
from pytest_ecornn.kernels.report import KernelReport, WrongKernel
from pytest_ecornn.measurement.clocks import RecordedTimer
from pytest_ecornn.reporting import junit
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run.hooks.kernel_rows import ROWS
from pytest_ecornn.run.options import Options
from pytest_ecornn.run.process import worker_input
from pytest_ecornn.run.revisions import NotThere, Revision
from pytest_ecornn.system.locking import MachineLock


class KernelFixture:
    """Proves and times functions. The marker `ecornn` gives both verbs their arguments by keyword, a call's own win."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path):
        """folder: that the processes of the run share."""
        self._node, self._config, self._folder = request.node, request.config, folder
        declared = Options.declared()["budget"]
        declared.take_ini(self._config)
        budget = declared.parsed(self._config)
        self._defaults: dict[str, Any] = {} if declared.raw(self._config) is declared.default else {"budget": budget}
        for marker in reversed([*self._node.iter_markers("ecornn")]):
            if marker.args:
                raise pytest.UsageError(f"marker ecornn: expected arguments by keyword, got {marker.args[0]!r:.80}")
            self._defaults |= marker.kwargs
        known = {*_parameters(checking.check), *_parameters(comparing.compare)}
        if odd := [name for name in self._defaults if name not in known]:
            raise pytest.UsageError(f"marker ecornn: expected arguments of check or compare, got {odd[0]!r}")
        running: Any = self._config.pluginmanager.get_plugin("ecornn-running")
        self._lock: MachineLock = running.session.lock if running else MachineLock(rows=folder)
        self._lock.run = worker_input(self._config).get("ecornn_run", self._lock.run)

    def check(self, candidate: Function, reference: Function, make_inputs: Any, **options: Any) -> KernelReport:
        """`pytest_ecornn.check`: fails the test where the candidate is wrong."""
        options = {**self._options(checking.check), **options}
        with self._lock.shared():
            return self._added(lambda: checking.check(candidate, reference, make_inputs, **options))

    def compare(self, functions: Mapping[str, Function], make_inputs: Any, **options: Any) -> KernelReport:
        """`pytest_ecornn.compare`, in turn with the run's other processes."""
        options = {"name": self._node.name, "lock": self._lock, **self._options(comparing.compare), **options}
        former, notes = self._former(functions)
        report = self._added(lambda: comparing.compare({**functions, **former}, make_inputs, **options), notes)
        for row in report.rows:
            self._hand_to_benchmark(row)
        for name in former:
            report.assert_not_slower(name.rpartition("@")[0], than=name, by=self._limit)
        return report

    def _former(self, functions: Mapping[str, Function]) -> tuple[dict[str, Function], list[str]]:
        """The functions as the revision of --ecornn-against has them, as NAME@REV, and why others are not timed."""
        text = self._config.getoption("--ecornn-against")
        if not text:
            return {}, []
        former, notes, revision = {}, [], Revision(text, self._config.invocation_params.dir, self._folder / "against")
        for name, function in functions.items():
            try:
                former[f"{name}@{revision.label}"] = revision.function(function)
            except NotThere as reason:
                notes.append(f"{name} not compared with {revision.label}: {reason}")
        return former, notes

    @property
    def _limit(self) -> float:
        return Options.declared()["limits"].parsed(self._config).share("", "", "timing")  # type: ignore[no-any-return]

    def _options(self, verb: Function) -> dict[str, Any]:
        """The markers' arguments that the verb has."""
        return {name: value for name, value in self._defaults.items() if name in _parameters(verb)}

    def _added(self, verb: Any, notes: Sequence[str] = ()) -> KernelReport:
        """What the verb returns; its rows, also those of a failure, become the test's."""
        try:
            report: KernelReport = verb()
        except WrongKernel as wrong:
            self._add(wrong.report)
            raise
        for row in report.rows:
            row.notes = "; ".join(filter(None, [row.notes, *notes]))
        self._add(report)
        return report

    def _add(self, report: KernelReport) -> None:
        self._node.stash.setdefault(ROWS, []).extend(report.rows)
        for row in report.rows:
            self._node.user_properties += [(f"{row.implementation}_{name}", value) for name, value in junit.properties(row)]

    def _hand_to_benchmark(self, row: Row) -> None:
        """Gives the samples to pytest-benchmark, where it is loaded, as a benchmark of this test."""
        session: Any = getattr(self._config, "_benchmarksession", None)
        if session is None or session.disabled or row.timing is None:
            return
        from pytest_benchmark.fixture import BenchmarkFixture
        from pytest_benchmark.utils import NameWrapper

        timer = RecordedTimer()
        benchmark = BenchmarkFixture(
            self._node,
            add_stats=session.benchmarks.append,
            logger=session.logger,
            warner=self._node.warn,
            disabled=False,
            **{**session.options, "timer": NameWrapper(timer)},
        )
        benchmark.name, benchmark.fullname = row.implementation, f"{self._node.nodeid}[{row.implementation}]"
        timer.replay(benchmark, row.timing.samples_us, row.case, {"implementation": row.implementation})


def _parameters(verb: Function) -> list[str]:
    """Names of the arguments by keyword."""
    parameters = inspect.signature(verb).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]
