"""pytest's hooks during a run with one of the flags: the way of a row to the journal, progress, report."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn import reporting
from pytest_ecornn.measurement.noise import baselines
from pytest_ecornn.regression import gate
from pytest_ecornn.regression.gate import RegressionReport
from pytest_ecornn.reporting import github, junit, standing
from pytest_ecornn.results import formatting, journal, score
from pytest_ecornn.results.formatting import printable
from pytest_ecornn.results.rows import Row
from pytest_ecornn.run import proven, run_seed
from pytest_ecornn.run.gate_run import RegressionGate
from pytest_ecornn.run.hooks.collection import RowCollection, check_benchmark_loaded, row_item
from pytest_ecornn.run.hooks.kernel_rows import KernelRows
from pytest_ecornn.run.hooks.screen import ProgressDisplay, write_summary
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.run.process import worker_input
from pytest_ecornn.run.processes.controller import XdistController, ignore_closed_channel
from pytest_ecornn.run.processes.gpu_workers import GpuWorkers, uses_gpus
from pytest_ecornn.run.processes.worker import Worker, WorkerLimits, WorkerThreads
from pytest_ecornn.run.replicates import Replicates
from pytest_ecornn.run.revisions import slower
from pytest_ecornn.run.session import RunSession
from pytest_ecornn.run.suites import select_suites
from pytest_ecornn.system import interruption, machine, user_folder
from pytest_ecornn.system.file_locks import LockError
from pytest_ecornn.system.folder_lock import FolderInUse, FolderLock
from pytest_ecornn.system.gpus.clock_lock import ClockLock, every_gpu
from pytest_ecornn.verification.outcomes import CheckFailed

NOT_REACHED = "rows not reached"  # a setting of a report that was cut short
_MAX_VALUE_LENGTH = 200  # of a set-up's value in an error


def register_run(config: pytest.Config) -> None:
    """Registers what runs the rows and reports them, and the hooks of the run's processes.

    Rows that are isolated or on a GPU cost their worker at most: another takes its place.
    """
    manager, running = config.pluginmanager, RunPlugin(config)
    manager.register(running, "ecornn-running")
    session, options = running.session, running.session.options
    if hasattr(config, "workerinput"):
        if "ecornn_fatal" in worker_input(config):  # of a controller that judges dead workers
            worker = Worker(config, session)
            manager.register(worker, "ecornn-worker")
            if options.isolate:
                manager.register(WorkerLimits(config, session, worker.stack), "ecornn-worker-limits")
        return
    on_gpus = uses_gpus(session.devices)
    is_handed_out = options.isolate or (on_gpus and getattr(config.option, "dist", "no") == "load")
    if config.option.collectonly or not is_handed_out:
        return
    if options.ray is not None:
        from pytest_ecornn.run.cluster.cluster_session import register_cluster

        register_cluster(config, session)
        return
    controller = XdistController(session)
    manager.register(controller, "ecornn-controller")
    if on_gpus:
        manager.register(GpuWorkers(session.devices, controller), "ecornn-gpu-workers")


class RunPlugin:
    """Registered for the length of one run."""

    def __init__(self, config: pytest.Config):
        self.session = RunSession(config)
        is_bench = self.session.options.bench
        if is_bench:
            check_benchmark_loaded(config)
        self._config = config
        self._is_worker = bool(worker_input(config))
        self._functions: KernelRows = config.pluginmanager.get_plugin("ecornn-kernel-rows")  # type: ignore[assignment]
        seconds = worker_input(config).get("ecornn_seconds", self.session.options.seconds or math.inf)
        self._deadline: float = self._functions.start + seconds
        self._due = set[str]()  # ids of tests that have not reported their rows
        self._journal: journal.Journal | None = None
        self._folder_lock: FolderLock | None = None
        self.session.lock.say = self._say
        self._screen = ProgressDisplay(config) if not self._is_worker else None
        self._written: list[str] = []
        self._rows: list[Row] = []  # that are reported
        self._gate: RegressionGate | None = None
        self._compared: RegressionReport | None = None
        self._at_sigterm: Any = None
        self._clocks = ClockLock()
        config.pluginmanager.register(WorkerThreads(config, self.session.share), "ecornn-worker-threads")
        user_folder.redirect_plugins(config, self.session.shared_folder)
        self._collection = RowCollection(config, self.session, self._set_due)
        config.pluginmanager.register(self._collection, "ecornn-collection")
        select_suites(config, ["test_equivalence.py", "test_properties.py", *(["test_benchmark.py"] if is_bench else [])])

    def _seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    # The way of a row.

    def _set_due(self, ids: Collection[str]) -> None:
        self._due = {*ids}
        if self._screen:
            self._screen.total = len(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["ecornn_shared"] = str(self.session.shared_folder)
        node.workerinput["ecornn_run"] = self.session.lock.run
        node.workerinput["ecornn_seconds"] = self._seconds_left()
        node.workerinput[run_seed.INPUT_KEY] = self.session.options.seed
        ignore_closed_channel(node)

    def pytest_report_header(self) -> str:
        return f"ecornn {run_seed.line(self.session.options.seed)}"

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        if self._is_worker or self._config.option.collectonly:
            return
        if threading.current_thread() is threading.main_thread():
            self._at_sigterm = signal.signal(signal.SIGTERM, interruption.handler(self._config))
        if self._screen:
            self._screen.start()
        options = self.session.options
        self._gate = RegressionGate(self.session, self.machine) if options.compare else None
        header: dict[str, Any] = {"started": self._functions.started, "machine": self.machine, "seed": options.seed}
        header["setup"] = self.session.comparability_key
        try:
            self.session.lock.check()
            self._folder_lock = _locked(options.report)
            self._journal = journal.Journal(options.report, header, options.resume)
            check_resumable(self._journal, header, self.session.items())
        except (LockError, FolderInUse, journal.JournalError) as error:
            raise pytest.UsageError(str(error)) from error
        if options.lock_clocks is not None and uses_gpus(self.session.devices):
            self._lock_clocks(options.lock_clocks)

    def _lock_clocks(self, mhz: int) -> None:
        """Locks those of the GPUs that run rows: of this host's first, where workers have one each."""
        devices = [device for device in self.session.devices if device != "cpu"]
        workers = getattr(self._config.option, "tx", None)
        if self.session.options.ray is not None:
            self._clocks.state = "not locked: rows run on the hosts of a cluster"
        else:
            self._clocks.lock(every_gpu()[: len(workers)] if workers and "cuda" in devices else devices, mhz)
        self._written.append(f"GPU clocks {self._clocks.state}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Leaves out a row that is due once the time of --ecornn-seconds is over."""
        row = row_item(item) if time.monotonic() >= self._deadline else None
        if row is None or row.empty_row().key in self.session.finished:
            return None
        item.session._setupstate.teardown_exact(nextitem)  # what the last item that ran has left for this one
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        row = self.session.current if call.when == "call" else None
        if row is not None:
            item.user_properties.extend(junit.properties(row))
        report = yield
        if row is None and report.skipped and (skipped := row_item(item)):
            row = _skipped_row(skipped, report)
        if row is not None:
            self.session.current = None
            report.ecornn_row = row.as_dict()
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._journal is None:
            return
        unsupported = getattr(report, "ecornn_unsupported", None)
        row = Row.from_dict(report.ecornn_row) if hasattr(report, "ecornn_row") else self._row_of_crashed_item(report)
        try:
            if row is not None:
                self.session.add_origin(row)
                self._journal.add(row)
            if unsupported is not None:
                self._journal.add(*map(Row.from_dict, unsupported["rows"]))
        except journal.JournalError as error:
            pytest.exit(str(error))
        if row is not None or unsupported is not None:
            self._due.discard(report.nodeid)
            _neutralise(report)
        if self._screen:
            self._screen.report(row)
            if unsupported is not None:
                self._screen.report_unsupported(unsupported["summary"], report.outcome)

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Neutralises a warning, before pytest shows it."""
        if (shown := printable(warning_message.message)) != str(warning_message.message):
            warning_message.message = shown

    def _say(self, text: str) -> None:
        """A line that reaches the terminal although a test's output is captured; a worker's by the standard error."""
        capture_manager = self._config.pluginmanager.get_plugin("capturemanager")
        with capture_manager.global_and_fixture_disabled() if capture_manager else nullcontext():
            if self._screen:
                self._screen.write_line(text)
            else:
                print(formatting.one_line(text), file=sys.stderr, flush=True)

    def _row_of_crashed_item(self, report: Any) -> Row | None:
        """The row of an item that failed outside it: its process died, or a fixture raised."""
        item = self.session.item(report.nodeid) if report.failed else None
        if item is None:
            return None
        row = item.empty_row()
        item.fail(row, CheckFailed(f"expected a finished row, but its test ended by: {report.longreprtext[-500:]}"))
        return row

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Rows are shown by our own progress unless pytest was asked to be verbose."""
        is_ours = hasattr(report, "ecornn_row") or hasattr(report, "ecornn_unsupported")
        if is_ours and self._screen and self._screen.is_shown:
            outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
            return outcome, "", outcome.upper()
        return None

    # The report.

    @cached_property
    def machine(self) -> dict[str, Any]:
        return {**machine.fingerprint(self._config.rootpath), **self.session.host_machine, "allocator": self.session.allocator}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._screen:
            self._screen.stop()
        if self._journal is None:
            return
        is_over = bool(self._due) and time.monotonic() >= self._deadline
        if is_over:
            left = formatting.count(len(self._due), "row")
            self._written.append(f"WARNING: the {self.session.options.seconds:g} s are over, and {left} not reached")
        if is_over and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus, lines = proven.judge(self.session, self._config, self._journal.rows)
            self._written += [f"ERROR: {line}" for line in lines]
        if not self._journal.rows:
            return
        is_cut_short = is_over or session.exitstatus == pytest.ExitCode.INTERRUPTED
        self._rows = self._reached_rows(self._journal.rows) if is_cut_short else self._journal.rows
        timed = [row.key for row in self._rows if row.kind == "benchmark" and row.status == "passed"]
        if timed and not is_cut_short and (count := self.session.options.replicates - 1):
            self._replicate(timed, count, session)
            is_cut_short = session.exitstatus == pytest.ExitCode.INTERRUPTED
        baselines.compare_with_own_rows(self._rows)
        try:
            if self._gate:
                self._compare(self._gate, session, is_cut_short)
            rows = self._rows
            self._judge_against_revision(session)
            reported = [*rows, *self._functions.rows]
            paths = reporting.write_reports(self.session.options.report, self._run_info(), reported, self._compared)
            self._written.append(_where(paths))
            github.append_summary("Recurrent layers", rows, self._compared)
        except reporting.ReportError as error:
            self._written.append(f"ERROR: {error}")
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            is_cut_short = True
        if is_cut_short:
            self._written.append(_kept(self._journal))
        elif reason := "" if self._gate else gate.unusable(rows):
            self._written.append(f"WARNING: no gate can use this report, as no row can be judged by it: {reason}")
        if not is_cut_short:
            self._written += proven.remarks(self.session, rows)
        if not self._due and not is_cut_short:
            self._written += proven.stale_lines(self.session, self._config, rows)

    def _reached_rows(self, rows: list[Row]) -> list[Row]:
        """Leaves out the refusals on cases of which an interrupted run has timed nothing, though others would run them."""
        finished = {row.key for row in rows}
        unfinished = (row for item in self.session.items() if (row := item.empty_row()).key not in finished)
        reached = {row.case for row in rows if row.kind == "benchmark" and row.status != "skipped"}
        unreached = {row.case for row in unfinished if row.kind == "benchmark"} - reached
        return [row for row in rows if row.kind != "benchmark" or row.case not in unreached]

    def _replicate(self, keys: Collection[gate.Key], count: int, session: pytest.Session, is_afresh: bool = False) -> None:
        """Has these rows measured by so many further processes, which get the memory that this one needs no more.

        is_afresh: by these alone. An interrupt leaves the rows as they are.
        """
        if self._at_sigterm is not None:  # a handler told pytest-xdist's queue, which nobody reads now
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        self.session.free_layers()
        due = [row for row in self._rows if row.key in keys]
        replicates = Replicates(self._config, self.session.options, self.session.shared_folder / "replicates", self._say)
        try:
            rows = replicates.measure(due, count, self.session.confidence, self._seconds_left, is_afresh)
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            return
        measured = {row.key: row for row in rows}
        self._rows = [measured.get(row.key, row) for row in self._rows]
        self._written += [f"WARNING: {line}" for line in replicates.warnings]
        if failed := [f"FAILED: {row.reason}" for row in measured.values() if row.status == "failed"]:
            self._written += failed
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _judge_against_revision(self, session: pytest.Session) -> None:
        """Says which rows are slower than in the revision of --ecornn-against, and fails the run."""
        revision, options = self.session.revision, self.session.options
        lines = slower(self._rows, revision.label, options.limits) if revision else []
        self._written += [f"SLOWER: {line}" for line in lines]
        if lines and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _compare(self, regression_gate: RegressionGate, session: pytest.Session, is_cut_short: bool) -> None:
        """An interrupted run is compared as far as it got; nothing is measured again then."""
        self._compared = regression_gate.outcome(self._rows, reporting.unproven(self._rows))
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        try:
            if session.exitstatus in ended and self._screen and not is_cut_short:
                if due := self._compared.replicates_due:
                    self._replicate(due, max(due.values()), session, is_afresh=True)
                    self._compared = regression_gate.outcome(self._rows, reporting.unproven(self._rows))
                if session.exitstatus in ended:  # not interrupted meanwhile
                    regression_gate.measure_again(self._compared, self._screen.write_line)
        except KeyboardInterrupt:
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        self._compared.mark_inconclusive()
        if self._compared.problems and session.exitstatus in ended:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _run_info(self) -> reporting.RunInfo:
        assert self._journal is not None
        return self._functions.run_info(
            self.machine,
            ceilings=self.session.measured_ceilings.as_report(self.session.devices),
            settings={
                **self.session.settings,
                **({"GPU clocks": self._clocks.state} if uses_gpus(self.session.devices) else {}),
                **({NOT_REACHED: len(self._due)} if self._due else {}),
            },
            refused=standing.refused(self._rows),
            score=score.load_last(),
            skipped=standing.skipped(self._rows),
        )

    def pytest_unconfigure(self) -> None:
        self._clocks.unlock()
        if self._folder_lock is not None:
            self._folder_lock.release()
        if self._at_sigterm is not None:
            signal.signal(signal.SIGTERM, self._at_sigterm)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        self._collection.hide_rows()
        if self._rows or self._written:
            settings = self.session.settings
            write_summary(terminalreporter, self._rows, settings, self._compared, self._written, self._functions.command)
        if github.is_job():
            others = [known for known in self.session.implementations.values() if not known.is_own]
            places = {known.name: github.place(known.path, known.line, self._config.rootpath) for known in others}
            for problem in github.problems(self._rows, self._compared):
                terminalreporter.write_line(github.annotation(problem, places.get(problem.implementation, "")))


def _locked(folder: Path) -> FolderLock:
    try:
        return FolderLock(folder)
    except OSError as error:
        raise journal.cannot_write(folder, error) from error


def _where(paths: Sequence[Path]) -> str:
    """Where the report lies: that for a browser, and names of the others."""
    first = next((path for path in paths if path.suffix == ".html"), paths[0])
    return f"report: {first}; beside it {', '.join(path.name for path in paths if path != first)}"


def _kept(rows: journal.Journal) -> str:
    try:
        count = f"{rows.kept} of {formatting.count(len(rows.rows), 'finished row')}"
    except journal.JournalError as error:
        return f"ERROR: {error}"
    return f"kept: {count}, in {rows.path}; --ecornn-resume goes on from there"


def _skipped_row(item: CheckItem, report: pytest.TestReport) -> Row:
    """The row of an item that a marker or a plugin skipped before it ran. Where it is required, the report fails too."""
    row = item.skipped_row(_skip_reason(report))
    if row.status == "failed":
        report.outcome, report.longrepr = "failed", row.reason
        vars(report).pop("wasxfail", None)
    return row


def _skip_reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return report.wasxfail or "marked as xfail"
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ") or "skipped without a reason"


def _neutralise(report: pytest.TestReport) -> None:
    """Neutralises what a terminal would obey of an implementation's text in a row's report: raised, skipped for and printed."""
    report.sections = [(name, printable(text)) for name, text in report.sections]
    if isinstance(report.longrepr, str):
        report.longrepr = printable(report.longrepr)
    elif isinstance(report.longrepr, tuple):
        path, line, reason = report.longrepr
        report.longrepr = (path, line, printable(reason))
    elif report.longrepr is not None and (shown := printable(report.longreprtext)) != report.longreprtext:
        report.longrepr = shown  # a traceback's colours are less than what hides in it


def check_resumable(rows: journal.Journal, now: dict[str, Any], items: Iterable[CheckItem]) -> None:
    """Raises JournalError where rows of an interrupted run cannot stand beside new ones: of another header, or of no item."""
    before = rows.header
    differences = machine.same_machine(before.get("machine", {}), now["machine"])
    differences += _changes(before.get("setup", {}), now["setup"])
    differences += _strangers(rows, items)
    if differences:
        raise journal.JournalError(
            f"{rows.path}: its rows cannot stand beside new ones ({'; '.join(differences)}); "
            "repeat the options of the interrupted run, or run without --ecornn-resume"
        )


def _strangers(rows: journal.Journal, items: Iterable[CheckItem]) -> list[str]:
    """The first row that this run would never have written."""
    known = {item.empty_row().key for item in items} if rows.rows else set()
    return [f"{' '.join(row.key)} is no row of this run" for row in rows.rows if row.key not in known][:1]


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences between two runs' set-up; a changed source is given by its implementation's name."""
    names = [name for name in {**now, **before} if name != "sources" and before.get(name) != now.get(name)]
    sources = before.get("sources", {})
    return [
        *(f"{name}: {_words(before.get(name))} and {_words(now.get(name))}" for name in names),
        *(f"{name} has changed" for name, checksum in now["sources"].items() if sources.get(name, checksum) != checksum),
    ]


def _words(value: Any) -> str:
    """A value of the set-up in a few words."""
    text = (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)
    return formatting.one_line(text, _MAX_VALUE_LENGTH)
