"""What is installed is what is here: sdist -> wheel -> a directory that knows nothing of this repository."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterable
from email import message_from_string
from pathlib import Path

import pytest

import pytest_ecornn
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE, SUITES
from tests.helpers import samples

ROOT = Path(__file__).parents[2]
BESIDE_THE_PACKAGE = {
    *("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md", "pyproject.toml", "setup.py"),
}
WRITTEN_BY_SETUPTOOLS = {"PKG-INFO", "setup.cfg"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(built: Path) -> Path:
    return next(built.glob("*.tar.gz"))


def clone_files() -> set[str]:
    """Files of the package in this clone. What an editor or Python leaves there does not count."""
    files = set()
    for top in (PACKAGE, IMPLEMENTATIONS, SUITES):
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
            files |= {str((Path(folder) / name).relative_to(ROOT)) for name in names if not name.startswith(".")}
    return files


def installed_files() -> set[str]:
    """The same where the package is installed, with the folders that a clone has beside it in it."""
    return {name if name.startswith("pytest_ecornn/") else f"pytest_ecornn/{name}" for name in clone_files()}


def modules(paths: Iterable[str]) -> set[str]:
    return {".".join(Path(path).with_suffix("").parts).removesuffix(".__init__") for path in paths if path.endswith(".py")}


def test_no_file_is_a_link() -> None:
    """A clone without core.symlinks, or a ZIP unpacked on Windows, has small text files in place of links."""
    command = ["git", "-C", str(ROOT), "ls-files", "--stage"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if line.startswith("120000")] == []


def test_a_clone_has_the_modules_of_a_wheel_and_finds_them_without_an_installation() -> None:
    places = {name: importlib.util.find_spec(name) for name in modules(installed_files())}
    assert {name for name, spec in places.items() if spec is None} == set()
    assert {Path(spec.origin or "").relative_to(ROOT).as_posix() for spec in places.values() if spec} == {
        name for name in clone_files() if name.endswith(".py")
    }


def test_the_citation_names_this_version_and_licence() -> None:
    citation = dict(re.findall(r"^(\S+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.M))
    assert citation["version"] == pytest_ecornn.__version__
    assert citation["license"] == "Apache-2.0"


@pytest.mark.test_all
def test_the_sdist_holds_the_package_and_no_half_of_the_tests(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = [member for member in archive.getmembers() if not member.isdir()]
    assert [member.name for member in members if not member.isfile()] == []
    names = {member.name.partition("/")[2] for member in members}
    of_project = {name for name in names if ".egg-info/" not in name}
    assert of_project == clone_files() | BESIDE_THE_PACKAGE | WRITTEN_BY_SETUPTOOLS


def test_the_wheel_holds_one_top_level_name_and_every_file_of_the_package(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == installed_files()
    for name in ("py.typed", "implementations/sequential.py", "implementations/README.md", "suites/cases.py"):
        assert f"pytest_ecornn/{name}" in names


@pytest.mark.test_all
def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    folder = f"pytest_ecornn-{pytest_ecornn.__version__}.dist-info"
    metadata = message_from_string(archive.read(f"{folder}/METADATA").decode())
    assert (metadata["Name"], metadata["Version"]) == ("pytest-ecornn", pytest_ecornn.__version__)
    assert (metadata["License-Expression"], metadata.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert archive.read(f"{folder}/entry_points.txt").decode().split() == ["[pytest11]", "ecornn", "=", "pytest_ecornn.plugin"]


@pytest.mark.test_all
def test_the_wheel_works_from_an_empty_directory(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    site = next(environment.glob("lib/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    python = environment / "bin/python"
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = [str(python), "-c", "import pytest_ecornn.suites.cases as c; print(c.__file__)"]
    done = subprocess.run(where, cwd=empty, env=variables, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(site))
    command = [str(python), "-m", "pytest", "--ecornn-bench", "--ecornn-budget", "0.1", "--ecornn-case", samples.CASE]
    done = subprocess.run(command, cwd=empty, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert samples.CASE in (empty / "reports/local/report.md").read_text()
