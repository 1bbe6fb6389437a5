"""Which worker of pytest-xdist runs which row where workers share GPUs."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from execnet.xspec import XSpec

from pytest_ecornn.run.processes import gpu_workers
from pytest_ecornn.run.processes.gpu_workers import GpuScheduling, GpuWorkers
from pytest_ecornn.run.suites import is_timed_node
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign

PROOFS = [f"suites/test_equivalence.py::test_drawn_cases[{n}]" for n in range(30)]
CASES = 5
TIMED = [f"suites/test_benchmark.py::test_benchmark[layer{n}-T{case}]" for case in range(CASES) for n in range(4)]


class Node:
    """A worker that runs a row once another or the end follows, as pytest-xdist's do."""

    def __init__(self, spec: XSpec):
        self.gateway = SimpleNamespace(spec=spec, id=str(spec.id))
        self.queue: list[int] = []
        self.ran: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, rows: list[int]) -> None:
        assert not self.shutting_down
        self.queue += rows

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def is_ready(self) -> bool:
        return len(self.queue) > 1 or (self.shutting_down and bool(self.queue))


class Run:
    """A run of pytest-xdist's with `count` workers, the first `timing` of which time."""

    def __init__(self, count: int, timing: int, rows: list[str], chunk: int | None = None):
        self.specs = [XSpec(f"popen//id=gw{number}") for number in range(count)]
        options = {"tx": ["popen"] * count, "maxschedchunk": chunk, "dist": "load"}
        config: Any = SimpleNamespace(getoption=options.get, getvalue=options.get, option=SimpleNamespace(**options))
        self.rows, self.done = rows, list[int]()
        controller: Any = SimpleNamespace(is_culprit=lambda node, nodeid: True)
        self.scheduling = GpuScheduling(config, None, controller, self.specs[:timing])
        self.nodes = [self.add(spec) for spec in self.specs]
        self.scheduling.schedule()

    def add(self, spec: XSpec) -> Node:
        node: Any = Node(spec)
        self.scheduling.add_node(node)
        self.scheduling.add_node_collection(node, self.rows)
        return node

    def step(self, node: Any) -> None:
        row = node.queue.pop(0)
        node.ran.append(row)
        self.done.append(row)
        self.scheduling.mark_test_complete(node, row, 1.0)

    def finish(self) -> None:
        """Runs rows in any order until no worker has one that it can run."""
        chance = random.Random(1)
        while ready := [node for node in self.nodes if node.is_ready]:
            self.step(chance.choice(ready))

    def kill(self, node: Any) -> Node:
        """Ends a worker; another takes its place."""
        lost = self.scheduling.remove_node(node)
        if lost is not None:
            self.done.append(self.rows.index(lost))
        self.nodes.remove(node)
        other = self.add(node.gateway.spec)
        self.nodes.append(other)
        self.scheduling.schedule()
        return other


@pytest.mark.parametrize("chunk", [None, 1])
@pytest.mark.parametrize(("count", "timing"), [(2, 1), (8, 2), (24, 2), (64, 2), (3, 3)])
@pytest.mark.parametrize(
    "rows", [[*PROOFS, *TIMED], TIMED, PROOFS, TIMED[:1], [*PROOFS[:1], *TIMED[:1]], [*TIMED[:3], *PROOFS[:5]]]
)
def test_all_rows_run_once_and_timed_ones_where_one_may_time(
    rows: list[str], count: int, timing: int, chunk: int | None
) -> None:
    run = Run(count, timing, rows, chunk)
    run.finish()
    assert sorted(run.done) == list(range(len(rows)))
    assert not any(is_timed_node(rows[row]) for node in run.nodes[timing:] for row in node.ran)
    assert all(node.shutting_down for node in run.nodes)
    assert run.scheduling.tests_finished


def test_workers_that_time_share_the_timed_rows() -> None:
    run = Run(8, 2, [*PROOFS, *TIMED])
    run.finish()
    counts = [sum(is_timed_node(run.rows[row]) for row in node.ran) for node in run.nodes[:2]]
    assert min(counts) >= 6


@pytest.mark.parametrize("rows", [[*PROOFS, *TIMED], TIMED])
@pytest.mark.parametrize(("count", "timing"), [(8, 3), (3, 3), (24, 12)])
def test_a_cases_timed_rows_run_in_one_worker(rows: list[str], count: int, timing: int) -> None:
    run = Run(count, timing, rows)
    run.finish()
    ran = [(node.gateway.id, rows[row].partition("-T")[2]) for node in run.nodes for row in node.ran]
    owners = [{worker for worker, case in ran if case == f"{n}]"} for n in range(CASES)]
    assert all(len(owner) == 1 for owner in owners)
    assert len(set.union(*owners)) > 1


def test_timed_rows_of_a_dead_worker_run_in_the_next() -> None:
    run = Run(3, 3, TIMED)
    lost = run.nodes[1]
    run.step(lost)
    run.kill(lost)
    run.finish()
    assert sorted(run.done) == list(range(len(TIMED)))


@pytest.mark.parametrize("number", [0, 1, 7])
def test_a_worker_in_the_place_of_a_dead_one_times_as_that_did(number: int) -> None:
    run = Run(8, 2, [*PROOFS, *TIMED])
    for node in run.nodes:
        run.step(node)
    other = run.kill(run.nodes[number])
    run.finish()
    assert sorted(run.done) == list(range(len(run.rows)))
    assert any(is_timed_node(run.rows[row]) for row in other.ran) is (number < 2)


def test_timed_rows_run_elsewhere_when_all_that_may_time_are_gone() -> None:
    run = Run(3, 1, [*PROOFS[:6], *TIMED[:6]])
    lost = run.scheduling.remove_node(run.nodes.pop(0))
    run.finish()
    assert sorted([*run.done, run.rows.index(str(lost))]) == list(range(12))


@pytest.mark.parametrize("dist", ["loadgroup", "worksteal", "each"])
def test_another_distribution_stays(dist: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_workers, "gpus_of_one_kind", lambda: ["0", "1"])
    controller: Any = None
    workers, config = GpuWorkers(["cuda"], controller), SimpleNamespace(getoption={"dist": dist}.get)
    workers.pytest_xdist_setupnodes([XSpec("popen"), XSpec("popen")])
    assert workers.pytest_xdist_make_scheduler(config, None) is None  # type: ignore[arg-type]


def test_in_a_run_a_few_workers_a_gpu_time(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a timed row has the threads of all cores, on which other workers run
    pytester.makepyfile(
        two_gpus="""
        import os

        import pytest

        from pytest_ecornn.run.processes import gpu_workers

        os.environ.pop("PYTEST_ECORNN_GPU", None)  # a share of which needs a GPU
        gpu_workers._DEVICE = "cpu"
        gpu_workers.gpus_of_one_kind = lambda: ["0", "1"]
        gpu_workers._TIMING_WORKERS = 1

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            report.user_properties.append(("worker", os.environ["PYTEST_XDIST_WORKER"]))
            return report

        def pytest_runtest_logreport(report):
            worker = dict(report.user_properties).get("worker")
            if report.when == "call" and worker:
                print("RAN", report.nodeid.partition("::")[2].partition("[")[0], worker)
        """
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "two_gpus",
        "-n",
        "4",
        "--ecornn-bench",
        "--ecornn-only",
        "sequential",
        "-s",
    ]
    for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
        for hidden in (8, 9):  # two proofs for each worker, as many as pytest-xdist hands out at once
            command += ["--ecornn-case", f"{cell}-T4-B2-H{hidden}-float32"]
    command += ["--ecornn-budget", "0.05"]
    result = pytester.run(*command, timeout=240)
    ran = [line.split()[1:] for line in result.outlines if line.startswith("RAN")]
    assert result.ret == 0
    assert {worker for test, worker in ran if test in ("test_benchmark", "test_control")} <= {"gw0", "gw1"}
    assert len({worker for _, worker in ran}) > 2


# The CPU stands for a GPU: a context is lost when an implementation says so, and for as long as its process lives.
ONE_GPU = """
import torch
from pytest_ecornn.run.processes import gpu_workers
from pytest_ecornn.system import faults

gpu_workers._DEVICE = "cpu"
gpu_workers.gpus_of_one_kind = lambda: ["0"]
faults.sticky_cuda_error = lambda device: getattr(torch, "lost_context", "")
"""
BUILD = "    def build(self, case, weights):\n"
FAULTS = {
    "dies": "        import ctypes\n        ctypes.CDLL(None)._exit(3)\n",
    "poisons": "        torch.lost_context = 'CUDA error: an illegal memory access was encountered'\n"
    "        raise torch.AcceleratorError(torch.lost_context)\n",
}


def test_a_proof_that_ends_its_worker_costs_no_other_row(tmp_path: Path) -> None:
    foreign = Foreign(tmp_path)
    foreign.write("conftest.py", ONE_GPU)
    (tmp_path / "kernels").mkdir()
    foreign.write("kernels/right.py", samples.RIGHT)
    for name, fault in FAULTS.items():
        foreign.write(f"kernels/{name}.py", samples.RIGHT.replace(BUILD, BUILD + fault))
    names = [part for name in ("dies", "poisons", "right") for part in ("--ecornn-only", name)]
    options = ["--ecornn-profile", "quick", "--ecornn-implementations", "kernels", *names, "-k", "lstm-float32"]
    foreign.run("--ecornn-verify", *options, "-n", "2", *QUICK, check=1)
    rows = foreign.rows_by_key()
    reasons = {name: rows["drawn", name, "lstm-float32-quick"]["reason"] for name in ("dies", "poisons", "right")}
    assert ": exited (status 3)" in reasons["dies"]
    assert "CUDA context is poisoned: CUDA error: an illegal memory access" in reasons["poisons"]
    assert reasons["right"] == ""
    assert {row["status"] for key, row in rows.items() if "right" in key} == {"passed", "skipped"}
