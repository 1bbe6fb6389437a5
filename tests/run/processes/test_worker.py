"""torch's threads in a worker of pytest-xdist."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_ecornn.run.processes.worker import WorkerThreads
from pytest_ecornn.system import machine
from pytest_ecornn.system.gpus.host_share import HostShare

CORES = 16


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(machine, "usable_cores", lambda: CORES)
    before = torch.get_num_threads()
    torch.set_num_threads(CORES)
    yield
    torch.set_num_threads(before)


def threads_in(worker: WorkerThreads, test: str) -> int:
    item: Any = SimpleNamespace(nodeid=f"suites/{test}[cudnn-lstm]")
    worker.pytest_runtest_setup(item)
    return torch.get_num_threads()


def worker(count: int, share: HostShare | None = None) -> WorkerThreads:
    config: Any = SimpleNamespace(workerinput={"workercount": count})
    return WorkerThreads(config, share)


def test_a_proof_has_a_share_and_a_timed_row_all_cores() -> None:
    one = worker(4)
    for _ in range(2):
        assert threads_in(one, "test_equivalence.py::test_drawn_cases") == 4
        assert threads_in(one, "test_benchmark.py::test_benchmark") == CORES


def test_workers_of_one_gpu_divide_its_cores() -> None:
    one = worker(24, HostShare(1, 2))  # 12 of each GPU, whose share of 32 cores is 16
    assert threads_in(one, "test_equivalence.py::test_drawn_cases") == 1
    assert threads_in(one, "test_benchmark.py::test_benchmark") == CORES


def test_the_only_process_keeps_its_threads() -> None:
    config: Any = SimpleNamespace()
    assert threads_in(WorkerThreads(config, None), "test_equivalence.py::test_drawn_cases") == CORES
