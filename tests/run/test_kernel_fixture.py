"""The fixture `ecornn` in a foreign project: rows in the terminal, the report, JUnit and pytest-benchmark's file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pytest_ecornn import load_report
from tests.helpers import samples
from tests.helpers.foreign import Foreign

TESTS = """
import pytest
import torch


def softmax(x):
    return torch.softmax(x, -1)


def reference(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def make_inputs(seed):
    return (torch.randn(9, 33, generator=torch.Generator().manual_seed(seed)),)


@pytest.mark.ecornn(budget=0.05, draws=3)
def test_softmax(ecornn):
    ecornn.check(softmax, reference, make_inputs)
    ecornn.compare({"fused": softmax, "plain": reference}, make_inputs, name="softmax")


def test_a_wrong_one(ecornn):
    ecornn.check(lambda x: softmax(x) + 1e-3, reference, make_inputs, draws=1, name="wrong")


def test_plain():
    assert True
"""


@pytest.fixture
def project(foreign: Foreign) -> Foreign:
    foreign.write("test_kernels.py", TESTS)
    return foreign


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_rows_reach_every_report(project: Foreign, workers: tuple[str, ...]) -> None:
    files = ("--ecornn-report", "out", "--junit-xml", "junit.xml", "--benchmark-json", "benchmark.json")
    done = project.run("test_kernels.py", *files, *workers, check=1)
    assert "1 failed, 2 passed" in done.stdout
    assert "wrong is wrong on reference(x [9, 33] float32)" in done.stdout
    rows = {(row.kind, row.implementation): row for row in load_report(project.path / "out").rows}
    kinds = [("benchmark", "fused"), ("benchmark", "plain"), ("drawn", "softmax"), ("drawn", "wrong")]
    assert sorted(rows) == kinds
    assert [rows[kind].status for kind in kinds] == ["passed", "passed", "passed", "failed"]
    names = {name.get("name") for name in ElementTree.parse(project.path / "junit.xml").iter("property")}
    assert {"fused_ecornn_time_us", "softmax_ecornn_status"} <= names
    report = json.loads((project.path / "out/benchmark.json").read_text())
    assert sorted(one["name"] for one in report["benchmarks"]) == ["fused", "plain"]
    if not workers:
        own = json.loads((project.path / "benchmark.json").read_text())
        assert [(one["name"], one["group"]) for one in own["benchmarks"]] == [
            ("fused", "softmax(x [9, 33] float32)"),
            ("plain", "softmax(x [9, 33] float32)"),
        ]


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_job_of_github_shows_the_rows_and_the_line_of_the_test_that_failed(
    project: Foreign, workers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path / "summary.md"))
    done = project.run("test_kernels.py", *workers, check=1)
    (annotation,) = (line for line in done.stdout.splitlines() if line.startswith("::error"))
    line = 1 + TESTS[: TESTS.index("def test_a_wrong_one")].count("\n")
    assert annotation.startswith(
        f"::error file=test_kernels.py,line={line},title=wrong failed%3A reference(x [9%2C 33] float32)::"
    )
    text = (project.path / "summary.md").read_text()
    assert text.startswith("## Functions: 4 rows: 3 passed, 1 failed")
    assert text.count("## Functions") == 1
    assert "**wrong** on reference" in text
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(project.path))
    assert "WARNING: " in project.run("test_kernels.py", "-k", "softmax", check=0).stdout


def test_nothing_is_written_unasked(project: Foreign) -> None:
    done = project.run("test_kernels.py", "-k", "softmax", check=0)
    assert "softmax reference(x [9, 33] float32): passed 3 draws" in done.stdout
    assert not (project.path / "reports").exists()


def test_the_fixture_and_its_marker_are_listed(project: Foreign) -> None:
    assert "ecornn -- " in project.run("--fixtures", check=0).stdout
    assert "@pytest.mark.ecornn(budget=2.0, draws=16, ...)" in project.run("--markers", check=0).stdout


def test_a_project_without_it_imports_no_torch(tmp_path: Path) -> None:
    """In a process of its own, whose modules no earlier test has loaded."""
    (tmp_path / "test_plain.py").write_text("import sys\n\n\ndef test_plain():\n    assert 'torch' not in sys.modules\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plain.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_rows_are_in_the_report_of_a_run_too(project: Foreign) -> None:
    run = ("--ecornn-bench", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE, "--ecornn-budget", "0.1")
    project.run("test_kernels.py", *run, "-k", "test_softmax or test_benchmark", check=0)
    names = {row.implementation for row in load_report(project.path / "reports/local").rows}
    assert {"sequential", "softmax", "fused", "plain"} <= names


def test_the_ini_file_may_ask_for_the_report(project: Foreign) -> None:
    project.write("pytest.ini", "[pytest]\necornn_report = out\necornn_budget = 0.05\n")
    project.run("test_kernels.py", "-k", "test_softmax", check=0)
    assert (project.path / "out/report.json").exists()


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("(0.2)", "marker ecornn: expected arguments by keyword, got 0.2"),
        ("(speed=2)", "marker ecornn: expected arguments of check or compare, got 'speed'"),
    ],
)
def test_a_marker_that_means_nothing_is_refused(foreign: Foreign, marker: str, message: str) -> None:
    foreign.write("test_kernels.py", TESTS.replace("(budget=0.05, draws=3)", marker))
    assert message in foreign.run("test_kernels.py", "-k", "test_softmax", check=1).stdout


def test_markers_of_class_and_function_add_up(foreign: Foreign) -> None:
    text = TESTS.replace("\n\n@pytest.mark.ecornn(budget=0.05, draws=3)\ndef test_softmax(ecornn):", CLASS, 1)
    foreign.write("test_kernels.py", text.replace("\n    ecornn.c", "\n        ecornn.c", 2))
    assert "passed 2 draws" in foreign.run("test_kernels.py", "-k", "test_softmax", check=0).stdout


CLASS = """

@pytest.mark.ecornn(draws=2)
class TestOne:
    @pytest.mark.ecornn(budget=0.05, seed=4)
    def test_softmax(self, ecornn):"""
