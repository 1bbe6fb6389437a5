"""pytest's hooks that collect rows as tests, among the user's own, and keep other plugins' choices of tests from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.run import replicates
from pytest_ecornn.run.hooks.benchmark_plugin import BenchmarkPlugin
from pytest_ecornn.run.items.unsupported_items import UnsupportedItem, row_item
from pytest_ecornn.run.session import ROW_FIXTURES, RunSession
from pytest_ecornn.run.suites import label_of_node
from pytest_ecornn.system.package_folders import SUITES

_SELFCHECK = SUITES / "test_selfcheck.py"


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
        """Drops the placeholder that pytest makes for a test without parameters, and what makes pytest-benchmark skip rows."""
        items[:] = [item for item in items if row_item(item) or not _takes_row(item)]
        if labels := os.environ.get(replicates.LABELS):
            replicated = set(Path(labels).read_text(encoding="utf-8").splitlines())
            items[:] = [
                item for item in items if (row := row_item(item)) and row.kind == "benchmark" and str(row) in replicated
            ]
        self._leave_other_shards(items)
        yield
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

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        labels = set(map(str, self._session.items()))
        self._expect([nodeid for nodeid in ids if label_of_node(nodeid) in labels or "::test_unsupported[" in nodeid])

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        with self._benchmark_plugin.running_row() if row_item(item) else nullcontext():
            return (yield)

    def hide_rows(self) -> None:
        """Leaves rows out of pytest-benchmark's table."""
        self._benchmark_plugin.hide_rows(self._own)


def _takes_row(item: pytest.Item) -> bool:
    return not ROW_FIXTURES.keys().isdisjoint(getattr(item, "fixturenames", ()))
