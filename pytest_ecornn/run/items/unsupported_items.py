"""One test item an implementation for all the rows that it does not support, in place of an item for each of them.

Rows are grouped after pytest has selected items, so `-k`, node ids and `--deselect` apply to rows as ever. The item ends as
skipped, or as failed where the implementation is required; its rows go to the journal and the reports like any others.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from pytest_ecornn.reporting import standing
from pytest_ecornn.results import formatting
from pytest_ecornn.results.rows import AGAIN, Row
from pytest_ecornn.run.items.items import CheckItem


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


class Grouping:
    """pytest's hooks that make such items and hand on their rows."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        selected = Counter(row.implementation.name for item in items if (row := row_item(item)) and row.kind != "control")
        supported, unsupported = list[pytest.Item](), dict[str, list[tuple[pytest.Item, Row]]]()
        for item in items:
            row = row_item(item)
            if row is None or not (reason := row.refusal):
                supported.append(item)
            else:
                unsupported.setdefault(row.implementation.name, []).append((item, row.skipped_row(reason)))
        groups = (_grouped(name, members, selected[name]) for name, members in sorted(unsupported.items()))
        items[:] = [*supported, *groups]

    def pytest_report_collectionfinish(self, items: list[pytest.Item]) -> str | None:
        """Says at once what is not going to run."""
        groups = [item for item in items if isinstance(item, UnsupportedItem)]
        rows = formatting.count(sum(len(group.rows) for group in groups), "row")
        return f"{rows} unsupported, an item for each of {formatting.count(len(groups), 'implementation')}" if groups else None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        if isinstance(item, UnsupportedItem) and call.when == "call":
            report.ecornn_unsupported = {"summary": item.summary, "rows": [row.as_dict() for row in item.rows]}
        return report


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
