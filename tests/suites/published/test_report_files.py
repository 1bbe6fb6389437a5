"""A report's JSON, written and read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_ecornn.suites.published.common.report_files import read_report, write_report


@dataclass
class Made:
    seconds: float
    rows: list[str] = field(default_factory=list)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    made = Made(2.5, ["one"])
    write_report(made, "# Made\n", tmp_path / "new", "made", 3)
    assert read_report(Made, tmp_path / "new/made.json", 3) == made
    assert (tmp_path / "new/made.md").read_text() == "# Made\n"


def test_one_of_another_version_is_refused(tmp_path: Path) -> None:
    write_report(Made(1.0), "", tmp_path, "made", 3)
    with pytest.raises(ValueError, match=r"made\.json: expected schema version 4, got 3"):
        read_report(Made, tmp_path / "made.json", 4)
