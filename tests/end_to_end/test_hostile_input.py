"""Text and files from elsewhere that would have a terminal, a spreadsheet or a parser do something else than show them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results import journal
from pytest_ecornn.results.rows import SCHEMA_VERSION
from tests.helpers import samples
from tests.helpers.foreign import BRIEFLY, QUICK, Foreign
from tests.helpers.reporting.outputs import csv_of
from tests.helpers.reporting_samples import sample_rows

_TRAINING = f"{samples.CASE}-training"
_STATUSES = "passed, failed, skipped, unproven"
_BENCH = ("--ecornn-bench", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE, *BRIEFLY)


@pytest.mark.usefixtures("own_folders")
def test_no_text_of_an_implementation_is_obeyed(foreign: Foreign) -> None:
    refusal = "        if case.training:\n            return '=1+1\\x1b[31m'\n"
    text = samples.RIGHT.replace("        if case.cell", f"{refusal}        if case.cell").replace(
        "            outputs = []",
        "            import warnings; warnings.warn('w\\x1b[31m'); print('p\\x1b[31m')\n"
        "            raise RuntimeError('r\\x1b[31m\\x1b]0;title\\x07')",
    )
    mine = foreign.write("mine.py", text)
    options = ["--ecornn-implementations", str(mine), "--ecornn-only", "mine", "--ecornn-case", samples.CASE]
    done = foreign.run("--ecornn-verify", *options, "--ecornn-case", _TRAINING, "-k", "fixed", "-rA", *QUICK, check=1)
    assert "\x1b" not in done.stdout
    for shown in (r"r\x1b[31m\x1b]0;title\x07", r"w\x1b[31m", r"p\x1b[31m", r"=1+1\x1b[31m"):
        assert shown in done.stdout
    reasons = {row["case"]: row["reason"] for row in csv_of(foreign.path / "reports/local")}
    assert reasons[_TRAINING] == r"'=1+1\x1b[31m"


def _nested(depth: int) -> list[Any]:
    return [_nested(depth - 1)] if depth else []


# By name: a part of a journal's header (line 1) or first row (line 2), what it says instead, and what is said of the file then.
_DAMAGES: dict[str, tuple[str, dict[str, Any], str]] = {
    "machine null": ("header", {"machine": None}, "line 1: machine: expected an object, got NoneType"),
    "packages text": ("header", {"machine": {"packages": "all"}}, "line 1: machine.packages: expected an object, got str"),
    "gpu's names": ("header", {"machine": {"gpu": {"names": 3}}}, "line 1: machine.gpu.names: expected a list of strings"),
    "setup a list": ("header", {"setup": []}, "line 1: setup: expected an object, got list"),
    "sources text": ("header", {"setup": {"sources": "x"}}, "line 1: setup.sources: expected an object, got str"),
    "no schema": ("header", {"schema_version": None}, "expected schema_version 1, got None"),
    "implementation a list": ("row", {"implementation": ["x"]}, "line 2: implementation: expected str, got"),
    "timing a list": ("row", {"timing": []}, "line 2: timing: expected an object, got a list"),
    "no timing": ("row", {"timing": None}, "line 2: timing: expected an object in a benchmark row that passed"),
    "time null": ("timing", {"time_us": None}, "line 2: time_us: expected float, got null"),
    "time negative": ("timing", {"time_us": -1}, "line 2: time_us: expected finite times of 0 or more"),
    "number too large": ("row", {"seconds": 10**400}, r"line 2: seconds: expected a number below 2\*\*63"),
    "status unknown": (
        "row",
        {"status": "great"},
        f"line 2: Row.status: expected one of {_STATUSES}, got 'great'",
    ),
    "deep": ("row", {"notes": _nested(800)}, "line 2: notes: expected str, got a list"),
}


def _damaged(header: dict[str, Any], row: dict[str, Any], part: str, fields: dict[str, Any]) -> str:
    """The lines of both, where a part has other fields."""
    {"header": header, "row": row, "timing": row["timing"]}[part].update(fields)
    return f"{json.dumps(header)}\n{json.dumps(row)}\n"


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_damaged_journal_is_refused_by_its_line(damage: str, tmp_path: Path) -> None:
    part, fields, message = _DAMAGES[damage]
    row = next(row for row in sample_rows() if row.timing is not None).as_dict()
    text = _damaged({"schema_version": SCHEMA_VERSION, "machine": {}, "setup": {}}, row, part, fields)
    (tmp_path / "journal.jsonl").write_text(text)
    with pytest.raises(journal.JournalError, match=f"journal.jsonl.*{message}.*run without --ecornn-resume"):
        journal.read(tmp_path / "journal.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Foreign:
    """A folder in which a run has ended."""
    foreign = Foreign(tmp_path_factory.mktemp("finished"))
    foreign.run(*_BENCH, *QUICK[2:], check=0)
    return foreign


@pytest.mark.parametrize(
    ("part", "fields", "message"),
    [
        _DAMAGES["machine null"],
        _DAMAGES["status unknown"],
        ("row", {"implementation": "nobody"}, f" nobody {samples.CASE} is no row of this run"),
    ],
    ids=["machine null", "status unknown", "implementation unknown"],
)
def test_a_damaged_journal_is_a_usage_error_and_is_kept(
    finished: Foreign, part: str, fields: dict[str, Any], message: str
) -> None:
    path = finished.path / "reports/local/journal.jsonl"
    whole = path.read_text()
    header, row, *rest = whole.splitlines(keepends=True)
    path.write_text("".join([_damaged(json.loads(header), json.loads(row), part, fields), *rest]))
    damaged = path.read_bytes()
    try:
        assert re.search(message, finished.run_here(*_BENCH, "--ecornn-resume", check=4).stderr)
        assert path.read_bytes() == damaged
    finally:
        path.write_text(whole)


def test_a_damaged_report_to_compare_with_is_a_usage_error(finished: Foreign) -> None:
    report = json.loads((finished.path / "reports/local/report.json").read_text())
    report["run"]["machine"]["packages"] = "all"
    finished.write("stored.json", json.dumps(report))
    done = finished.run_here(*_BENCH, "--ecornn-report", "other", "--ecornn-compare", "stored.json", check=4)
    assert "stored.json: run: machine.packages: expected an object, got str" in done.stderr
