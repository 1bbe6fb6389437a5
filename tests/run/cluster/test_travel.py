"""Code that goes to other hosts, and its paths there."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ecornn.run.cluster import travel as module
from pytest_ecornn.run.cluster.travel import Folders, Travel, translate
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE, SUITES

packaging = pytest.importorskip("ray._private.runtime_env.packaging")

THERE = Folders(
    "/tmp/ray/code",
    "/tmp/ray/modules/pytest_ecornn",
    "/tmp/ray/modules/pytest_ecornn/implementations",
    "/tmp/ray/modules/pytest_ecornn/suites",
)


def config(root: Path, started_in: Path, *arguments: str) -> Any:
    return SimpleNamespace(rootpath=root, invocation_params=SimpleNamespace(dir=started_in, args=arguments))


def travelling(travel: Travel) -> set[str]:
    """The files that Ray would take along."""
    with tempfile.TemporaryDirectory(dir=travel.root.parent) as copies:
        is_excluded = packaging._get_excludes(travel.root, travel.runtime_env(Path(copies))["excludes"])
    folders = {path for path in travel.root.rglob("*") if path.is_dir() and is_excluded(path)}
    files = (path for path in travel.root.rglob("*") if path.is_file() and not folders & set(path.parents))
    return {str(path.relative_to(travel.root)) for path in files if not is_excluded(path)}


def test_the_users_files_travel_without_environments_reports_and_what_is_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_FILE_BYTES", 100)
    small = ["conftest.py", "kernels/mine.py", "reports/notes.md", "kernels/reports/local/mine.py"]
    left = [".git/HEAD", ".venv/bin/python", "own/pyvenv.cfg", "own/lib/a.py", "kernels/.git/x", "tmp/ray/x"]
    left.append("reports/local/report.json")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name in (*small, *left):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    for name in ("large.bin", "kernels/large.pt", "named.pt"):
        (tmp_path / name).write_text(101 * " ")
    travel = Travel(config(tmp_path, tmp_path, "--ecornn-state-dict", "named.pt:lstm"), tmp_path / "reports/local")
    assert travelling(travel) == {*small, "named.pt"}


def test_a_run_that_was_started_below_its_root_starts_there_on_other_hosts(tmp_path: Path) -> None:
    below = tmp_path / "kernels"
    assert Travel(config(tmp_path, below), tmp_path / "r").started_in == "kernels"
    elsewhere = Travel(config(below, tmp_path), tmp_path / "r")
    assert (elsewhere.root, elsewhere.started_in) == (tmp_path, ".")


def test_the_package_travels_from_a_checkout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    travel, copies = Travel(config(tmp_path, tmp_path), tmp_path / "r"), tmp_path / "copies"
    assert travel.runtime_env(copies)["py_modules"] == [str(copies / "pytest_ecornn")]
    for name, source in (("system", PACKAGE / "system"), ("implementations", IMPLEMENTATIONS), ("suites", SUITES)):
        copied = copies / "pytest_ecornn" / name
        assert {file.relative_to(copied) for file in copied.rglob("*.py")} == {
            file.relative_to(source) for file in source.rglob("*.py")
        }
    monkeypatch.setattr(module.sysconfig, "get_path", lambda name: str(PACKAGE.parent))
    assert travel.runtime_env(copies)["py_modules"] == []
    root = PACKAGE.parent
    monkeypatch.undo()
    assert Travel(config(root, root), root / "r").runtime_env(copies)["py_modules"] == []  # it goes with the user's folder


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/kernels", "/tmp/ray/code"),
        ("--ecornn-implementations=/home/me/kernels/mine.py", "--ecornn-implementations=/tmp/ray/code/mine.py"),
        ('File "/home/me/kernels/mine.py", line 3', 'File "/tmp/ray/code/mine.py", line 3'),
        ("/home/me/kernels/lib/pytest_ecornn/plugin.py", f"{THERE.package}/plugin.py"),
        ("/home/me/kernels/lib/suites/test_benchmark.py", f"{THERE.package}/suites/test_benchmark.py"),
        ("/home/me/kernels_too/mine.py", "/home/me/kernels_too/mine.py"),
        ("lstm-T6-B3-H8-float32", "lstm-T6-B3-H8-float32"),
    ],
)
def test_paths_are_those_of_the_other_host(text: str, expected: str) -> None:
    lib = "/home/me/kernels/lib"
    here = Folders("/home/me/kernels", f"{lib}/pytest_ecornn", f"{lib}/implementations", f"{lib}/suites")
    assert translate(text, here, THERE) == expected
    assert translate(expected, THERE, here) == text


def test_a_worker_computes_by_the_same_variables_and_finds_the_same_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    travel = Travel(config(tmp_path, tmp_path), tmp_path / "r")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/home/me/cache")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    variables = travel.variables(THERE)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["PYTHONPATH"] == "/tmp/ray/code/src"
    assert not {"NUMBA_CACHE_DIR", "HOME", "PATH"} & variables.keys()
