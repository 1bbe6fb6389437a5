"""An import against the direction of dependencies, and a circle, are found by `make lint`. Tests share helpers alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import as_installed

ROOT = Path(__file__).parents[2]
# A module of a lower package, and what it must not import.
UPWARD = {
    "contract/cells.py": "from pytest_ecornn.run import session",
    "results/rows.py": "from pytest_ecornn.verification import calls",
    "verification/calls.py": "from pytest_ecornn.implementations import scan_cpu",
    "run/session.py": "from pytest_ecornn.suites import cases",
}
CIRCLE = {"run/options.py": "from pytest_ecornn.run import session"}


def _check(root: Path) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(root)})


@pytest.mark.test_all
def test_an_upward_import_breaks_a_contract(tmp_path: Path) -> None:
    pytest.importorskip("importlinter")
    as_installed.refresh(tmp_path)
    assert _check(tmp_path).returncode == 0
    for file, line in (UPWARD | CIRCLE).items():
        module = tmp_path / "pytest_ecornn" / file
        text = module.read_text()
        module.write_text(f"{text}\n\ndef _late() -> None:\n    {line}\n")
        done = _check(tmp_path)
        assert done.returncode == 1, file
        words = "No cycles are allowed" if file in CIRCLE else "is not allowed to import"
        assert words in done.stdout, done.stdout + done.stderr
        module.write_text(text)


def test_no_test_module_is_imported() -> None:
    """What two of them share is in tests/helpers."""
    imported = re.compile(r"^\s*from tests\b.*\b(?:test_|conftest\b)", re.M)
    assert [path for path in (ROOT / "tests").rglob("*.py") if imported.search(path.read_text())] == []


def test_each_test_ends_in_time_and_rows_of_suites_may_take_longer(request: pytest.FixtureRequest) -> None:
    limit = request.node.get_closest_marker("timeout")
    assert limit is not None
    assert limit.args[0] > 0
    assert not request.config.getini("timeout")
