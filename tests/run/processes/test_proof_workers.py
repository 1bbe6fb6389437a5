"""Drawn cases and properties proven in processes beside pytest's own: the same rows, and no row lost with a process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.run.items.benchmark_items import BenchmarkItem
from pytest_ecornn.run.items.drawn_items import DrawnItem
from pytest_ecornn.run.items.property_items import PropertyItem
from pytest_ecornn.run.processes import proof_workers
from pytest_ecornn.system import machine, memory
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign

# It is noted which processes are workers, and below which process builds what.
CONFTEST = """
import os
import sys
import torch
from pytest_ecornn.system import faults

faults.sticky_cuda_error = lambda device: getattr(torch, "lost_context", "")  # there is no GPU here

with open("workers", "a") as file:
    file.write(f"{os.getpid()}\\n" if sys.argv[0] == "-c" else "")
"""
KEPT = "lstm-float32 and (test_drawn_cases or right)"
BUILD = "    def build(self, case, weights):\n"
NOTE = "        import os, sys, warnings\n        open('builds', 'a').write(f'{os.getpid()} {type(self).__module__}\\n')\n"
SPEAKS = NOTE + "        print('said by a worker')\n        warnings.warn('warned by a worker')\n"
POISONS = (
    "        torch.lost_context = 'CUDA error: an illegal memory access was encountered'\n"
    "        raise torch.AcceleratorError(torch.lost_context)\n"
)
DIES = "(pathlib.Path('died').touch(), ctypes.CDLL(None)._exit(3))"
ONCE = f"        import ctypes, pathlib\n        pathlib.Path('died').exists() or {DIES}\n"


def test_workers_prove_what_this_process_would_and_none_of_their_rows_is_lost(tmp_path: Path) -> None:
    foreign = Foreign(tmp_path)
    foreign.write("conftest.py", CONFTEST)
    (tmp_path / "kernels").mkdir()
    foreign.write("kernels/wrong.py", samples.WRONG.replace(BUILD, BUILD + SPEAKS))
    foreign.write("kernels/right.py", samples.RIGHT.replace(BUILD, BUILD + NOTE))
    foreign.write("kernels/dies.py", samples.RIGHT.replace(BUILD, BUILD + ONCE + NOTE))
    foreign.write("kernels/poisons.py", samples.RIGHT.replace(BUILD, BUILD + NOTE + POISONS))
    names = [part for name in ("dies", "poisons", "right", "wrong") for part in ("--ecornn-only", name)]
    options = ["--ecornn-verify", "--ecornn-profile", "quick", "--ecornn-implementations", "kernels", *names]
    done = foreign.run(*options, "-k", KEPT, "--ecornn-proof-workers", "3", *QUICK, check=1)
    rows = foreign.rows_by_key()
    drawn = {name: rows["drawn", name, "lstm-float32-quick"] for name in ("dies", "poisons", "right", "wrong")}
    assert [row["status"] for row in drawn.values()] == ["passed", "failed", "passed", "failed"]
    assert "CUDA context is poisoned: CUDA error: an illegal memory access" in drawn["poisons"]["reason"]
    assert "relative error" in drawn["wrong"]["reason"]
    assert drawn["right"]["examples"] >= 8
    assert rows["properties", "right", "lstm-float32-quick"]["examples"] >= 1  # of three draws, which may be alike
    workers = {int(line) for line in (tmp_path / "workers").read_text().split()}
    assert len(workers) == 3  # which start none
    builds = [line.split() for line in (tmp_path / "builds").read_text().splitlines()]
    builders = {name: {int(pid) for pid, module in builds if module.endswith(name)} for name in drawn}
    assert builders["right"] | builders["poisons"] <= workers
    assert builders["dies"] - workers  # its worker lost the drawn cases
    assert "said by a worker" in done.stdout
    assert "warned by a worker" in done.stdout


def config(**changed: Any) -> Any:
    option = {"collectonly": False, "usepdb": False, "trace": False, "dist": "no"}
    return SimpleNamespace(option=SimpleNamespace(**option), invocation_params=SimpleNamespace(plugins=None), **changed)


def test_a_worker_of_any_kind_starts_no_workers() -> None:
    assert proof_workers.is_possible(config())
    assert not proof_workers.is_possible(config(ecornn_worker={"ecornn_shared": "folder"}))
    assert not proof_workers.is_possible(config(workerinput={"ecornn_shared": "folder"}))


def test_rows_cores_and_memory_of_the_gpu_limit_the_default_number_of_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {"cuda": 70 * 2**30, "cuda:1": 7 * 2**30}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[device], 80 * 2**30))
    monkeypatch.setattr(machine, "usable_cores", lambda: 64)
    monkeypatch.setattr(memory, "available_bytes", lambda: 100 * 2**30)
    assert proof_workers.default_count(60, ()) == 0
    assert proof_workers.default_count(60, ("cuda",)) == 12
    assert proof_workers.default_count(60, ("cuda", "cuda:1")) == 2
    assert proof_workers.default_count(9, ("cuda",)) == 0
    monkeypatch.setattr(machine, "usable_cores", lambda: 2)
    assert proof_workers.default_count(60, ("cuda",)) == 0
    monkeypatch.setattr(machine, "usable_cores", lambda: 8)
    assert proof_workers.default_count(60, ("cuda",)) == 6
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 * 2**30)
    assert proof_workers.default_count(60, ("cuda",)) == 0


def test_workers_end_before_a_row_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, stopped = proof_workers.ProofWorkers(), []
    monkeypatch.setattr(workers, "stop", lambda: stopped.append(True))
    session: Any = SimpleNamespace(proof_workers=workers, options=SimpleNamespace(proof_workers=None))
    starting, found = proof_workers.Starting(session), ImplementationInfo("right", ReferenceLoop, Path("right.py"))
    for kind, is_stopped in ((DrawnItem, False), (PropertyItem, False), (BenchmarkItem, True)):
        item: Any = SimpleNamespace(callspec=SimpleNamespace(params={"row": kind(session, found, Case.parse(samples.CASE))}))
        starting.pytest_runtest_setup(item)
        assert bool(stopped) == is_stopped
