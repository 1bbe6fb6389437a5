"""Runs on a Ray cluster of three nodes: the rows of a run without it, whatever is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.results.journal import read
from tests.helpers import samples
from tests.helpers.foreign import QUICK, Foreign, environment
from tests.helpers.ray_nodes import RayNodes, ray_nodes

VERIFY = ("--ecornn-verify", "--ecornn-seed", "0", "--ecornn-only", "sequential")
MANY = tuple(part for steps in range(1, 31) for part in ("--ecornn-case", f"lstm-T{steps}-B2-H4-float32"))
BEFORE_STEPS = "            outputs = []"
CRASHES = samples.RIGHT.replace(BEFORE_STEPS, f"            import ctypes; ctypes.string_at(0)\n{BEFORE_STEPS}", 1)
SLOWLY = """
import time

def pytest_runtest_call():
    time.sleep(0.3)
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    with ray_nodes(3) as found:
        yield found


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    return Foreign(tmp_path)


def proven(foreign: Foreign) -> dict[tuple[str, str, str], dict[str, Any]]:
    """The rows without what differs between any two runs. Products of a BLAS may round by where their operands lie."""
    return {
        key: {**row, "seconds": 0, "phases": {}, "tensors": {one["tensor"]: one["status"] for one in row["tensors"]}}
        for key, row in foreign.rows_by_key().items()
    }


def started(foreign: Foreign, *options: str) -> subprocess.Popen[bytes]:
    command = foreign.command(*options)
    return subprocess.Popen(command, cwd=foreign.path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_for_rows(foreign: Foreign, count: int) -> None:
    journal, until = foreign.path / "reports/local/journal.jsonl", time.monotonic() + 100
    while not (journal.exists() and len(journal.read_bytes().splitlines()) > count):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_rows_are_those_of_a_run_without_ray_and_a_crash_costs_its_own(foreign: Foreign, nodes: RayNodes) -> None:
    (foreign.path / "kernels").mkdir()
    foreign.write("kernels/crashes.py", CRASHES)
    options = [*VERIFY, "--ecornn-only", "crashes", "--ecornn-implementations", "kernels", "-k", "fixed"]
    foreign.run(*options, "--ecornn-isolate", check=1)
    expected = proven(foreign)
    done = foreign.run(*options, "--ecornn-ray", nodes.address, check=1)
    assert proven(foreign) == expected
    assert done.stderr == ""
    crashed = [row["reason"] for row in expected.values() if row["status"] == "failed"]
    assert crashed
    assert all("crashed (signal 11): Segmentation fault at crashes.py:" in reason for reason in crashed)


@pytest.mark.test_all
def test_no_row_is_lost_or_doubled_where_a_node_and_then_the_run_are_killed(foreign: Foreign, nodes: RayNodes) -> None:
    foreign.write("slowly.py", SLOWLY)
    options = [*VERIFY, *MANY, "-k", "fixed", "-p", "slowly", "--ecornn-ray", nodes.address]
    run = started(foreign, *options)
    wait_for_rows(foreign, 3)
    nodes.kill()
    wait_for_rows(foreign, 9)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    journal = foreign.path / "reports/local/journal.jsonl"
    kept = {row.key: row for row in read(journal)[1]}
    assert 9 <= len(kept) < 30
    nodes.add()
    run = started(foreign, *options, "--ecornn-resume")
    wait_for_rows(foreign, len(kept) + 3)
    nodes.kill()
    output, _ = run.communicate(timeout=100)
    assert run.returncode == 0, output[-3000:].decode()
    assert b"lost host" in output
    assert b"30 passed" in output
    rows = read(journal)[1]
    assert len(rows) == len({row.key for row in rows}) == len(foreign.rows()) == 30
    assert {row.key: row for row in rows if row.key in kept} == kept
    nodes.add()


def test_times_are_taken_alone_and_reported_with_their_machine(foreign: Foreign, nodes: RayNodes) -> None:
    cases = ["--ecornn-case", "lstm-T5-B2-H4-float32", "--ecornn-case", samples.CASE]
    foreign.run("--ecornn-bench", "--ecornn-only", "sequential", *cases, *QUICK, "--ecornn-ray", nodes.address, check=0)
    rows = [row for row in foreign.rows_by_key().values() if row["kind"] == "benchmark"]
    assert len(rows) == 2
    assert all(row["timing"]["against"][0]["baseline"] == "torch_cpu" for row in rows)
    run = json.loads((foreign.path / "reports/local/report.json").read_text())["run"]
    assert run["ceilings"]["copy_points"]  # which its hosts have measured
    assert run["machine"]["cores"] > 0


def test_a_cluster_without_a_gpu_has_no_place_for_cuda(foreign: Foreign, nodes: RayNodes) -> None:
    done = foreign.run(*VERIFY, "--ecornn-device", "cuda", "--ecornn-ray", nodes.address, check=4)
    expected = f"ERROR: --ecornn-ray {nodes.address}: expected a node with a GPU, got 3 CPU, 0 GPU"
    assert done.stderr.strip() == expected
