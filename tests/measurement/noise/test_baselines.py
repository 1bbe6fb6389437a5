"""A baseline's time before a candidate is built and after its row: what lasts is told, and noise is not."""

from __future__ import annotations

import time

import pytest

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.noise import baselines
from pytest_ecornn.measurement.noise.baselines import Alone, BaselineProbe
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reporting import answer
from pytest_ecornn.results.rows import BaselineRatio, Timing
from pytest_ecornn.selfcheck._correct_layers import Loop
from pytest_ecornn.verification.guards.background import ThreadGuard
from pytest_ecornn.verification.verification import Candidate

CASE = Case(cell="gru", steps=4, batch=2, hidden_size=8)


@pytest.mark.parametrize(
    ("before", "after", "ratio"),
    [
        ([10.0] * 8, [13.4] * 8, 1.34),
        ([10.0] * 8, [10.9] * 8, 1.0),
        ([10.0] * 8, [8.0] * 8, 0.8),
        ([10.0, 14.0] * 4, [12.0, 15.0] * 4, 1.0),
        ([10.0] * 7 + [90.0], [13.0] * 8, 1.3),
        ([10.0, 20.0], [15.0, 16.0], 1.0),
    ],
)
def test_only_blocks_that_lie_apart_differ(before: list[float], after: list[float], ratio: float) -> None:
    assert Alone(after).ratio_to(Alone(before)) == pytest.approx(ratio)


@pytest.mark.parametrize(
    ("later_seconds", "samples_us", "doubt"),
    [(0.01, [1.0] * 3, "times as long after the candidate was built"), (0.0, [1e7] * 8, "times as long")],
    ids=["it has become slower", "by turns alone"],
)
def test_a_baseline_that_is_slow_is_doubted(later_seconds: float, samples_us: list[float], doubt: str) -> None:
    baseline = Candidate.build("loop", Loop, CASE)
    probe = BaselineProbe([baseline], InputPool(CASE), WallTimer(), ThreadGuard(), budget=1.0)
    own = baseline.layer
    baseline.layer = lambda *given: (time.sleep(later_seconds), own(*given))[1]
    assert doubt in probe.doubts([Arm(baseline, InputPool(CASE), samples_us=samples_us)])["loop"]


def test_a_doubted_verdict_is_unclear_and_nothing_is_bold() -> None:
    against = BaselineRatio("loop", 1.0, 0.5, 0.49, 0.51, "faster", [1.0] * 8)
    timing = Timing(0.5, 0.49, 0.51, [0.5], 1, "", [against], 0, None, 1, 1, 1, 1, 0, 0)
    baselines.apply_doubts({"loop": "loop took 1.34 times as long"}, timing)
    assert (against.verdict, against.doubt) == ("unclear", "loop took 1.34 times as long")
    baselines.apply_doubts({"loop": "never"}, None)
    entrant = answer.Entrant("mine", 0.5, 0.49, 0.51, (against,))
    assert not answer._is_slower(answer.Entrant("loop", 1.0, 0.9, 1.1), entrant)
