"""Compares the speed of two checkouts on one GPU: `python -m pytest_ecornn.suites.checkouts OLD --only NAME --output FILE`.

Each checkout has a process. They take turns, old new new old, replaying CUDA graphs, and a ratio is taken of each round. The
last column is the ratio of the host's time of a call. It prints a table of Markdown, with the geometric mean of each
implementation, and appends a line of JSON for each case to FILE.
Exit code 1: a case is slower, its whole interval above the limit in two measurements. Exit code 2: there is no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

from pytest_ecornn.reporting.markdown_syntax import table
from pytest_ecornn.suites.on_cuda import exit_code
from pytest_ecornn.suites.published.common.bars import geometric_mean

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("_checkout_worker.py")
ROUNDS, BLOCK_SECONDS, HOST_CALLS, HOST_ROUNDS = 16, 0.01, 128, 15
LIMIT = 1.03
NUMBERS = ("old us", "new us", "new over old, 99 %", "host")  # columns of the table
MODES = ("", "-training")  # the ends of cases' names
T_99 = {15: 2.947, 31: 2.744}  # Student's t of 99 %, two sides, by degrees of freedom
SHAPES = {
    "persistent_gpu": (
        "lstm-T35-B32-H650-L2-float32",
        "lstm-T35-B32-H200-L2-float32",
        "lstm-T35-B64-H512-float32",
        "lstm-T128-B16-H256-float16",
        "lstm-T128-B1-H1024-bfloat16",
        "gru-T128-B8-H512-float16",
        "lstm-T1-B1-H512-float32",
        "lstm-T16-B1-H512-L3-float16",
        "rnn_tanh-T35-B16-H256-float32-ragged",
        "lstm-T35-B20-H1500-L2-float16",
    ),
    "sparse_persistent_gpu": (
        "rnn_tanh-T32-B4-H2304-float32-density0.3",
        "lstm-T32-B4-H1152-float32-density0.1",
        "gru-T32-B4-H1152-float16-density0.1",
    ),
    "scan_gpu": (
        "mingru-T1024-B8-H256-float32-batchfirst-projected",
        "mingru-T65536-B1-H256-float32-batchfirst-projected",
        "minlstm-T4096-B8-H256-float32-batchfirst-projected",
        "mingru-T1024-B8-H256-bfloat16-batchfirst-projected",
    ),
    "scan_gpu_log": ("mingru_positive-T4096-B8-H256-float32-batchfirst-projected",),
    "transposed_gpu": ("lstm-T35-B32-H650-L2-float32", "lstm-T35-B64-H512-float32"),
    "row_major_gpu": ("lstm-T35-B32-H650-L2-float32",),
}


@dataclass(frozen=True)
class Measured:
    """Times of one case. ratio: new over old, geometric mean over rounds; low, high: its interval of 99 %."""

    implementation: str
    case: str
    old_us: float
    new_us: float
    ratio: float
    low: float
    high: float
    host_ratio: float
    was_repeated: bool = False


class Worker:
    """The process of one checkout. Raises RuntimeError for what it answers with an error."""

    def __init__(self, root: Path):
        self._process = subprocess.Popen(
            [sys.executable, str(WORKER), str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
        )

    def ask(self, **request: Any) -> Any:
        self.send(**request)
        return self.receive()

    def send(self, **request: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["answer"]

    def close(self) -> None:
        self._process.communicate(timeout=60)


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of ratios, and its interval of 99 %, by Student's t on their logarithms."""
    logs = [math.log(one) for one in ratios]
    mean = statistics.fmean(logs)
    reach = T_99[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def _failure(worker: Worker) -> str:
    """The error of a worker's answer, empty where there is none."""
    try:
        worker.receive()
    except RuntimeError as error:
        return str(error)
    return ""


def _rounds(old: Worker, new: Worker, count: int, **request: Any) -> list[tuple[float, float]]:
    """Times in us by both, a pair for each round; every other round runs backwards."""
    pairs = []
    for number in range(count):
        arms = (old, new) if number % 2 == 0 else (new, old)
        times = {arm: arm.ask(**request) for arm in arms}
        pairs.append((times[old], times[new]))
    return pairs


def measure(old: Worker, new: Worker, implementation: str, case: str) -> Measured:
    """Builds the case in both processes and times it; once more, with twice the rounds, where it looks slower."""
    for worker in (old, new):
        worker.send(build=[implementation, case])
    failures = [failure for worker in (old, new) if (failure := _failure(worker))]
    if failures:
        raise RuntimeError("; ".join(failures))
    pairs = _rounds(old, new, ROUNDS, block=BLOCK_SECONDS)
    ratio, low, high = interval([b / a for a, b in pairs])
    if was_repeated := low > LIMIT:
        pairs = _rounds(old, new, 2 * ROUNDS, block=BLOCK_SECONDS)
        ratio, low, high = interval([b / a for a, b in pairs])
    host = [b / a for a, b in _rounds(old, new, HOST_ROUNDS, host=HOST_CALLS)]
    old_us, new_us = (statistics.median(one) for one in zip(*pairs, strict=True))
    return Measured(implementation, case, old_us, new_us, ratio, low, high, statistics.median(host), was_repeated)


def _all(old: Worker, new: Worker, names: Sequence[str], modes: Sequence[str], deadline: float) -> Iterator[Measured]:
    cases = [(name, shape + mode) for name in names for shape, mode in product(SHAPES[name], modes)]
    for name, case in cases:
        if time.monotonic() > deadline:
            print(f"not reached: {name} {case}", flush=True)
            continue
        try:
            yield measure(old, new, name, case)
        except RuntimeError as error:
            print(f"not measured: {name} {case}: {error}", flush=True)


def render(rows: Sequence[Measured]) -> str:
    """A table of Markdown, and the geometric means of each implementation."""
    lines = [
        [one.implementation, one.case, f"{one.old_us:.1f}", f"{one.new_us:.1f}", _interval(one), f"{one.host_ratio:.3f}"]
        for one in rows
    ]
    for name in dict.fromkeys(one.implementation for one in rows):
        own = [one for one in rows if one.implementation == name]
        means = [geometric_mean(values) for values in ([one.ratio for one in own], [one.host_ratio for one in own])]
        lines.append([name, f"geometric mean of {len(own)}", "", "", *(f"{mean:.4f}" for mean in means)])
    return table(["implementation", "case", *NUMBERS], lines, right=NUMBERS) + "\n"


def _interval(one: Measured) -> str:
    return f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="checkouts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", type=Path, help="the root of the other checkout")
    parser.add_argument("--only", action="append", choices=list(SHAPES), help="an implementation; may be given several times")
    parser.add_argument("--output", type=Path, required=True, help="a line of JSON for each case is appended to it")
    parser.add_argument("--inference", action="store_true", help="no training cases")
    parser.add_argument("--seconds", type=float, default=480.0, help="no case begins after so many seconds")
    given = parser.parse_args(arguments)
    rows, names, modes = list[Measured](), given.only or list(SHAPES), MODES[:1] if given.inference else MODES
    code = exit_code("checkouts", lambda: rows.extend(_compare(given.old, names, modes, given.output, given.seconds)))
    if rows:
        print(render(rows))
    return code or int(any(row.was_repeated and row.low > LIMIT for row in rows))


def _compare(root: Path, names: Sequence[str], modes: Sequence[str], output: Path, seconds: float) -> list[Measured]:
    """Measures all cases, and appends each to `output` at once."""
    deadline, rows = time.monotonic() + seconds, list[Measured]()
    old, new = Worker(root), Worker(ROOT)
    with output.open("a") as file:
        for row in _all(old, new, names, modes, deadline):
            rows.append(row)
            print(json.dumps(asdict(row)), file=file, flush=True)
            print(f"{row.implementation} {row.case}: {_interval(row)}", flush=True)
    old.close()
    new.close()
    return rows


if __name__ == "__main__":
    sys.exit(main())
