"""pytest's hooks during `--ecornn-selfcheck`: the planted set and right implementations are tried, and the score is kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Any

import pytest

from pytest_ecornn import __version__, cells, discovery, machine, run_seed, score, user_folder
from pytest_ecornn.contract import DTYPES, Case
from pytest_ecornn.drawn_items import DrawnItem
from pytest_ecornn.exploration import Profile
from pytest_ecornn.scratch import Scratch
from pytest_ecornn.selfcheck import trial
from pytest_ecornn.selfcheck.trial_session import TrialSession
from pytest_ecornn.strategies import nearest_supported
from pytest_ecornn.suite_selection import select_suites

PROPERTY = "ecornn_selfcheck"


@dataclass(frozen=True)
class CorrectItem(DrawnItem):
    """Verifies drawn cases of an implementation that is right; a failure is a false alarm."""

    examples: int = 1

    @property
    def profile(self) -> Profile:
        return Profile(self.examples, 0)

    def is_run(self) -> bool:
        """Whether the implementation runs any such case on a CPU."""
        return nearest_supported(self.case, self.found.kind().refusal) is not None


class Selfcheck:
    """Registered for the length of one run. Under pytest-xdist the controller counts."""

    def __init__(self, config: pytest.Config):
        self._config, self._start = config, time.monotonic()
        self._is_worker = hasattr(config, "workerinput")
        self.seed = run_seed.seed_of(config)
        machine.share_cores(config)
        taken = datetime.now(UTC).isoformat(timespec="seconds")
        self._score = score.Score(taken, 0.0, __version__, machine.own_commit())
        self._written = ""
        select_suites(config, ["test_selfcheck.py"])

    def pytest_report_header(self) -> str:
        return f"ecornn {run_seed.line(self.seed)}"

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        run_seed.pass_on(self._config, node.workerinput)

    def pytest_configure(self, config: pytest.Config) -> None:
        self._scratch = Scratch()
        user_folder.redirect_plugins(config, self._scratch.path)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        given: dict[str, Any] = {"ecornn_trial": trial.all_trials, "ecornn_correct": self._correct}
        for fixture in given.keys() & set(metafunc.fixturenames):
            found = given[fixture]()
            metafunc.parametrize(fixture, found, ids=[str(one) for one in found])

    def _correct(self) -> list[CorrectItem]:
        """One for each CPU implementation of this project, cell and dtype; what is asked for spread evenly over them."""
        session = TrialSession()
        bases = [Case(cell=cell, dtype=dtype, steps=4, batch=2, hidden_size=8) for cell in cells.names() for dtype in DTYPES]
        every = [CorrectItem(session, one, base) for one in discovery.discover([]).values() for base in bases]
        found = [item for item in every if item.is_run()]
        examples = ceil(self._config.getoption("--ecornn-correct-cases") / max(1, len(found)))
        return [replace(item, examples=examples) for item in found]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if self._is_worker or report.when != "call":
            return
        for found in (value for name, value in report.user_properties if name == PROPERTY):
            if "planted" in found:
                self._score.add_planted(found["planted"], found["name"], report.passed)
            else:
                self._score.add_correct(found["name"], found["cases"], report.passed)
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
        option = self._config.option
        return bool(option.keyword or option.markexpr or getattr(option, "lf", False))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.section("ecornn selfcheck", sep="=", bold=True)
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> Iterator[str]:
        yield run_seed.line(self.seed)
        yield from self._score.lines()
        yield f"score {self._written}" if self._written else "nothing was tried"
