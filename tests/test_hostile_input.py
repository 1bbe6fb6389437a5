"""Text and files from elsewhere that would have a terminal, a spreadsheet or a parser do something else than show them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests import samples
from tests.foreign import QUICK, Foreign

_TRAINING = f"{samples.CASE}-training"


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
    done = foreign.run("--ecornn-verify", "--ecornn-implementations", str(mine), check=4)
    assert r"importing it raised RuntimeError: r\x1b[31m" in done.stderr
    assert "\x1b" not in done.stderr
