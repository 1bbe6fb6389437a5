"""Text and files from elsewhere that would have a terminal, a spreadsheet or a parser do something else than show them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results import journal
from pytest_ecornn.results.rows import SCHEMA_VERSION
from tests.helpers import samples
from tests.helpers.foreign import BRIEFLY, QUICK, Foreign
from tests.helpers.reporting_samples import sample_rows

_TRAINING = f"{samples.CASE}-training"
_BENCH = ("--ecornn-bench", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE, *BRIEFLY)

Change = Callable[[dict[str, Any], dict[str, Any]], Any]


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Foreign:
    """With a temporary folder of its own, so that no other run on this machine takes part."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return Foreign(tmp_path / "here")


def test_no_text_of_an_implementation_is_obeyed(foreign: Foreign) -> None:
    text = samples.RIGHT.replace(
        "        if case.cell", "        if case.training:\n            return '=1+1\\x1b[31m'\n        if case.cell"
    )
    text = text.replace(
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
    with (foreign.path / "reports/local/report.csv").open(newline="") as file:
        reasons = {row["case"]: row["reason"] for row in csv.DictReader(file)}
    assert reasons[_TRAINING] == r"'=1+1\x1b[31m"


def test_a_module_that_cannot_be_imported_is_shown_without_its_escapes(foreign: Foreign) -> None:
    mine = foreign.write("mine.py", "raise RuntimeError('r\\x1b[31m')")
    done = foreign.run_here("--ecornn-verify", "--ecornn-implementations", str(mine), check=4)
    assert r"importing it raised RuntimeError: r\x1b[31m" in done.stderr
    assert "\x1b" not in done.stderr


def _nested(depth: int) -> list[Any]:
    return [_nested(depth - 1)] if depth else []


def _in_header(**fields: Any) -> Change:
    return lambda header, row: header.update(fields)


def _in_row(**fields: Any) -> Change:
    return lambda header, row: row.update(fields)


# Changes of a journal's header and first row, and what is said of the file then.
_DAMAGES: dict[str, tuple[Change, str]] = {
    "machine null": (_in_header(machine=None), "line 1: machine: expected an object, got NoneType"),
    "packages text": (_in_header(machine={"packages": "all"}), "line 1: machine.packages: expected an object, got str"),
    "gpu's names a number": (
        _in_header(machine={"gpu": {"names": 3}}),
        "line 1: machine.gpu.names: expected a list of strings",
    ),
    "setup a list": (_in_header(setup=[]), "line 1: setup: expected an object, got list"),
    "sources text": (_in_header(setup={"sources": "x"}), "line 1: setup.sources: expected an object, got str"),
    "no schema": (_in_header(schema_version=None), "expected schema_version 1, got None"),
    "implementation a list": (_in_row(implementation=["x"]), "line 2: implementation: expected str, got"),
    "timing a list": (_in_row(timing=[]), "line 2: timing: expected an object, got a list"),
    "no timing": (_in_row(timing=None), "line 2: timing: expected an object in a benchmark row that passed"),
    "time null": (lambda header, row: row["timing"].update(time_us=None), "line 2: time_us: expected float, got null"),
    "time negative": (
        lambda header, row: row["timing"].update(time_us=-1),
        "line 2: time_us: expected finite times of 0 or more",
    ),
    "number too large": (_in_row(seconds=10**400), r"line 2: seconds: expected a number below 2\*\*63"),
    "status unknown": (
        _in_row(status="great"),
        "line 2: Row.status: expected one of passed, failed, skipped, unproven, got 'great'",
    ),
    "deep": (_in_row(notes=_nested(800)), "line 2: notes: expected str, got a list"),
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_damaged_journal_is_refused_by_its_line(damage: str, tmp_path: Path) -> None:
    change, message = _DAMAGES[damage]
    header: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "machine": {}, "setup": {}}
    row = next(row for row in sample_rows() if row.timing is not None).as_dict()
    change(header, row)
    (tmp_path / "journal.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(row)}\n")
    with pytest.raises(journal.JournalError, match=f"journal.jsonl.*{message}.*run without --ecornn-resume"):
        journal.read(tmp_path / "journal.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Foreign:
    """A folder in which a run has ended."""
    foreign = Foreign(tmp_path_factory.mktemp("finished"))
    foreign.run(*_BENCH, *QUICK[2:], check=0)
    return foreign


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_DAMAGES["machine null"][0], _DAMAGES["machine null"][1]),
        (_DAMAGES["status unknown"][0], _DAMAGES["status unknown"][1]),
        (_in_row(implementation="nobody"), f" nobody {samples.CASE} is no row of this run"),
    ],
    ids=["machine null", "status unknown", "implementation unknown"],
)
def test_a_damaged_journal_is_a_usage_error_and_is_kept(finished: Foreign, change: Change, message: str) -> None:
    path = finished.path / "reports/local/journal.jsonl"
    whole = path.read_text()
    header, row, *rest = map(json.loads, whole.splitlines())
    change(header, row)
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, row, *rest)))
    damaged = path.read_bytes()
    try:
        assert message in finished.run_here(*_BENCH, "--ecornn-resume", check=4).stderr
        assert path.read_bytes() == damaged
    finally:
        path.write_text(whole)


def test_a_damaged_report_to_compare_with_is_a_usage_error(finished: Foreign) -> None:
    report = json.loads((finished.path / "reports/local/report.json").read_text())
    report["run"]["machine"]["packages"] = "all"
    finished.write("stored.json", json.dumps(report))
    done = finished.run_here(*_BENCH, "--ecornn-report", "other", "--ecornn-compare", "stored.json", check=4)
    assert "stored.json: run: machine.packages: expected an object, got str" in done.stderr
