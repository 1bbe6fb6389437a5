"""A baseline in this process and in one of its own: the ratio of equals, its interval's width, and seconds a row.

`python -m tests.tools.baseline_process` takes three minutes. torch_cpu is timed against two more builds of itself, one here and
one in another process, in blocks whose order is drawn. docs/notes/baseline_process.md has the figures.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from math import log
from multiprocessing import get_context
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.implementations.torch_cpu import TorchCpu
from pytest_ecornn.measurement.clocks import SettingsClock, WallTimer
from pytest_ecornn.measurement.measurement import Arm, gc_disabled
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.results.statistics import Ratio, paired_ratio
from pytest_ecornn.system import memory
from pytest_ecornn.verification.verification import Candidate

CASES = ("lstm-T35-B16-H128-float32-training", "lstm-T4-B64-H512-float32", "lstm-T35-B32-H200-L2-float32")
PLACES = ("here", "elsewhere")


def arm(case: Case) -> Arm:
    """torch_cpu, calibrated."""
    made = Arm(Candidate.build("torch_cpu", TorchCpu, case), InputPool(case))
    with torch.set_grad_enabled(case.training):
        made.calibrate(WallTimer())
    return made


def block(made: Arm, clock: SettingsClock) -> float:
    """Microseconds of a call, of a block that follows another's."""
    with torch.set_grad_enabled(made.candidate.case.training):
        made.block(clock, is_settled=False)
    return made.samples_us[-1]


@gc_disabled()
def serve(text: str, pipe: Connection) -> None:
    """Runs in the other process: a block for each message."""
    memory.configure_malloc()
    made, clock = arm(Case.parse(text)), SettingsClock(WallTimer())
    pipe.send(made.calls)
    while pipe.recv():
        pipe.send(block(made, clock))


@gc_disabled()
def row(case: Case, rounds: int, elsewhere: Callable[[], float]) -> list[Ratio]:
    """The ratios to the baselines at each of PLACES."""
    own, baseline, clock = arm(case), arm(case), SettingsClock(WallTimer())
    blocks = {"own": lambda: block(own, clock), "here": lambda: block(baseline, clock), "elsewhere": elsewhere}
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for _ in range(rounds):
        for name in random.sample(list(blocks), len(blocks)):
            times[name].append(blocks[name]())
    return [paired_ratio(times["own"], times[place]) for place in PLACES]


def rows(text: str, count: int, rounds: int) -> list[list[Ratio]]:
    """Several rows, with one other process."""
    start, context = perf_counter(), get_context("spawn")
    pipe, far = context.Pipe()
    process = context.Process(target=serve, args=(text, far), daemon=True)
    process.start()
    pipe.recv()
    print(f"{text}: the process is ready in {perf_counter() - start:.2f} s", flush=True)

    def elsewhere() -> float:
        pipe.send(True)
        return float(pipe.recv())

    found = []
    for _ in range(count):
        found.append(row(Case.parse(text), rounds, elsewhere))
        ends = ", ".join(f"{one.ratio:.4f} ({one.low:.4f} to {one.high:.4f})" for one in found[-1])
        print(f"  {ends}", flush=True)
    pipe.send(False)
    process.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=12, help="rows a case; default: 12")
    parser.add_argument("--rounds", type=int, default=60, help="blocks of each a row; default: 60")
    options = parser.parse_args()
    memory.configure_malloc()
    for text in CASES:
        found = rows(text, options.rows, options.rounds)
        for place, ratios in zip(PLACES, zip(*found, strict=True), strict=True):
            middles = sorted(one.ratio for one in ratios)
            width = median(log(one.high / one.low) for one in ratios)
            outside = sum(not one.low <= 1 <= one.high for one in ratios)
            print(
                f"{text} {place}: ratio {median(middles):.4f}, from {middles[0]:.4f} to {middles[-1]:.4f}; "
                f"interval {width:.2%} wide; 1 outside in {outside} of {len(ratios)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
