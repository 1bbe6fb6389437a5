"""The command that runs kernels under compute-sanitizer: which jobs it has, and what it makes of each process's end."""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import MathMode
from pytest_ecornn.suites import sanitizer_gpu
from pytest_ecornn.suites.sanitized import KERNELS, Job, _kinds, _once, _scans, _sparse, _transposed
from pytest_ecornn.suites.sanitizer_gpu import CLEAN, DeviceWatch, command
from tests.simulator.clusters_on_cpu import H200

# In place of a sanitizer: each job's kind says what becomes of its process.
FAKE = """#!{python}
import json, sys, time
for number, text in enumerate(sys.argv[sys.argv.index("pytest_ecornn.suites.sanitized") + 1:]):
    job = json.loads(text)
    print("BEGIN", number, job[2], flush=True)
    if job[3] == "reported":
        print("========= Invalid __global__ read of size 16 bytes", flush=True)
        sys.exit(9)
    if job[3] == "dies":
        sys.exit(3)
    if job[3] == "hangs":
        time.sleep(60)
    print("END", number, 0.5, flush=True)
print("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
"""


def of_kind(kind: str, batch: int) -> Job:
    return Job("persistent", "persistent_gpu", f"lstm-T4-B{batch}-H64-float16-cuda", kind)


@pytest.fixture
def fake(tmp_path: Path) -> str:
    program = tmp_path / "compute-sanitizer"
    program.write_text(FAKE.format(python=sys.executable))
    program.chmod(0o755)
    return str(program)


def test_some_implementations_are_chosen_by_name() -> None:
    some = [of_kind("grid", 1), of_kind("wave", 2)._replace(implementation="transposed_gpu")]
    assert sanitizer_gpu.chosen(some, ()) == some
    assert sanitizer_gpu.chosen(some, ["transposed_gpu"]) == some[1:]
    with pytest.raises(sanitizer_gpu.UnknownName, match="expected some of persistent_gpu, transposed_gpu, got cudnn"):
        sanitizer_gpu.chosen(some, ["transposed_gpu", "cudnn"])


def test_a_job_that_fails_costs_itself_alone(fake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer_gpu, "_START_S", 3.0)
    kinds = ["good", "reported", "good", "dies", "good", "hangs", "good"] + ["good"] * 60
    some = [of_kind(kind, batch) for batch, kind in enumerate(kinds, 1)]
    watch = DeviceWatch(partial(command, fake, "memcheck"), {}, tmp_path / "log", time.monotonic() + 60, job_s=0.5)
    outcomes = {outcome.job: outcome.verdict for outcome in watch.run(some, 2)}
    assert len(outcomes) == len(some)
    wrong = {job.kind: verdict for job, verdict in outcomes.items() if verdict != CLEAN}
    assert wrong == {
        "reported": "Invalid __global__ read of size 16 bytes", "dies": "ended with 3", "hangs": "took more than 0.5 s",
    }  # fmt: skip
    assert "lstm-T4-B2-H64-float16-cuda: Invalid __global__ read" in (tmp_path / "log").read_text()


def test_what_the_time_does_not_reach_is_listed(fake: str, tmp_path: Path) -> None:
    some = [of_kind("good", 1), of_kind("hangs", 2), of_kind("good", 3)]
    start = time.monotonic()
    outcomes = DeviceWatch(partial(command, fake, "racecheck"), {}, tmp_path / "log", start + 2, job_s=60).run(some, 1)
    assert time.monotonic() - start < 10
    assert [(one.job.kind, one.verdict) for one in outcomes] == [("good", CLEAN)]
    text = "\n".join(sanitizer_gpu.report("racecheck", outcomes, some, 2.0))
    assert "It sees shared memory alone" in text
    assert "| persistent_gpu | good | forward | float16 1 |" in text
    assert "Not clean: 0." in text
    assert "Not reached in the time: 2.\n\n- persistent_gpu, hangs, forward: lstm-T4-B2-H64-float16-cuda" in text


def test_the_tool_watches_the_kernels_of_the_jobs() -> None:
    job = next(_scans())
    called = command("compute-sanitizer", "memcheck", [job])
    assert called[:6] == ["compute-sanitizer", "--tool", "memcheck", "--kernel-name", "kns=scan_", "--error-exitcode"]
    assert Job(*json.loads(called[-1])) == job


def test_jobs_are_of_every_kind_and_dtype_by_four_steps() -> None:
    found = _kinds("lstm", 64, 3, MathMode(2, False), False, H200)
    assert {"clusters", "grid", "grid, 256 readers", "grid, 128 readers", "grid, 8 sequences at once"} <= set(found)
    others = [*_once(), *_sparse(), *_scans(), *_transposed()]
    assert {job.family for job in others} == set(KERNELS)
    for job in others:
        assert Case.parse(job.case).steps <= 4 or job.family == "scan"
    assert {job.dtype for job in others} == {"float16", "bfloat16", "float32", "float64", "tf32"}


def test_without_a_sanitizer_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitizer_gpu.main(["--sanitizer", "no-such-program"]) == 2
    assert "no no-such-program on this machine" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(fake: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert sanitizer_gpu.main(["--sanitizer", fake]) == 2
    assert "torch finds none on this machine" in capsys.readouterr().err
