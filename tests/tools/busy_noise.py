"""Rows timed beside spinning processes, and what their verdicts are worth: a quiet run of the same rows says what is true.

`python -m tests.tools.busy_noise` takes some eight minutes on two processors that nothing else uses. It prints how many
verdicts the quiet run's interval excludes, how many rows of the quiet run were called disturbed, and how many effects over 1.5
times were still decided beside one spinning process. The rows are those of the smoke set, several times, and A/A tests and
calls that are made twice.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pytest_ecornn.cases.case_sets import case_set
from pytest_ecornn.contract import Case, Cost, Implementation
from pytest_ecornn.implementations.scan_cpu import ScanCpu
from pytest_ecornn.implementations.torch_cpu import TorchCpu
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.noise.bounds import describe, is_disturbed
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results import statistics
from pytest_ecornn.system import memory
from pytest_ecornn.verification.verification import Candidate

SPINNING = (1, 2, 4)
EFFECT = 1.5
QUIET_PAIRS = 12  # in which the truth is measured
MOST_DISTURBED, FEWEST_DECIDED = 0.02, 0.6
_SPIN = "while True: pass"


@dataclass(frozen=True)
class Pair:
    """A row to be timed. repeats: how often the candidate makes each call."""

    candidate: type[Implementation]
    baseline: type[Implementation]
    case: Case
    repeats: int = 1

    @property
    def name(self) -> str:
        often = f"{self.repeats} x " if self.repeats > 1 else ""
        return f"{often}{self.candidate.__name__} / {self.baseline.__name__} {self.case}"


@dataclass
class Measured:
    """What was published of a row."""

    name: str
    spinning: int
    ratio: float
    low: float
    high: float
    verdict: str
    is_disturbed: bool
    said: str
    pairs: int
    seconds: float

    @property
    def is_effect(self) -> bool:
        return not 1 / EFFECT <= self.ratio <= EFFECT


def pairs(times: int) -> list[Pair]:
    """Those of the smoke set that often, and an A/A test and a planted ratio for each third case."""
    real, planted = [], []
    for number, case in enumerate(case_set("smoke")):
        kinds = [kind for kind in (TorchCpu, ReferenceLoop, ScanCpu) if kind().refusal(case) is None]
        real += [Pair(kind, kinds[0], case) for kind in kinds[1:]]
        if number % 3 == 0:
            planted += [Pair(kinds[0], kinds[0], case), Pair(kinds[-1], kinds[-1], case, repeats=2)]
    return real * times + planted


@cache
def built(kind: type[Implementation], case: Case, repeats: int, number: int) -> Candidate:
    """number: 0 for the candidate, 1 for the baseline."""
    candidate = Candidate.build(kind.__name__, kind, case)
    layer = candidate.layer

    def repeated(*given: Any) -> Any:
        for _ in range(repeats - 1):
            layer(*given)
        return layer(*given)

    candidate.layer = repeated
    return candidate


@cache
def pool(case: Case) -> InputPool:
    return InputPool(case)


def measured(pair: Pair, spinning: int, budget: float, confidence: float, fewest: int = 0) -> Measured:
    start = time.perf_counter()
    candidate = built(pair.candidate, pair.case, pair.repeats, 0)
    baseline = built(pair.baseline, pair.case, 1, 1)
    column = TimingColumn([Arm(one, pool(pair.case)) for one in (candidate, baseline)], WallTimer(), confidence)
    column.measure(budget, fewest)
    timing = column.timing(Cost(0, 0), 0.0)
    one, seconds = timing.against[0], time.perf_counter() - start
    return Measured(
        pair.name, spinning, one.ratio, one.low, one.high, one.verdict, is_disturbed(timing.disturbance), describe(timing),
        len(timing.samples_us), seconds,
    )  # fmt: skip


@contextmanager
def spinning(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        time.sleep(0.3 if count else 0.0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def is_wrong(busy: Measured, quiet: Measured) -> bool:
    """Whether the verdict is one that the quiet run's interval excludes."""
    limit = 1 + WallTimer.equivalence_margin
    possible = {
        "slower": quiet.high > limit,
        "faster": quiet.low < 1 / limit,
        "same": quiet.low <= limit and quiet.high >= 1 / limit,
        "unclear": True,
    }
    return not possible[busy.verdict]


def report(calm: Sequence[Measured], busy: Sequence[Measured]) -> bool:
    """Prints the figures; whether all bars are met."""
    quiet = {one.name: min((same for same in calm if same.name == one.name), key=_width) for one in calm}
    wrong = [one for one in busy if is_wrong(one, quiet[one.name])]
    for one in wrong:
        truth = quiet[one.name]
        print(f"wrong: {one.name}, {one.spinning} spinning: {one.ratio:.3g} [{one.low:.3g}, {one.high:.3g}] {one.verdict}; "
              f"quiet {truth.ratio:.3g} [{truth.low:.3g}, {truth.high:.3g}]")  # fmt: skip
    for count in SPINNING:
        effects = [one for one in busy if one.spinning == count and quiet[one.name].is_effect]
        print(f"{count} spinning: {_decided(effects)} effects over {EFFECT} decided; {_decided(busy, count)} rows in all")
    disturbed = sum(one.is_disturbed for one in calm)
    effects = [one for one in busy if one.spinning == 1 and quiet[one.name].is_effect]
    decided = sum(statistics.is_conclusive(one.verdict) for one in effects)
    print(f"wrong verdicts: {len(wrong)} of {len(busy)} rows (bar: 0)")
    print(f"called disturbed on a quiet machine: {disturbed} of {len(calm)} rows (bar: {MOST_DISTURBED:.0%})")
    print(f"effects over {EFFECT} decided beside one spinning process: {decided} of {len(effects)} (bar: {FEWEST_DECIDED:.0%})")
    return not wrong and disturbed <= MOST_DISTURBED * len(calm) and decided >= FEWEST_DECIDED * len(effects)


def _width(one: Measured) -> float:
    return one.high / one.low


def _decided(rows: Sequence[Measured], count: int | None = None) -> str:
    rows = [one for one in rows if count is None or one.spinning == count]
    return f"{sum(statistics.is_conclusive(one.verdict) for one in rows)} of {len(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--budget", type=float, default=1.5, help="seconds a row, beside spinning processes")
    parser.add_argument("--times", type=int, default=4, help="that the smoke set's rows are timed")
    parser.add_argument("--seconds", type=float, default=140.0, help="beside so many spinning processes, for at most")
    parser.add_argument("--output", type=Path, help="a JSON file of every row")
    given = parser.parse_args()
    memory.configure_malloc()
    rows = pairs(given.times)
    confidence = statistics.per_comparison_confidence(len(rows))
    found: list[Measured] = []
    for count in (0, *SPINNING):
        with spinning(count):
            end = time.monotonic() + given.seconds
            for pair in rows:
                if count and time.monotonic() > end:
                    break
                one = measured(pair, count, given.budget, confidence, QUIET_PAIRS if not count else 0)
                found.append(one)
                print(f"{count} {one.name}: {one.ratio:.3g} [{one.low:.3g}, {one.high:.3g}] {one.verdict}, {one.pairs} pairs, "
                      f"{one.seconds:.1f} s; {one.said}", flush=True)  # fmt: skip
    if given.output:
        given.output.write_text(json.dumps([asdict(one) for one in found], indent=1))
    sys.exit(not report([one for one in found if not one.spinning], [one for one in found if one.spinning]))


if __name__ == "__main__":
    main()
