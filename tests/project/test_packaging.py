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
from dataclasses import dataclass
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


def without_this_clone() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@dataclass
class Installation:
    """A virtual environment that has the wheel, and finds what that depends on here; an empty directory to work in."""

    python: Path
    empty: Path

    def run(self, *arguments: str, check: int = 0) -> str:
        """The output of `python ARGUMENTS` in the directory."""
        command = [str(self.python), *arguments]
        done = subprocess.run(command, cwd=self.empty, env=without_this_clone(), capture_output=True, text=True, timeout=240)
        assert done.returncode == check, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout


@pytest.fixture
def installation(wheel: Path, tmp_path: Path) -> Installation:
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    venv.create(environment, with_pip=False)
    empty.mkdir()
    done = Installation(environment / "bin/python", empty)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(done.python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(pip, cwd=empty, env=without_this_clone(), check=True, capture_output=True)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in ("pytest_ecornn.suites.cases", "pytest_ecornn.implementations.sequential", "pytest_ecornn.nn"):
        place = done.run("-c", f"import {name} as module; print(module.__file__)")
        assert place.startswith(str(site))
    return done


@pytest.mark.test_all
def test_the_wheel_works_from_an_empty_directory(installation: Installation) -> None:
    installation.run("-m", "pytest", "--ecornn-bench", "--ecornn-budget", "0.1", "--ecornn-case", samples.CASE)
    assert samples.CASE in (installation.empty / "reports/local/report.md").read_text()


@pytest.mark.test_all
def test_a_users_first_commands_work_with_the_wheel(installation: Installation) -> None:
    """One file is verified; then a gate: a stored report, and a run that is compared with it."""
    (installation.empty / "mine.py").write_text(samples.RIGHT)
    mine = ("--ecornn-implementations", "mine.py", "--ecornn-only", "mine", "--ecornn-case", samples.CASE)
    assert "2 passed" in installation.run("-m", "pytest", "--ecornn-verify", "--ecornn-require", "mine", *mine)
    bench = ("-m", "pytest", "--ecornn-bench", "--ecornn-budget", "0.2", *mine)
    installation.run(*bench, "--ecornn-report", "stored")
    slowed = samples.RIGHT.replace("outputs = []", "outputs = [__import__('time').sleep(0.02)][1:]")
    (installation.empty / "mine.py").write_text(slowed)
    output = installation.run(*bench, "--ecornn-compare", "stored/report.json", check=1)
    assert re.search(r"slower.*mine|mine.*slower", output)
    installation.run("-c", "import torch, pytest_ecornn.nn as nn; print(nn.LSTM(4, 8)(torch.randn(5, 2, 4))[0].shape)")


def test_kernels_and_their_headers_are_in_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    sources = [name for name in names if name.endswith(".cu")]
    headers = {name.partition("/include/")[2] for name in names if name.endswith(".cuh") and "/include/" in name}
    assert sources
    text = "".join(zipfile.ZipFile(wheel).read(name).decode() for name in sources)
    included = {name for name in re.findall(r'^#include "(.+)"$', text, re.M) if name.startswith("ecornn/")}
    assert included
    assert included <= headers


def test_a_release_is_of_the_version_at_the_top_of_the_changelog() -> None:
    first = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert re.fullmatch(
        rf"Unreleased: {re.escape(pytest_ecornn.__version__)}|{re.escape(pytest_ecornn.__version__)} - [\d-]+", first
    )
    workflow = (ROOT / ".github/workflows/release.yml").read_text()
    assert "id-token: write" in workflow
    assert not re.search(r"password|secrets\.", workflow)
