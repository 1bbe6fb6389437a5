"""`--ecornn-against`: implementations and functions beside those of another revision, in one run."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn import Case, load_report
from pytest_ecornn.regression.gate_limits import Thresholds
from pytest_ecornn.run.revisions import NotThere, Revision, slower
from tests.helpers import samples
from tests.helpers.foreign import Foreign
from tests.helpers.report_rows import report_row, timing

BENCH = ("--ecornn-bench", "--ecornn-implementations", "right.py", "--ecornn-only", "right", "--ecornn-budget", "0.3", "-q")
SLOW = samples.RIGHT.replace("            outputs = []\n", "            outputs = []\n            delay()\n").replace(
    "import torch\n", "import torch\nfrom _delay import delay\n", 1
)
DELAY = """
import time


def delay():
    end = time.perf_counter() + {seconds}
    while time.perf_counter() < end:
        pass
"""
KERNELS = "import torch\nfrom helpers import delay\n\n\ndef softmax(x):\n    delay()\n    return torch.softmax(x, -1)\n"
TEST = """
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from kernels import softmax


def plain(x):
    return torch.softmax(x, -1)


def test_softmax(ecornn):
    def make_inputs(seed):
        return (torch.randn(9, 33, generator=torch.Generator().manual_seed(seed)),)

    ecornn.compare({"mine": softmax}, make_inputs, name="softmax", budget=0.3)
"""


def git(project: Foreign, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    done = subprocess.run(["git", *identity, *arguments], cwd=project.path, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(project: Foreign) -> str:
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-q", "-m", "first")
    return git(project, "rev-parse", "--short=7", "HEAD")


def test_a_slower_implementation_fails_the_run(foreign: Foreign) -> None:
    foreign.write("right.py", SLOW.replace("from _delay", "from ._delay"))
    foreign.write("_delay.py", DELAY.format(seconds=0))
    label = commit(foreign)
    foreign.write("_delay.py", DELAY.format(seconds=0.02))
    done = foreign.run(*BENCH, "--ecornn-case", samples.CASE, "--ecornn-against", "HEAD")
    (row,) = [row for row in load_report(foreign.path / "reports/local").rows if row.kind == "benchmark"]
    assert row.timing is not None
    assert [one.baseline for one in row.timing.against] == ["torch_cpu", f"right@{label}"]
    assert row.timing.against[1].ratio > 2
    is_surely_slower = row.timing.against[1].low > 1.05  # beside other tests it may be unclear
    assert (done.returncode, f"SLOWER: right {samples.CASE}" in done.stdout) == (int(is_surely_slower), is_surely_slower)


def test_a_row_is_slower_where_its_whole_interval_is_beyond_the_limit() -> None:
    rows = [report_row("right", Case.parse(samples.CASE), timing=timing(105.5, **{"torch_cpu": 10.0, "right@abc": 100.0}))]
    (line,) = slower(rows, "abc", Thresholds())
    assert line == f"right {samples.CASE}: 1.055 [1.055, 1.055] times as long as in abc, as-called: over 0.05"
    assert slower(rows, "abc", Thresholds(["right=6%"])) == []
    assert slower(rows, "def", Thresholds()) == []


def test_what_has_not_changed_is_not_timed_twice(foreign: Foreign) -> None:
    foreign.write("right.py", samples.RIGHT)
    label = commit(foreign)
    foreign.run(*BENCH, "--ecornn-case", samples.CASE, "--ecornn-against", "HEAD", check=0)
    (row,) = [row for row in load_report(foreign.path / "reports/local").rows if row.kind == "benchmark"]
    assert f"not compared with {label}: unchanged since {label}" in row.notes
    assert row.timing is not None
    assert [one.baseline for one in row.timing.against] == ["torch_cpu"]


def test_a_folder_is_a_revision_too(foreign: Foreign) -> None:
    foreign.write("before/right.py", samples.RIGHT + "\n# before\n")
    foreign.write("right.py", samples.RIGHT)
    foreign.run(*BENCH, "--ecornn-case", samples.CASE, "--ecornn-against", "before", check=None)
    (row,) = [row for row in load_report(foreign.path / "reports/local").rows if row.kind == "benchmark"]
    assert row.timing is not None
    assert "right@before" in [one.baseline for one in row.timing.against]


def test_a_function_is_compared_with_its_own_past(foreign: Foreign) -> None:
    foreign.write("kernels.py", KERNELS)
    foreign.write("helpers.py", DELAY.format(seconds=0))
    foreign.write("test_kernels.py", TEST)
    label = commit(foreign)
    foreign.write("helpers.py", DELAY.format(seconds=0.01))
    done = foreign.run("test_kernels.py", "--ecornn-against", "HEAD", "--ecornn-report", "out")
    rows = load_report(foreign.path / "out").rows
    assert [row.implementation for row in rows] == ["mine", f"mine@{label}"]
    (ratio,) = rows[0].timing.against if rows[0].timing else ()
    assert ratio.ratio > 2
    message = f"times as long as mine@{label}: expected at most 1.05"
    assert (done.returncode, message in done.stdout) == (int(ratio.low > 1.05), ratio.low > 1.05)


def test_what_is_no_revision_is_refused(foreign: Foreign) -> None:
    foreign.write("right.py", samples.RIGHT)
    commit(foreign)
    done = foreign.run(*BENCH, "--ecornn-case", samples.CASE, "--ecornn-against", "nothing", check=4)
    assert "--ecornn-against: expected a git revision or a folder, got 'nothing'" in done.stderr
    done = foreign.run("--ecornn-verify", "--ecornn-against", "HEAD", check=4)
    assert "--ecornn-against compares times: expected --ecornn-bench beside it" in done.stderr


def test_own_implementations_are_not_loaded_twice(foreign: Foreign) -> None:
    commit_of = foreign.write("empty.txt", "") and commit(foreign)
    run = ("--ecornn-bench", "--ecornn-only", "sequential", "--ecornn-case", samples.CASE, "--ecornn-budget", "0.1", "-q")
    foreign.run(*run, "--ecornn-against", "HEAD", check=0)
    (row,) = [row for row in load_report(foreign.path / "reports/local").rows if row.kind == "benchmark"]
    assert f"not compared with {commit_of}: its operators cannot be loaded twice" in row.notes


def test_code_in_other_languages_counts(tmp_path: Path) -> None:
    for folder, kernel in (("then", "a"), (".", "b")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "kernels.py").write_text("def softmax(x):\n    return x\n")
        (tmp_path / folder / "kernel.cu").write_text(kernel)
    spec = importlib.util.spec_from_file_location("kernels_of_today", tmp_path / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    revision = Revision("then", tmp_path, tmp_path / "scratch")
    assert revision.function(module.softmax)(1) == 1
    (tmp_path / "kernel.cu").write_text("a")
    with pytest.raises(NotThere, match="unchanged since then"):
        revision.function(module.softmax)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (torch.relu, "relu has no source file"),
        (lambda x: x, "expected a function of a module, got .*lambda"),
        (torch.nn.functional.softmax, "functional.py is not in then"),
    ],
)
def test_what_has_no_past_is_told(tmp_path: Path, function: Any, message: str) -> None:
    (tmp_path / "then").mkdir()
    with pytest.raises(NotThere, match=message):
        Revision("then", tmp_path, tmp_path / "scratch").function(function)
