"""Every part of every report: what its time does not reach says so, and its rows outlive JSON."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

import pytest

from pytest_ecornn.suites.published import ecornn, stored
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import Section
from pytest_ecornn.suites.published.common.report_files import from_json
from pytest_ecornn.suites.published.ecornn_parts import lstm_times

PARTS = {f"{name}-{part}": section for name in stored.NAMES for part, section in stored.plan(name).parts.items()}
del PARTS["sparse-capacity"]  # which asks a device for its sizes
PARTS["ecornn-times"] = Section(lstm_times.measure, lambda rows: lstm_times.render(rows, ecornn.PAPER_COLUMN), 1.0)


@pytest.mark.parametrize("name", PARTS)
def test_what_begins_after_the_deadline_says_so(name: str) -> None:
    section = PARTS[name]
    rows = list(section.rows(0.0, [], section.groups, None))
    assert all(NOT_REACHED in repr(row) for row in rows)
    assert re.search(rf"{NOT_REACHED}|\b0 of (the 0|\d+) cases", section.render(rows))
    assert len({row.label for row in rows}) == len(rows) > 0
    if section.row:
        assert [from_json(section.row, json.loads(json.dumps(asdict(row)))) for row in rows] == rows
