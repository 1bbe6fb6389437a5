"""pytest's hooks during `--ecornn-selfcheck`: the planted set and right implementations are tried, and the score is kept."""

from __future__ import annotations

import shlex
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from pytest_ecornn import __version__
from pytest_ecornn.results import score
from pytest_ecornn.run import run_seed
from pytest_ecornn.run.suites import select_suites
from pytest_ecornn.selfcheck import public_cheats, trial
from pytest_ecornn.selfcheck.right_items import right_items
from pytest_ecornn.system import machine, user_folder
from pytest_ecornn.system.scratch import Scratch
from pytest_ecornn.verification import verification

PROPERTY = "ecornn_selfcheck"
KEPT_CASES = 64  # whose references are kept: trials of a cell and dtype meet the same cases


class SelfCheckPlugin:
    """Registered for the length of one run. Under pytest-xdist the controller counts."""

    def __init__(self, config: pytest.Config):
        self._config, self._start = config, time.monotonic()
        self._is_worker = hasattr(config, "workerinput")
        self.seed = run_seed.seed_of(config)
        machine.limit_threads_per_worker(config)
        verification.keep_expected(KEPT_CASES)
        taken = datetime.now(UTC).isoformat(timespec="seconds")
        self._score = score.MutationScore(taken, 0.0, __version__, machine.own_commit(), self.seed)
        self._written = ""
        select_suites(config, ["test_selfcheck.py"])

    def pytest_report_header(self) -> str:
        return f"ecornn {run_seed.line(self.seed, 'draws the same')}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[run_seed.INPUT_KEY] = self.seed

    def pytest_configure(self, config: pytest.Config) -> None:
        self._scratch = Scratch()
        user_folder.redirect_plugins(config, self._scratch.path)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "ecornn_trial" in metafunc.fixturenames:
            trials = trial.all_trials(seed=self.seed)
            metafunc.parametrize("ecornn_trial", trials, ids=map(str, trials))
        if "ecornn_correct" in metafunc.fixturenames:
            items = right_items(self.seed, self._config.getoption("--ecornn-correct-cases"))
            metafunc.parametrize("ecornn_correct", items, ids=[f"{item.kind}-{item}" for item in items])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A failure ends with the command that repeats the test: with this seed it draws the same."""
        report = yield
        if report.failed:
            cases = self._config.getoption("--ecornn-correct-cases")
            options = f"--ecornn-seed {self.seed} --ecornn-correct-cases {cases} -k {shlex.quote(item.name)}"
            report.longrepr = f"{report.longreprtext}\nagain: pytest --ecornn-selfcheck {options}"
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._is_worker or report.when != "call":
            return
        for found in (value for name, value in report.user_properties if name == PROPERTY):
            if "planted" in found:
                public = public_cheats.families_of(found["name"])
                self._score.add_planted(found["planted"], found["name"], report.passed, public)
            else:
                self._score.add_correct(found["name"], found["implementation"], found["cases"], report.passed)
        self._score.left_out += report.skipped

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A run that was cut short, or asked for a part, leaves the last score as it is."""
        if self._is_worker or not self._score.families:
            return
        self._score.seconds = time.monotonic() - self._start
        is_whole = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) and not self._is_part()
        if not is_whole:
            self._written = "not kept: not all was tried"
            return
        try:
            self._written = f"kept in {score.save(self._score)}: reports show it from now on"
        except OSError as error:
            self._written = f"ERROR: cannot be kept: {error}"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_unconfigure(self) -> None:
        self._scratch.remove()

    def _is_part(self) -> bool:
        setting = self._config.option
        return bool(setting.keyword or setting.markexpr or getattr(setting, "lf", False))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("ecornn selfcheck", sep="=", bold=True)
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> Iterator[str]:
        yield run_seed.line(self.seed, "draws the same")
        yield from self._score.lines()
        yield f"score {self._written}" if self._written else "nothing was tried"
