"""Rows and a run as a report gets them, with figures that hang together."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from pytest_ecornn.cases.case_sets import case_set
from pytest_ecornn.contract import Case, cells
from pytest_ecornn.reporting import RunInfo, standing
from pytest_ecornn.reporting.conclusions import Conclusions
from pytest_ecornn.results.rows import BaselineRatio, Disturbance, Doubt, Row, TensorError, Timing

HOSTILE = "a|b<script>alert(1)</script>`*_[x](http://evil.example)\n\x1b[31m# h\ud800"
CASES = (
    "lstm-T35-B32-H200-L2-float32",
    "lstm-T35-B32-H200-L2-float32-training",
    "mingru-T512-B8-H256-float32-batchfirst-projected",
    "mingru-T512-B8-H256-bfloat16-batchfirst-projected",
)
# What a quiet and a busy machine say of themselves.
QUIET = Disturbance(1.0, 2, 0.01, 0.0, 0.0, 0.0, 0.0, 20, 1)
BUSY = Disturbance(1.0, 2, 1.0, 0.0, 0.0, 0.0, 0.0, 20, 15)


def timing(time_us: float, baselines: dict[str, float], seed: int = 0) -> Timing:
    """Of samples around `time_us`, against baselines of the given times."""
    noise = random.Random(seed)
    samples = [time_us * noise.uniform(0.98, 1.02) for _ in range(12)]
    against = []
    for name, base_us in baselines.items():
        ratio = time_us / base_us
        low, high = 0.98 * ratio, 1.02 * ratio
        verdict = "faster" if high < 1 else "slower" if low > 1 else "same"
        against.append(BaselineRatio(name, base_us, ratio, low, high, verdict, [base_us * s / time_us for s in samples]))
    return Timing(
        time_us, 0.99 * time_us, 1.01 * time_us, samples, 3, "perf_counter", against, 1.7, 6_300_000, 5_000_000, 40_000_000,
        5e3 / time_us, 40e3 / time_us, 0.2 * 1000, 200 / time_us,
    )  # fmt: skip


def row(implementation: str, case: str, kind: str = "benchmark", status: str = "passed", **fields: Any) -> Row:
    """A row of `case`, with errors unless it was skipped."""
    parsed = Case.parse(case)
    if status != "skipped" and "tensors" not in fields and kind != "drawn":
        fields["tensors"] = [
            TensorError("output", "passed", 1.2e-7, 4.1e-7, 0.41, "t in [32, 64)"),
            TensorError("final_state", "passed", 1.1e-7, 2.9e-7, 0.22, "layer 1"),
            *([TensorError("grad_h_0", "uninformative", 0.0, 0.0, 0.0, "")] if parsed.training else []),
        ]
    return Row(
        kind, implementation, case, parsed.cell, parsed.dtype, parsed.device, parsed.mode, status, carry="float32", **fields
    )  # fmt: skip


def drawn(implementation: str, cell: str, status: str = "passed", reason: str = "", dtype: str = "float32") -> Row:
    return Row(
        "drawn", implementation, f"{cell}-{dtype}-quick", cell, dtype, "cpu", "", status, reason,
        informative={"output": 60, "final_state": 58, "grad_x": 31}, uninformative={"grad_x": 2}, examples=60, refused=4,
    )  # fmt: skip


def sample_rows() -> list[Row]:
    """Four cases; torch_cpu is the baseline of lstm, sequential of mingru; one implementation of each is unproven or failed."""
    rows = []
    for n, case in enumerate(CASES):
        base = "torch_cpu" if case.startswith("lstm") else "sequential"
        times = {"sequential": 31_400.0, "torch_cpu": 6_900.0, "scan_cpu": 7_410.0 if n < 2 else 942.0, "blocked_cpu": 2_310.0}
        for seed, (name, time_us) in enumerate(times.items()):
            if name == "torch_cpu" and base != name:
                rows.append(row(name, case, status="skipped", reason=f"torch.nn has no {case.split('-')[0]}"))
                continue
            against = {} if name == base else {base: times[base]}
            rows.append(row(name, case, timing=timing(time_us, against, seed), notes="2 threads, blocks of 64"))
        rows.append(row("scan_gpu", case, status="skipped", reason="no CUDA device on this machine"))
    wrong = "scan_wrong on mingru: output[3, 0, 7]: expected 0.25, got 0.75; error 3.1e+04 of the limit\nagain: pytest ..."
    rows.append(row("scan_wrong", CASES[2], status="failed", reason=wrong))
    rows.append(drawn("blocked_cpu", "mingru", "failed", "blocked_cpu on mingru-T1-B1-H1-float32: expected 1, got 2\n```\nx"))
    rows += [drawn(name, cell) for name in ("sequential", "scan_cpu") for cell in ("lstm", "mingru")]
    return rows


def hostile_rows() -> list[Row]:
    """Foreign text everywhere that a report shows any."""
    bad = row("x", CASES[0], timing=timing(10.0, {HOSTILE: 20.0}), notes=HOSTILE, reason=HOSTILE)
    bad.implementation, bad.tensors[0].tensor = HOSTILE, HOSTILE
    worse = row("y", CASES[0], status="failed", reason=f"{HOSTILE}\n```\n# not a heading\n````")
    skipped = row(HOSTILE, CASES[1], status="skipped", reason=HOSTILE)
    odd = Row("drawn", HOSTILE, HOSTILE, HOSTILE, "float32", "cpu", "", "passed", informative={HOSTILE: 3})
    fixed = row(HOSTILE, CASES[0], kind="fixed")
    strange = row("z", CASES[0], timing=timing(5.0, {}))
    strange.case = strange.cell = strange.mode = HOSTILE
    return [bad, worse, skipped, odd, fixed, strange]


def sample_run() -> RunInfo:
    machine = {
        "cpu": "AMD EPYC 9354 32-Core Processor", "cores": 2, "caches": {"L1d": 32768, "L2": 1048576, "L3": 268435456},
        "memory_bytes": 17179869184, "system": "Linux 6.8", "governor": None, "packages": {"torch": "2.8.0", "cupy": None},
        "gpu": {"names": ["NVIDIA H200"], "driver": "570.1"},
        "threads": {"torch": 2}, "allocator": "glibc, M_MMAP_THRESHOLD=1 GiB", "commit": "0123abc", "dirty": True,
        "benchmark_machine_info": {"node": "host", "machine": "x86_64", "cpu": {"brand_raw": "EPYC"}},
        "benchmark_commit_info": {"id": "0123abc", "time": None, "dirty": True, "project": "ecornn", "branch": "main"},
    }  # fmt: skip
    ceilings = {
        "copy_points": {"32768": 98.1, "1048576": 55.0, "268435456": 23.4}, "read_points": {"32768": 120.5, "1048576": 60.0},
        "matmul_gflop_per_s": {"float32": 141.2, "bfloat16": 55.0},
    }  # fmt: skip
    settings = {"cases": "smoke", "baselines": "torch_cpu where it runs, else sequential", "budget": "2 s a row"}
    command = "pytest --ecornn-bench --ecornn-cases smoke"
    return RunInfo(
        "2025-01-31T12:00:00+00:00", 312.5, command, machine, ceilings, settings, {"scan_gpu": 1.0, "torch_cpu": 0.5}
    )


def many_rows(count: int) -> list[Row]:
    """So many rows of four implementations, of cases of their own names."""
    names, rows = ("torch_cpu", "scan_cpu", "sequential", "mine"), []
    for number in range(count // len(names)):
        case = f"lstm-T{number % 97 + 1}-B{number // 97 + 1}-H64-{('float32', 'bfloat16')[number % 2]}"
        for name in names:
            one = timing(100.0 + number % 13, {} if name == "torch_cpu" else {"torch_cpu": 300.0 + number % 17})
            one.samples_us = [101.2345 + number % 7 + sample / 3 for sample in range(12)]
            rows.append(replace(row(name, case, timing=one), notes=f"form {number % 5}"))
    return rows


# What runs the smoke cases on a GPU, each by its time over the baseline's; the baseline of a group first.
_OF_CELLS = {"cudnn": 1.0, "auto": 0.31, "persistent_gpu": 0.3, "row_major_gpu": 1.4, "sequential": 9.0, "transposed_gpu": 1.2}
_OF_SCANS = {"sequential": 1.0, "accelerated_scan": 0.05, "auto": 0.03, "flash_linear_attention": 0.04, "scan_gpu": 0.03,
             "scan_gpu_log": 0.06}  # fmt: skip
_CAUSES = ("before", "after", "own row")


def gpu_smoke_rows() -> list[Row]:
    """The smoke cases on a GPU by six implementations each: a third of the verdicts in doubt, each in both columns."""
    rows = []
    for number, case in enumerate(replace(case, device="cuda") for case in case_set("smoke")):
        is_scan = not cells.get(case.cell).recurrent
        runs, refusing = (_OF_SCANS, _OF_CELLS) if is_scan else (_OF_CELLS, _OF_SCANS)
        base = next(iter(runs))
        for position, (name, ratio) in enumerate(runs.items()):
            against = {base: 1000.0 + number} if name != base else {}
            one = row(name, str(case), timing=timing(ratio * (1000.0 + number), against, position))
            one.replay = timing(0.7 * ratio * (1000.0 + number), {base: 0.7 * (1000.0 + number)} if against else {}, position)
            if against and (number + position) % 3 == 0:
                for column in (one.timing, one.replay):
                    assert column is not None
                    column.against[0].add_doubts([Doubt(_CAUSES[number % 3], 0.02, 0.01, 40.0)], 0.03)
            if (number, position) == (3, 2):
                one.timing.disturbance = BUSY
            rows.append(one)
        skipped = [name for name in refusing if name not in runs]
        rows += [row(name, str(case), status="skipped", reason=f"runs no {case.cell}") for name in skipped]
    kinds = {(one.implementation, one.cell, one.dtype): one.status for one in rows}
    for (name, cell, dtype), status in kinds.items():
        for kind in ("drawn", "properties"):
            one = drawn(name, cell, "passed" if status == "passed" else "skipped", "" if status == "passed" else "no", dtype)
            one.kind, one.device = kind, "cuda"
            one.boundaries = (
                {"T": [31, 32, 33], "B": [5, 17], "H": [63, 64, 65, 129]} if kind == "drawn" and not one.reason else {}
            )
            rows.append(one)
    control = row("cudnn", rows[0].case, "control", timing=timing(1000.0, {"cudnn": 1000.0}, 1))
    control.replay = timing(700.0, {"cudnn": 700.0}, 2)
    return [*rows, control]


def concluded(rows: Iterable[Row], unproven: Collection[standing.Key] = ()) -> Conclusions:
    """What rows of the sample run say."""
    run = sample_run()
    return Conclusions(list(rows), unproven, run.settings, run.command)
