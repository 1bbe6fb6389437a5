"""What is installed is what is here: sdist -> wheel -> a directory that knows nothing of this repository."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests import samples

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(folder.glob("*.whl"))


@pytest.mark.ci_only
def test_the_wheel_holds_one_top_level_name_and_the_linked_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pytest_ecornn"}
    for name in (
        "py.typed",
        "implementations/sequential.py",
        "implementations/README.md",
        "reference/loop.py",
        "suites/cases.py",
    ):
        assert f"pytest_ecornn/{name}" in names


@pytest.mark.ci_only
def test_the_wheel_works_from_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    site = next(environment.glob("lib/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    python = environment / "bin/python"
    where = [str(python), "-c", "import pytest_ecornn.cases.case_sets as c; print(c.__file__)"]
    assert subprocess.run(where, cwd=empty, capture_output=True, text=True, check=True).stdout.startswith(str(site))
    command = [str(python), "-m", "pytest", "--ecornn-bench", "--ecornn-budget", "0.1", "--ecornn-case", samples.CASE]
    done = subprocess.run(command, cwd=empty, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert samples.CASE in (empty / "reports/local/report.md").read_text()
