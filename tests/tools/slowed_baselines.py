"""Baselines that a candidate slows down, and equal times: what the verdicts on them are worth on this machine.

`python -m tests.tools.slowed_baselines` takes some four minutes. Forty times a candidate that takes as long as its baseline
slows it by 1.1 to 3 times, for good or while they take turns: none may be called faster. Two builds of one loop are timed
against each other as often as asked: at most 1 % may be called anything but the same or unclear. Hosts whose speed comes in
spells are simulated in tests/measurement/noise/test_wandering_host.py.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.noise.baselines import BaselineProbe
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.rows import BaselineRatio
from pytest_ecornn.system import memory
from pytest_ecornn.verification.verification import Candidate

CASES = ("lstm-T8-B4-H32-float32", "gru-T12-B2-H64-float32-training")
FACTORS = [1.1 * (3 / 1.1) ** (number / 39) for number in range(40)]
MOST_WRONG = 0.01
_REACH = 0.05  # seconds after a candidate's call in which it slows its baseline by turns


@dataclass
class Slowdown:
    """How many times as long a baseline takes: once the candidate is built, or shortly after its calls."""

    factor: float
    is_for_good: bool
    is_built: bool = False
    last_call: float = -1.0

    def after_candidate(self, *given: Any) -> Any:
        result = self.candidate(*given)
        self.last_call = perf_counter()
        return result

    def of_baseline(self, *given: Any) -> Any:
        start = perf_counter()
        is_slow = self.is_built if self.is_for_good else start - self.last_call < _REACH
        result = self.baseline(*given)
        end = perf_counter()
        while is_slow and perf_counter() - start < self.factor * (end - start):
            pass
        return result

    def plant(self, candidate: Candidate, baseline: Candidate) -> None:
        """Puts itself around both layers."""
        self.candidate, self.baseline = candidate.layer, baseline.layer
        candidate.layer, baseline.layer = self.after_candidate, self.of_baseline


def compared(text: str, budget: float, slowdown: Slowdown) -> BaselineRatio:
    """The row's comparison of two builds of the plain loop, one of which slows the other."""
    case = Case.parse(text)
    pool, clock = InputPool(case), WallTimer()
    candidate, baseline = (Candidate.build(name, ReferenceLoop, case) for name in ("candidate", "baseline"))
    slowdown.plant(candidate, baseline)
    probe = BaselineProbe([Arm(baseline, pool)], clock, budget)
    slowdown.is_built = True
    column = TimingColumn([Arm(candidate, pool), Arm(baseline, pool)], clock, probe=probe)
    column.measure(budget)
    return column.against()[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=2.0, help="seconds a row")
    parser.add_argument("--equal", type=int, default=100, help="rows of equal times")
    given = parser.parse_args()
    memory.configure_malloc()
    slowed, equal = Counter[str](), Counter[str]()
    for number, factor in enumerate(FACTORS):
        slowdown = Slowdown(factor, is_for_good=number % 2 == 0)
        one = compared(CASES[number // 2 % len(CASES)], given.budget, slowdown)
        slowed[one.verdict] += 1
        kind, ratio = "for good" if slowdown.is_for_good else "by turns", ratio_interval(one.ratio, one.low, one.high)
        print(f"{factor:.2f} {kind}: {ratio} {one.verdict}; {one.doubt}", flush=True)
    for number in range(given.equal):
        one = compared(CASES[number % len(CASES)], given.budget, Slowdown(1.0, is_for_good=True))
        equal[one.verdict] += 1
    wrong = equal["faster"] + equal["slower"]
    print(f"slowed baselines: {dict(slowed)}; faster: {slowed['faster']} (bar: 0)")
    print(f"equal times: {dict(equal)}; neither the same nor unclear: {wrong} of {given.equal} (bar: {MOST_WRONG:.0%})")
    sys.exit(slowed["faster"] > 0 or wrong > MOST_WRONG * given.equal)


if __name__ == "__main__":
    main()
