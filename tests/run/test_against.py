"""`--ecornn-against`: implementations and functions beside those of another revision, in one run."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn import Case, load_report
from pytest_ecornn.regression.gate_limits import Thresholds
from pytest_ecornn.run.revisions import NotThere, Revision, slower
from pytest_ecornn.system.package_folders import IMPLEMENTATIONS, PACKAGE
from tests.helpers import samples
from tests.helpers.foreign import Foreign, only
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

SLOWER_TODAY = """
from time import perf_counter

from pytest_ecornn.implementations.sequential import Sequential

build = Sequential.build


def slower(self, case, weights):
    layer = build(self, case, weights)

    def call(*arguments):
        end = perf_counter() + 5e-3
        while perf_counter() < end:
            pass
        return layer(*arguments)

    return call


Sequential.build = slower
"""
ENDS_IN_A_BLOCK = """
import os

from pytest_ecornn.measurement.measurement import Arm

build = TorchCpu.build


def ending(self, case, weights):
    Arm.block = lambda *arguments: os._exit(9)
    return build(self, case, weights)


TorchCpu.build = ending
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


def own_tree(root: Path) -> Path:
    """This project's implementations as a revision has them, beside a package that is there by its name."""
    shutil.copytree(IMPLEMENTATIONS, root / "implementations", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "pytest_ecornn").mkdir()
    shutil.copy(PACKAGE / "__init__.py", root / "pytest_ecornn")
    return root / "implementations"


def test_own_implementations_are_timed_by_a_process_of_the_revision(tmp_path: Path) -> None:
    """Of three one is slower today, one's process ends in a block and one is new: none fails its row."""
    project, then = Foreign(tmp_path / "work"), own_tree(tmp_path)
    (then / "peers/torch_cell_loop.py").unlink()
    for name, text in (("sequential", "# then"), ("torch_cpu", ENDS_IN_A_BLOCK)):
        with (then / f"{name}.py").open("a") as file:
            file.write(f"\n{text}\n")
    project.write("slower_today.py", SLOWER_TODAY)
    label = commit(Foreign(tmp_path))
    names = ("sequential", "torch_cpu", "torch_cell_loop")
    cases = ("--ecornn-case", "lstm-T2-B1-H4-float32", "--ecornn-baseline", "torch_cpu", "--ecornn-budget", "0.2")
    options = (*cases, "--ecornn-against", "HEAD", "-p", "slower_today", "-k", "test_benchmark", "-q")
    done = project.run("--ecornn-bench", *only(*names), *options)
    rows = {row.implementation: row for row in load_report(project.path / "reports/local").rows if row.kind == "benchmark"}
    assert [row.status for row in rows.values()] == ["passed"] * len(names), done.stdout
    timings = {name: row.timing.against if row.timing else [] for name, row in rows.items()}
    baselines = {name: [one.baseline for one in ratios] for name, ratios in timings.items()}
    assert baselines == {
        "sequential": ["torch_cpu", f"sequential@{label}"], "torch_cpu": [], "torch_cell_loop": ["torch_cpu"],
    }  # fmt: skip
    ratio = timings["sequential"][1]
    assert ratio.ratio > 2
    assert len(ratio.lost) == len(ratio.samples_us)
    slower_line = f"SLOWER: sequential lstm-T2-B1-H4-float32: {ratio.ratio:.3g}"
    assert (done.returncode, slower_line in done.stdout) == (int(ratio.low > 1.05), ratio.low > 1.05), done.stdout
    assert f"not compared with torch_cpu@{label}: its process exited (status 9)" in rows["torch_cpu"].notes
    assert (
        f"not compared with {label}: No module named pytest_ecornn.implementations.peers.torch_cell_loop"
        in rows["torch_cell_loop"].notes
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.gpu_alone
def test_graphs_of_the_revision_are_replayed_in_its_process(tmp_path: Path) -> None:
    project = Foreign(tmp_path / "work")
    project.write("empty.txt", "")
    with (own_tree(tmp_path / "then") / "cudnn/__init__.py").open("a") as file:
        file.write("\n# then\n")
    case = ("--ecornn-case", "lstm-T8-B4-H64-float32-cuda", "--ecornn-budget", "0.5", "-k", "test_benchmark", "-q")
    done = project.run("--ecornn-bench", *only("cudnn"), *case, "--ecornn-against", "../then")
    (row,) = [row for row in load_report(project.path / "reports/local").rows if row.kind == "benchmark"]
    for column in (row.timing, row.replay):
        assert column is not None, done.stdout + row.reason
        (ratio,) = column.against
        assert ratio.baseline == "cudnn@then"
        assert 0.5 < ratio.ratio < 2


def test_a_revision_that_does_not_fit_the_package_is_not_compared_with(tmp_path: Path) -> None:
    (own_tree(tmp_path) / "torch_cpu.py").write_text("from pytest_ecornn.contract import Gone\n")
    process = Revision(tmp_path.name, tmp_path.parent, tmp_path).process(60.0)
    reason = process.build("sequential@then", "sequential", "lstm-T1-B1-H2-float32")
    process.close()
    assert "torch_cpu.py: importing it raised ImportError: cannot import name 'Gone'" in reason


@pytest.mark.parametrize(
    ("changed", "module", "is_changed"),
    [
        ("", "auto", False),
        ("scan_cpu/__init__.py", "sequential", False),
        ("sequential.py", "sequential", True),
        ("_common/padding.py", "scan_cpu", True),
        ("transposed_gpu/layer.py", "row_major_gpu", True),
        ("_cuda/include/ecornn/common/jitter.cuh", "persistent_gpu", True),
        ("fused_cpu/numba_kernels.py", "fused_cpu_int8", True),
        ("scan_torch.py", "auto", True),
    ],
)
def test_an_own_implementation_has_changed_with_what_it_imports(
    tmp_path: Path, changed: str, module: str, is_changed: bool
) -> None:
    then = own_tree(tmp_path)
    if changed:
        with (then / changed).open("a") as file:
            file.write("\n\n")
    revision = Revision(tmp_path.name, tmp_path.parent, tmp_path)
    with nullcontext() if is_changed else pytest.raises(NotThere, match="unchanged since"):
        revision.check_own(f"pytest_ecornn.implementations.{module}")


def test_another_project_has_no_implementation_of_this_one(tmp_path: Path) -> None:
    (tmp_path / "implementations").mkdir()
    with pytest.raises(NotThere, match="this package is not in"):
        Revision(tmp_path.name, tmp_path.parent, tmp_path).check_own("pytest_ecornn.implementations.sequential")


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
