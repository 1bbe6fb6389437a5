"""Kernels on a CPU under AddressSanitizer: clean at boundary shapes; planted accesses beyond an array are reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pytest_ecornn.suites.sanitized import Job
from tests.helpers.requirements import needs_compiler
from tests.simulator.sanitized_cpu import GROUPS, boundary, environment

pytestmark = needs_compiler
TRAINING = "persistent_gpu, lstm-T3-B9-H37-float16-state-training"
PARTS = 3  # of a group's jobs, each a test
# A header or the name of a kernel, what it says, what is planted there, and a job that then reads or writes beyond an array.
PLANTED = {
    "a weight's row is read one element further": (
        "vector_load.cuh", "first < elements)", "first <= elements)", "persistent", TRAINING, "clusters",
    ),
    "a unit beyond the last is read and written": (
        "pointwise_forward.cuh", "unit(state) < HIDDEN", "unit(state) <= HIDDEN", "persistent", TRAINING, "grid",
    ),
    "a transposed weight is read one element further": (
        "transposed_load.cuh", "of_upper = min(u, end - 1)", "of_upper = min(u, end)", "persistent", TRAINING, "clusters",
    ),
    "a block publishes one packet more than it has": (
        "ll_state_packets.cuh", "i < PACKETS; i +=", "i <= PACKETS; i +=", "persistent", TRAINING, "grid",
    ),
    "a lane reads one element beyond its row of weights": (
        "persistent_forward", "k + v >= HIDDEN", "k + v > HIDDEN", "persistent", TRAINING, "blocks",
    ),
    "a scan writes one step more": (
        "scan.cu", "if (IS_WHOLE || i < count)", "if (IS_WHOLE || i <= count)", "scan", "scan_gpu, mingru-T7-B3-H5-float64",
        "as chosen",
    ),
    "a scan in log space writes one step more": (
        "log_scan.cu", "start + step >= steps) return", "start + step > steps) return", "scan",
        "scan_gpu_log, mingru_positive-T7-B3-H5-float64", "as chosen",
    ),
    "a block of pruned rows reads where one row more begins": (
        "partial_sums.cuh", "i <= ROWS; i +=", "i <= ROWS + 1; i +=", "sparse",
        "sparse_persistent_gpu, lstm-T3-B9-H7-float32-state-density0.4-training", "as chosen",
    ),
    "a step has one thread more than elements": (
        "pointwise.cu", "thread < (unsigned)", "thread <= (unsigned)", "transposed",
        "transposed_gpu, gru-T2-B3-H7-float32-training", "as chosen",
    ),
}  # fmt: skip


def reported(*arguments: object) -> list[str]:
    """What a process of `tests.simulator.sanitized_cpu` says of each job."""
    command = [sys.executable, "-m", "tests.simulator.sanitized_cpu", *map(json.dumps, arguments)]
    process = subprocess.run(command, env={**os.environ, **environment()}, capture_output=True, text=True, errors="replace")
    assert process.returncode == 0, process.stderr[-3000:]
    parts = process.stderr.split("BEGIN ")[1:]
    assert all("\nEND " in part for part in parts)
    return parts


def planted(name: str) -> list[object]:
    """What makes a kernel wrong, and a job that then reads or writes beyond an array."""
    file, right, wrong, family, of_layer, kind = PLANTED[name]
    implementation, case = of_layer.split(", ")
    return [[file, right, wrong], list(Job(family, implementation, case, kind))]


@pytest.mark.timeout(600)
def test_a_kernel_of_each_family_is_clean_and_a_planted_access_is_reported() -> None:
    first = {job.family: job for group in GROUPS for job in reversed(boundary(group))}
    *clean, wrong = reported(*map(list, first.values()), *planted("a step has one thread more than elements"))
    assert len(clean) == 4
    assert [part[:2000] for part in clean if "AddressSanitizer" in part] == []
    assert "AddressSanitizer: heap-buffer-overflow" in wrong


@pytest.mark.test_all
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("group", GROUPS)
def test_no_kernel_reads_or_writes_beyond_its_arrays(group: str, part: int) -> None:
    jobs = boundary(group)[part::PARTS]
    parts = reported(*map(list, jobs))
    assert len(parts) == len(jobs)
    assert [part[:2000] for part in parts if "AddressSanitizer" in part] == []


@pytest.mark.test_all
@pytest.mark.timeout(600)
def test_planted_accesses_beyond_an_array_are_reported() -> None:
    parts = reported(*(argument for name in PLANTED for argument in planted(name)))
    found = {name: "AddressSanitizer: heap-buffer-overflow" in part for name, part in zip(PLANTED, parts, strict=True)}
    assert found == dict.fromkeys(PLANTED, True)
