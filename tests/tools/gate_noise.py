"""Runs with the noise of a shared machine, made up, and what the gate says of them.

`python -m tests.tools.gate_noise docs/notes/gate.md` writes the note up to its first section; it takes a quarter of an hour.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pytest_ecornn import reporting
from pytest_ecornn.regression import gate
from pytest_ecornn.regression.gate_limits import DEFAULT, Thresholds
from pytest_ecornn.results.replicates import with_replicates
from pytest_ecornn.results.rows import Row
from pytest_ecornn.results.statistics import CONFIDENCE, paired_ratio
from tests.helpers.reporting_samples import CASES, row, timing

_NOISE = [
    (arm, sigma, pairs)
    for arm in (0.0, 0.003, 0.01, 0.02)
    for sigma, pairs in ((0.02, 40), (0.02, 100), (0.04, 100), (0.04, 200), (0.08, 8))
]
_HEAD = """\
# The gate: what noise it bears

Simulated (`python -m tests.tools.gate_noise docs/notes/gate.md`): a factor on all arms of a run, which cancels; another on each
arm of a run, which cannot; slow drift; normal noise of a pair; and one block in 20 that takes half as long again or more. The
limit is 5 %, a run has 50 rows, at first of 8 pairs, and what looks slower is measured again with twice the stored report's
pairs. The last three columns: how many rows were called slower of 5,000 that had not changed, of 2,000 that were slower by
exactly the limit, and of 1,000 that were slower by 10 %.

| arms differ from run to run by | noise of a pair | pairs stored | unchanged | at the limit | 10 % slower |
| ---: | ---: | ---: | ---: | ---: | ---: |
"""
_REPLICATED = [(arm, count) for arm in (0.01, 0.02) for count in (5, 10, 20)]
_REPLICATED_HEAD = """
With `--ecornn-replicates`, 40 pairs a process, 2 % of noise: so many processes measured the stored report, and as many measure
what looks slower in one process now. The last column: of 1,000 rows that were slower by 20 %.

| arms differ by | processes | unchanged | at the limit | 10 % slower | 20 % slower |
| ---: | ---: | ---: | ---: | ---: | ---: |
"""
_TAIL = """
- Slower by exactly the limit is the hardest to tell; where arms differ, half of such rows are in truth beyond it.
- With few pairs the gate calls nothing slower that is not much slower: it says unclear.
- What differs from one process to the next and stays so (addresses, the state of threads) no interval of one run holds. At 2 %
  an arm, 4 % between two ratios, it makes false alarms at a limit of 5 %: let several processes measure, or set the limit to at
  least twice what two runs of the same code differ by. On a two-core machine that another program kept busy, a loop's ratio to
  torch_cpu, which has two threads, differed by over 20 % between two runs.
- Five processes make no false alarm at 2 %, but see little below 20 % then: Student's t of eight degrees of freedom is wide.
"""


def one(name: str, time_us: float, baselines: dict[str, float], case: str = CASES[0], pairs: int = 40) -> Row:
    """A row whose pairs' ratios differ by little."""
    found = timing(time_us, baselines)
    noise = np.random.default_rng(0).normal(0, 0.005, pairs)
    found.samples_us = (time_us * np.exp(noise)).tolist()
    for against in found.against:
        against.samples_us = [against.time_us] * pairs
    return row(name, case, timing=found)


def compared(then: Sequence[Row], now: Sequence[Row]) -> gate.RegressionReport:
    return gate.compare(then, now, reporting.unproven(now), Thresholds().share)


class Machine:
    """Runs of rows with the noise of a shared machine: a factor a run on all arms, another a run on each arm, and blocks.

    Blocks drift slowly together, differ by `sigma` a pair, and one in 20 takes half as long again or more.
    """

    def __init__(self, seed: int, sigma: float, arm: float = 0.003):
        self._random, self._sigma, self._arm = np.random.default_rng(seed), sigma, arm

    def times(self, true: float, pairs: int) -> tuple[list[float], list[float]]:
        """Of a candidate that takes `true` times as long as its anchor."""
        random, shape = self._random, (pairs, 2)
        t = np.arange(2 * pairs)
        drift = 0.1 * np.sin(2 * np.pi * (t / random.uniform(60, 400) + random.random()))
        drift += random.normal(0, 0.002, t.size).cumsum()
        stalls = (random.random(shape) < 0.05) * (np.log(1.5) + random.exponential(0.5, shape))
        log = drift.reshape(shape) + random.normal(0, self._sigma / 2**0.5, shape) + stalls
        log[1::2] = log[1::2, ::-1] - drift.reshape(shape)[1::2, ::-1] + drift.reshape(shape)[1::2]
        log += random.normal(0, 0.3) + random.normal(0, self._arm, 2)
        return (true * np.exp(log[:, 0])).tolist(), np.exp(log[:, 1]).tolist()

    def row(self, case: str, true: float, pairs: int, processes: int = 1) -> Row:
        """A row that takes `true` times as long as its anchor, as one process measured it, or several."""
        rows = [self._row(case, true, pairs) for _ in range(processes)]
        return with_replicates(rows[0], rows[1:], CONFIDENCE) if processes > 1 else rows[0]

    def _row(self, case: str, true: float, pairs: int) -> Row:
        found = one("a", true, {"base": 1.0})
        assert found.timing is not None
        against = found.timing.against[0]
        found.timing.samples_us, against.samples_us = self.times(true, pairs)
        against.ratio = paired_ratio(found.timing.samples_us, against.samples_us).ratio
        return replace(found, case=case)


def replayed(machine: Machine, change: float, rows: int, pairs: int, processes: int = 1) -> tuple[int, int]:
    """Of that many rows of two runs, whose ratios differ by `change`: how many are slower, how many were measured again.

    processes: that measured each stored row, and measure again what looks slower.
    """
    names = [f"case {n}" for n in range(rows)]
    true = dict(zip(names, np.random.default_rng(0).uniform(0.1, 3.0, rows), strict=True))
    then, now = (
        [machine.row(name, factor * ratio, count, several) for name, ratio in true.items()]
        for factor, count, several in ((1.0, pairs, processes), (change, 8, 1))
    )
    outcome = compared(then, now)
    if due := outcome.replicates_due:
        now = [machine.row(row.case, change * true[row.case], pairs, processes) if row.key in due else row for row in now]
        outcome = compared(then, now)
        return sum(found.verdict == "slower" for found in outcome.findings), len(due)
    looks = [found for found in outcome.findings if found.looks_slower]
    last = [
        gate.with_remeasurement(
            found,
            lambda same: paired_ratio(*machine.times(change * true[same.case], 2 * pairs), outcome.confidence),
            outcome.confidence,
        )
        for found in looks
    ]
    return sum(found.verdict == "slower" for found in last), len(looks)


def note() -> str:
    lines = []
    for arm, sigma, pairs in _NOISE:
        machine = Machine(5, sigma, arm)
        kinds = ((1.0, 50, 100), (1.0 + DEFAULT, 50, 40), (1.1, 50, 20))
        found = [sum(replayed(machine, change, rows, pairs)[0] for _ in range(runs)) for change, rows, runs in kinds]
        lines.append(f"| {arm:.1%} | {sigma:.0%} | {pairs} | {' | '.join(map(str, found))} |\n")
    lines.append(_REPLICATED_HEAD)
    for arm, processes in _REPLICATED:
        machine = Machine(5, 0.02, arm)
        kinds = ((1.0, 50, 100), (1.0 + DEFAULT, 50, 40), (1.1, 50, 20), (1.2, 50, 20))
        found = [sum(replayed(machine, change, rows, 40, processes)[0] for _ in range(runs)) for change, rows, runs in kinds]
        lines.append(f"| {arm:.1%} | {processes} | {' | '.join(map(str, found))} |\n")
    return _HEAD + "".join(lines) + _TAIL


if __name__ == "__main__":
    path = Path(sys.argv[1])
    _, section, measured = path.read_text().partition("\n## ") if path.exists() else ("", "", "")
    path.write_text(note() + section + measured)
