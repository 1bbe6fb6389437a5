"""pytest's hooks that collect rows as tests, among the user's own, and keep other plugins' choices of tests from them.

The rows that an implementation does not support are one test item, in place of an item for each. They are grouped after pytest
has selected items, so `-k`, node ids and `--deselect` apply to rows as ever. The item ends as skipped, or as failed where the
implementation is required; its rows go to the journal and the reports like any others.

pytest-benchmark's options choose and time the user's own benchmarks, its table shows those alone.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from pytest_benchmark.logger import Logger

from pytest_ecornn.reporting import standing
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import AGAIN, Row
from pytest_ecornn.run import replicates
from pytest_ecornn.run.items.items import CheckItem
from pytest_ecornn.run.session import ROW_FIXTURES, RunSession
from pytest_ecornn.run.suites import label_of_node
from pytest_ecornn.system.package_folders import SUITES

_SELFCHECK = SUITES / "test_selfcheck.py"
# A row that does not finish has no times for the fixture. An interrupted one is torn down where no marker's filter holds.
_UNUSED_FIXTURE = "ignore:Benchmark fixture was not used at all::.*pytest_ecornn.suites.test_benchmark"
_ITS_SKIP = re.compile(r"--benchmark-(skip|only)")


class RowCollection:
    """Registered for the length of one run. expect: called with the ids of tests that report rows."""

    def __init__(self, config: pytest.Config, session: RunSession, expect: Callable[[Collection[str]], None]):
        self._config, self._session, self._expect = config, session, expect
        self._benchmark_plugin = BenchmarkPlugin(config)
        self._own = set[str]()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for fixture, name in ROW_FIXTURES.items():
            if fixture in metafunc.fixturenames:
                items = getattr(self._session, name)()
                metafunc.parametrize(fixture, items, ids=[str(item) for item in items])

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leaves out the self-check, a run of its own."""
        return True if collection_path.name == _SELFCHECK.name and collection_path.samefile(_SELFCHECK) else None

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Drops placeholders of tests without parameters, and pytest-benchmark's skips of rows; groups unsupported rows."""
        items[:] = [item for item in items if row_item(item) or not _takes_row(item)]
        if labels := os.environ.get(replicates.LABELS):
            replicated = set(Path(labels).read_text(encoding="utf-8").splitlines())
            items[:] = [
                item for item in items if (row := row_item(item)) and row.kind == "benchmark" and str(row) in replicated
            ]
        self._leave_other_shards(items)
        yield
        _group_unsupported(items)
        self._benchmark_plugin.keep_rows(item for item in items if row_item(item))

    def _leave_other_shards(self, items: list[pytest.Item]) -> None:
        """Deselects rows of other shards, but for controls, which judge each run's own clocks."""
        if (shard := self._session.options.shard) is None:
            return
        own, others = list[pytest.Item](), list[pytest.Item]()
        for item in items:
            row = row_item(item)
            is_own = row is None or row.kind == "control" or shard.has(str(row))
            (own if is_own else others).append(item)
        items[:] = own
        if others:
            self._config.hook.pytest_deselected(items=others)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        own = [item for item in session.items if row_item(item) or isinstance(item, UnsupportedItem)]
        self._own = {item.nodeid for item in own}
        self._expect(self._own)
        self._benchmark_plugin.show_own(item for item in session.items if item.nodeid not in self._own)

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> str | None:
        """Says at once what is not going to run."""
        groups = [item for item in items if isinstance(item, UnsupportedItem)]
        rows = formatting.count(sum(len(group.rows) for group in groups), "row")
        return f"{rows} unsupported, an item for each of {formatting.count(len(groups), 'implementation')}" if groups else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        labels = set(map(str, self._session.items()))
        self._expect([nodeid for nodeid in ids if label_of_node(nodeid) in labels or "::test_unsupported[" in nodeid])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        with self._benchmark_plugin.running_row() if row_item(item) else nullcontext():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if isinstance(item, UnsupportedItem) and call.when == "call":
            report.ecornn_unsupported = {"summary": item.summary, "rows": [row.as_dict() for row in item.rows]}
        return report

    def hide_rows(self) -> None:
        """Leaves rows out of pytest-benchmark's table."""
        self._benchmark_plugin.hide_rows(self._own)


def _takes_row(item: pytest.Item) -> bool:
    return not ROW_FIXTURES.keys().isdisjoint(getattr(item, "fixturenames", ()))


def _group_unsupported(items: list[pytest.Item]) -> None:
    """Puts an item for each implementation, at the end, in place of those of the rows that it does not support."""
    selected = Counter(row.implementation.name for item in items if (row := row_item(item)) and row.kind != "control")
    supported, unsupported = list[pytest.Item](), dict[str, list[tuple[pytest.Item, Row]]]()
    for item in items:
        row = row_item(item)
        if row is None or not (reason := row.refusal):
            supported.append(item)
        else:
            unsupported.setdefault(row.implementation.name, []).append((item, row.skipped_row(reason)))
    items[:] = [*supported, *(_grouped(name, members, selected[name]) for name, members in sorted(unsupported.items()))]


def row_item(item: pytest.Item) -> CheckItem | None:
    """The `CheckItem` that the pytest item runs; None if it is no row of ours."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return next((value for value in parameters.values() if isinstance(value, CheckItem)), None)


def _grouped(name: str, members: list[tuple[pytest.Item, Row]], selected: int) -> pytest.Item:
    first, rows = members[0][0], [row for _, row in members]
    parent, own = first.parent, row_item(first)
    assert parent is not None
    assert own is not None
    item: pytest.Item = UnsupportedItem.from_parent(
        parent, name=f"test_unsupported[{name}]", rows=rows, selected=selected, rerun=own.rerun()
    )
    return item


class UnsupportedItem(pytest.Item):
    """Reports the rows of one implementation that it does not support."""

    def __init__(self, *, rows: list[Row], selected: int, rerun: str, **arguments: Any):
        super().__init__(**arguments)
        self.rows, self.selected, self.rerun = rows, selected, rerun
        self.funcargs: dict[str, Any] = {}  # pytest-benchmark 5.0.0 looks for its fixture in every item

    @property
    def summary(self) -> str:
        """How many of the selected rows it does not support, and why, in one line."""
        counts = Counter(row.reason.partition(AGAIN)[0] for row in self.rows)
        reasons = standing.reasons_line(dict(counts.most_common()))
        return f"{self.rows[0].implementation}: {len(self.rows)} of {self.selected} rows unsupported: {reasons}"

    def runtest(self) -> None:
        name, counts = self.rows[0].implementation, {"unsupported": len(self.rows), "selected": self.selected}
        self.user_properties += [("ecornn_implementation", name), *((f"ecornn_{key}", str(n)) for key, n in counts.items())]
        if self.rows[0].status == "failed":
            pytest.fail(f"{self.summary}\nagain: {self.rerun}", pytrace=False)
        pytest.skip(self.summary)

    def reportinfo(self) -> tuple[Any, None, str]:
        return self.path, None, self.name


def check_benchmark_loaded(config: pytest.Config) -> None:
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
            groups = [(group, [test for test in tests if test["fullname"] not in names]) for group, tests in session.groups]
            session.groups = [(group, tests) for group, tests in groups if tests]


def _is_its_skip(mark: pytest.Mark) -> bool:
    return mark.name == "skip" and bool(_ITS_SKIP.search(str(mark.kwargs.get("reason", ""))))
