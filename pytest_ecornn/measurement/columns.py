"""One column of a row's times: the candidate and its baselines, measured by one clock, and what is published of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Generic, TypeVar

from pytest_ecornn.contract import Cost
from pytest_ecornn.measurement import roofline
from pytest_ecornn.measurement.clocks import SettingsClock, Timer
from pytest_ecornn.measurement.measurement import Timeable, measure
from pytest_ecornn.measurement.noise.baselines import BaselineProbe
from pytest_ecornn.measurement.noise.bounds import is_disturbed
from pytest_ecornn.measurement.noise.watch import Watch
from pytest_ecornn.results import statistics
from pytest_ecornn.results.rows import BaselineRatio, Disturbance, Timing
from pytest_ecornn.results.statistics import CONFIDENCE, MIN_PAIRS, Ratio
from pytest_ecornn.system.locking import own_time
from pytest_ecornn.system.sensors import GpuTelemetry

AnyArm = TypeVar("AnyArm", bound=Timeable)
MAX_REPEATED_ROUNDS = 16  # of a column
_SHORT = 0.3  # of a block's calls, once others disturb or the host wanders


class TimingColumn(Generic[AnyArm]):
    """`arms`: the candidate's first, then its baselines'. confidence: of the interval of a ratio to a baseline.

    probe: has timed the baselines alone.
    """

    def __init__(
        self, arms: Sequence[AnyArm], clock: Timer, confidence: float = CONFIDENCE, probe: BaselineProbe | None = None
    ):
        self.arms, self._clock, self._confidence, self._probe = arms, clock, confidence, probe
        self._sensors, self._watch = GpuTelemetry(arms[0].candidate.device), Watch(clock, arms)
        self._has_short_blocks, self._end = False, 0.0

    def measure(self, budget: float, pairs: int = 0) -> None:
        """Measures until every verdict is decided, from `pairs` pairs at least, or the budget of seconds is spent.

        Then the baselines are timed alone; what that leaves undecided, but not for good, is measured for the rest.
        """
        end = own_time() + budget

        def is_decided() -> bool:
            against = self.against()
            return all(statistics.is_conclusive(one.verdict) and len(one.samples_us) >= pairs for one in against)

        with self._watch as clock:
            self._measure(clock, budget, is_decided)
            if self._probe:
                times_us = [one.time_us for one in self.against()]
                self._probe.time_after(self.arms[1:], times_us)
                margin, left = self._clock.equivalence_margin, end - own_time()
                if left > 0 and not is_decided() and any(one.budget_factor(margin) < inf for one in self.against()):
                    self._measure(clock, left, is_decided)

    def measure_full_budget(self, budget: float) -> Ratio:
        """Measures for all of the budget. Returns the ratio of the candidate to its first baseline."""
        with self._watch as clock:
            self._measure(clock, budget, lambda: False)
        blocks, baseline = (self._watch.bounds(arm, self._watch.disturbance()) for arm in self.arms[:2])
        return blocks.ratio_to(baseline, self._confidence)

    def _measure(self, clock: Timer, budget: float, is_decided: Callable[[], bool]) -> None:
        self._end = own_time() + budget
        measure(self.arms, SettingsClock(clock), budget, is_decided, self._after_round, self._after_block)

    def _after_block(self, arm: Timeable) -> None:
        self._watch.after_block(arm)
        self._sensors.sample()

    def _after_round(self) -> bool:
        """Whether the round counts. One in which a GPU slowed down is dropped, a number of times and while the budget lasts.

        Shortens blocks once: a short one is likelier to end before another process takes its processor. Where the host's
        speed comes in spells, two short blocks are likelier than long ones to fall into the same.
        """
        is_repeatable = self._sensors.rounds["repeated_rounds"] < MAX_REPEATED_ROUNDS and own_time() < self._end
        if not self._sensors.end_round(is_repeatable):
            for arm in self.arms:
                del arm.samples_us[-1]
                self._watch.drop_block(arm)
            return False
        if not self._has_short_blocks and (is_disturbed(self._watch.disturbance()) or self._is_wandering()):
            self._has_short_blocks = True
            for arm in self.arms:
                arm.calls = max(1, round(arm.calls * _SHORT))
        return True

    def _is_wandering(self) -> bool:
        """Whether pairs differ by more than what counts as the same."""
        samples = [arm.samples_us for arm in self.arms[:2]]
        if len(samples) < 2 or len(samples[0]) < MIN_PAIRS:
            return False
        return statistics.pair_noise(*samples) > self._clock.equivalence_margin

    def timing(
        self, cost: Cost, floor_us: float, peak_bytes: int | None = None, host_us: float | None = None, number: int = 0
    ) -> Timing:
        """The candidate's timing, or that of another arm by its number.

        cost: of a call. floor_us: the least that any algorithm takes on this machine.
        """
        arm = self.arms[number]
        found, waits = self._watch.disturbance(), self._watch.waits(arm)
        time_us, low, high = self._watch.bounds(arm, found).interval()
        gb_per_s, gflop_per_s = roofline.achieved(cost, time_us)
        return Timing(
            time_us, low, high, arm.samples_us, arm.calls, self._clock.name, self.against(number), arm.candidate.build_ms,
            peak_bytes, cost.bytes, cost.operations, gb_per_s, gflop_per_s, floor_us, floor_us / time_us, host_us,
            self._sensors.summary(), list(waits.lost), list(waits.delayed), found, arm.candidate.first_call_ms,
        )  # fmt: skip

    def against(self, number: int = 0) -> list[BaselineRatio]:
        """The ratios of an arm to all others so far, with what the machine's load is known to have cost."""
        disturbance, candidate = self._watch.disturbance(), self.arms[number]
        return [self._compared(candidate, arm, disturbance) for arm in self.arms if arm is not candidate]

    def _compared(self, candidate: Timeable, baseline: Timeable, disturbance: Disturbance | None) -> BaselineRatio:
        blocks, others = (self._watch.bounds(arm, disturbance) for arm in (candidate, baseline))
        ratio, waits = blocks.ratio_to(others, self._confidence), self._watch.waits(baseline)
        against = BaselineRatio(
            baseline.candidate.name, others.interval()[0], ratio.ratio, ratio.low, ratio.high, "unclear",
            list(baseline.samples_us), list(waits.lost), list(waits.delayed),
        )  # fmt: skip
        doubts = self._probe.doubts(against.baseline, against.time_us) if self._probe else []
        against.add_doubts(doubts, self._clock.equivalence_margin)
        return against
