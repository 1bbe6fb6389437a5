"""Every part of every report: its rows are those that are stored, outlive JSON, and say what its time does not reach."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.suites.published import ecornn, stored
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import Section
from pytest_ecornn.suites.published.common.report_files import from_json
from pytest_ecornn.suites.published.ecornn_parts import lstm_times

REPORTS = Path(__file__).parents[3] / "reports"
PARTS = {f"{name}-{part}": section for name in stored.NAMES for part, section in stored.plan(name).parts.items()}
del PARTS["sparse-capacity"]  # which asks a device for its sizes
PARTS["ecornn-times"] = Section(lstm_times.measure, lambda rows: lstm_times.render(rows, ecornn.PAPER_COLUMN), 1.0)


@cache
def stored_rows(name: str) -> Mapping[str, list[Any]]:
    files = [file for folder in ("h200", "h100") if (file := REPORTS / folder / f"{name}.json").exists()]
    return stored.joined(name, files[:1]).rows


@pytest.mark.parametrize("name", PARTS)
def test_what_begins_after_the_deadline_says_so(name: str) -> None:
    section = PARTS[name]
    rows = list(section.rows(0.0, [], section.groups, None))
    assert all(NOT_REACHED in repr(row) for row in rows)
    assert re.search(rf"{NOT_REACHED}|\b0 of (the 0|\d+) cases", section.render(rows))
    assert len({row.label for row in rows}) == len(rows) > 0
    if section.row:
        assert [from_json(section.row, json.loads(json.dumps(asdict(row)))) for row in rows] == rows


@pytest.mark.parametrize("name", sorted({*PARTS} - {"persistent-host", "ecornn-times"}))
def test_what_is_measured_is_what_the_stored_report_has(name: str) -> None:
    """Not so of first uses, which a process tells, and of a report that is no plan's."""
    suite, _, part = name.rpartition("-")
    labels = {row.label for row in PARTS[name].rows(0.0, [], PARTS[name].groups, None)}
    measured = {row.label for row in stored_rows(suite)[part]}
    assert measured <= labels
    assert len(labels - measured) <= (name == "deepbench-training")  # a row that its time did not reach
