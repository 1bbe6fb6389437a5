"""pytest-benchmark beside our rows: its options choose and time the user's own benchmarks, its table shows those alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pytest_benchmark.logger import Logger

# A row that does not finish has no times for the fixture. An interrupted one is torn down where no marker's filter holds.
_UNUSED_FIXTURE = "ignore:Benchmark fixture was not used at all::.*pytest_ecornn.suites.test_benchmark"
_ITS_SKIP = re.compile(r"--benchmark-(skip|only)")


def check_loaded(config: pytest.Config) -> None:
    """Raises UsageError without pytest-benchmark, whose fixture a timed row needs."""
    if not hasattr(config.option, "benchmark_skip"):
        raise pytest.UsageError(
            "--ecornn-bench expected pytest-benchmark, but it is not loaded: leave out -p no:benchmark, "
            "or where plugins are not loaded by themselves, give -p pytest_benchmark.plugin"
        )


class BenchmarkPlugin:
    """Adapter of pytest-benchmark for one run. `_is_quiet`: its table is ours to hide, as the user asked for nothing of it."""

    def __init__(self, config: pytest.Config):
        self._config = config
        config.addinivalue_line("filterwarnings", _UNUSED_FIXTURE)
        typed = any(str(argument).startswith("--benchmark") for argument in config.invocation_params.args)
        self._is_quiet = config.get_verbosity() <= 0 and not typed and not config.getoption("benchmark_quiet", False)
        if self._is_quiet:
            config.option.benchmark_quiet = True  # its table repeats ours; its files and options are as ever

    @property
    def _session(self) -> Any:
        """pytest-benchmark's, or None where it is not loaded."""
        return getattr(self._config, "_benchmarksession", None)

    def keep_rows(self, items: Iterable[pytest.Item]) -> None:
        """Takes back its skip of each of these items, which are rows and no benchmarks of the user's."""
        for item in items:
            item.own_markers[:] = [mark for mark in item.own_markers if not _is_its_skip(mark)]

    @contextmanager
    def running_row(self) -> Iterator[None]:
        """Within it, its fixture skips nothing."""
        session = self._session
        if session is None:
            yield
            return
        before = session.skip, session.only
        session.skip = session.only = False
        try:
            yield
        finally:
            session.skip, session.only = before

    def show_own(self, items: Iterable[pytest.Item]) -> None:
        """Shows its table after all where these items of the user's hold a benchmark."""
        if self._is_quiet and self._session and any("benchmark" in getattr(item, "fixturenames", ()) for item in items):
            self._session.quiet, self._session.logger.level = False, Logger.NORMAL

    def hide_rows(self, names: set[str]) -> None:
        """Leaves out of its table the rows, by node id."""
        session = self._session
        if self._is_quiet and session and not session.quiet and session.groups:
            groups = [(group, [one for one in each if one["fullname"] not in names]) for group, each in session.groups]
            session.groups = [(group, each) for group, each in groups if each]


def _is_its_skip(mark: pytest.Mark) -> bool:
    return mark.name == "skip" and bool(_ITS_SKIP.search(str(mark.kwargs.get("reason", ""))))
