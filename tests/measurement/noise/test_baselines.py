"""A baseline's times without its candidate: what differs widens the ratio's interval, by so much and no more."""

from __future__ import annotations

import time

import numpy as np
import pytest

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.clocks import WallTimer
from pytest_ecornn.measurement.measurement import Arm
from pytest_ecornn.measurement.noise.baselines import PLACES, Alone, BaselineProbe
from pytest_ecornn.measurement.noise.bounds import TimedBlockBounds
from pytest_ecornn.measurement.noise.watch import MachineLoad
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.reporting import answer
from pytest_ecornn.results.rows import BaselineRatio, Doubt
from pytest_ecornn.selfcheck._correct_layers import Loop
from pytest_ecornn.verification.guards.background import ThreadGuard
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.fake_graphs import CountingClock, built, fake_graph
from tests.helpers.reporting_samples import BUSY, QUIET

CASE = Case(cell="gru", steps=4, batch=2, hidden_size=8)


def certain(times_us: list[float]) -> TimedBlockBounds:
    return TimedBlockBounds.of(times_us, [], [], QUIET)


@pytest.mark.parametrize(
    ("alone", "ratio"),
    [
        ([13.4] * 8, 1.34),
        ([10.4] * 8, None),
        ([10.6] * 8, 1.06),
        ([8.0] * 8, 0.8),
        ([10.0] * 19 + [90.0], None),
        ([9.0, 11.0] * 4, 1.0),
    ],
    ids=["slower", "within the margin", "beyond the margin", "quicker", "one outlier", "too noisy to tell"],
)
def test_what_is_not_the_same_as_beside_the_candidate_is_a_doubt(alone: list[float], ratio: float | None) -> None:
    doubts = Alone.of(certain(alone)).doubts("before", 10.0, 0.05)
    assert [one.ratio for one in doubts] == ([] if ratio is None else [pytest.approx(ratio)])
    assert all(one.low <= one.ratio <= one.high for one in doubts)


def test_what_others_may_have_cost_a_time_alone_is_in_its_interval() -> None:
    """So a baseline that was as slow before, but beside other processes, bears out no "faster"."""
    doubts = Alone.of(TimedBlockBounds.of([10.0] * 12, [0.4] * 12, [0.0] * 12, BUSY)).doubts("before", 10.0, 0.05)
    assert doubts[0].low < 0.6


def test_neighbours_that_are_alike_count_as_few() -> None:
    """In each spell of eight blocks the host has another speed."""
    speeds = np.random.default_rng(0).uniform(1.0, 2.0, 16)
    spells, blocks = np.repeat(speeds, 8).tolist(), np.random.default_rng(1).uniform(1.0, 2.0, 128).tolist()
    widths = [one.high / one.low for one in (Alone.of(certain(spells)), Alone.of(certain(blocks)))]
    assert widths[0] > 1.3 > widths[1]


def test_a_baseline_that_a_candidate_slows_for_good_was_quicker_before() -> None:
    baseline = Candidate.build("loop", Loop, CASE)
    arm, own = Arm(baseline, InputPool(CASE), threads=ThreadGuard()), baseline.layer
    probe = BaselineProbe([arm], WallTimer(), budget=1.0)
    baseline.layer = lambda *given: (time.sleep(0.01), own(*given))[1]
    beside = Arm(baseline, InputPool(CASE), calls=1, threads=ThreadGuard())
    for _ in range(3):
        beside.block(WallTimer(), is_settled=False)
    beside_us = float(np.median(beside.samples_us))
    probe.time_after([beside], [beside_us])
    doubt = probe.doubts("loop", beside_us)[0]
    assert doubt.cause == "before"
    assert doubt.high < 0.9


def test_a_baseline_that_a_candidate_slows_while_they_take_turns_is_quicker_before_and_after() -> None:
    baseline = Candidate.build("loop", Loop, CASE)
    probe = BaselineProbe([Arm(baseline, InputPool(CASE), threads=ThreadGuard())], WallTimer(), budget=1.0)
    beside = Arm(baseline, InputPool(CASE), calls=10, threads=ThreadGuard())
    probe.time_after([beside], [1e7])
    doubts = probe.doubts("loop", 1e7)
    assert [one.cause for one in doubts] == ["before", "after"]
    assert all(one.high < 0.9 for one in doubts)


def test_device_only_times_are_doubted_by_replays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replay takes 2 ms. Before, other graphs were timed, which may differ by their places in memory."""
    monkeypatch.setattr(MachineLoad, "load", lambda self: None)  # other tests run beside
    candidate, pool = built("gru-T4-B2-H8-float32")
    arms = [GraphArm(candidate, pool, [fake_graph(candidate, pool) for _ in range(2)]) for _ in range(2)]
    clock = CountingClock()
    probe = BaselineProbe(arms[:1], clock, 0.1, PLACES)
    arms[1].calibrate(clock)
    probe.time_after(arms[1:], [2000.0])
    assert probe.doubts("sequential", 2000.0) == []
    assert [one.cause for one in probe.doubts("sequential", 2100.0)] == ["after"]
    assert [one.cause for one in probe.doubts("sequential", 3000.0)] == ["before", "after"]


def ratio(low: float, high: float, *doubts: Doubt) -> BaselineRatio:
    middle = (low * high) ** 0.5
    found = BaselineRatio("loop", 1.0, middle, low, high, "unclear", [1.0] * 8)
    found.add_doubts(doubts, 0.05)
    return found


QUICKER, SLOWER = Doubt("after", 0.72, 0.71, 0.73), Doubt("before", 1.4, 1.35, 1.45)


@pytest.mark.parametrize(
    ("low", "high", "doubt", "expected"),
    [
        (0.0057, 0.0073, QUICKER, "faster"),
        (0.6, 0.66, QUICKER, "faster"),
        (0.8, 0.85, QUICKER, "unclear"),
        (0.97, 1.03, QUICKER, "unclear"),
        (1.2, 1.25, QUICKER, "slower"),
        (1.2, 1.25, SLOWER, "unclear"),
        (1.6, 1.7, SLOWER, "slower"),
        (0.8, 0.85, SLOWER, "faster"),
    ],
)
def test_faster_holds_against_the_quickest_and_slower_against_the_slowest(
    low: float, high: float, doubt: Doubt, expected: str
) -> None:
    found = ratio(low, high, doubt)
    assert found.verdict == expected
    assert found.doubts == [doubt]
    assert found.doubt == doubt.describe("loop")
    assert "0.72 (0.71 to 0.73) times as long alone after" in QUICKER.describe("loop")


def test_doubts_of_several_causes_widen_both_ends_once() -> None:
    found = ratio(1.0, 1.0, QUICKER, SLOWER, QUICKER)
    assert (found.low, found.high) == (pytest.approx(1 / 1.45), pytest.approx(1 / 0.71))


@pytest.mark.parametrize(
    ("low", "high", "doubt", "expected"),
    [
        (0.81, 1.0, None, "faster"),
        (0.93, 1.075, None, "same"),
        (1.0, 1.23, None, "slower"),
        (0.9, 1.007, None, None),
        (0.64, 1.0, QUICKER, None),
        (0.45, 0.65, QUICKER, "faster"),
    ],
)
def test_more_budget_decides_what_it_is_said_to_decide(
    low: float, high: float, doubt: Doubt | None, expected: str | None
) -> None:
    """An interval of so many times the pairs is narrower by the root."""
    doubts = [doubt] if doubt else []
    found = ratio(low, high, *doubts)
    times = found.budget_factor(0.05)
    if expected is None:
        assert times > 100
        return
    for factor, word in ((1.05 * times, expected), (0.9 * times, "unclear")):
        narrower = (found.ratio * (bound / found.ratio) ** factor**-0.5 for bound in (low, high))
        assert ratio(*narrower, *doubts).verdict == word


def test_of_a_doubted_ratio_nothing_is_bold() -> None:
    entrant = answer.Entrant("mine", 0.8, 0.79, 0.81, (ratio(0.79, 0.81, QUICKER),))
    assert not answer._is_slower(answer.Entrant("loop", 1.0, 0.9, 1.1), entrant)
