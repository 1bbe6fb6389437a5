"""One column of a row's times: the candidate and its baselines, measured by one clock, and what is published of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_ecornn import roofline, statistics
from pytest_ecornn.clocks import Clock
from pytest_ecornn.comparison import Comparison
from pytest_ecornn.contents import valid_steps
from pytest_ecornn.measurement import Timed, measure
from pytest_ecornn.roofline import Ceilings
from pytest_ecornn.rows import Against, Timing
from pytest_ecornn.sensors import Sensors
from pytest_ecornn.statistics import CONFIDENCE


class Column:
    """`arms`: the candidate's first, then its baselines'. confidence: of the interval of a ratio to a baseline."""

    def __init__(self, arms: Sequence[Timed], clock: Clock, confidence: float = CONFIDENCE):
        self._arms, self._clock, self._confidence = arms, clock, confidence
        self._sensors = Sensors(arms[0].candidate.case.device)

    def measure(self, budget: float, pairs: int = 0) -> None:
        """Until every verdict is decided, from so many pairs at least, or the budget of seconds is spent."""

        def is_decided() -> bool:
            return all(statistics.decided(one.verdict) and len(one.samples_us) >= pairs for one in self._against())

        self._measure(budget, is_decided)

    def measure_long(self, budget: float) -> tuple[list[float], list[float]]:
        """For all of the budget: the times of the candidate and of its first baseline."""
        self._measure(budget, lambda: False)
        return self._arms[0].samples_us, self._arms[1].samples_us

    def _measure(self, budget: float, is_decided: Callable[[], bool]) -> None:
        measure(self._arms, self._clock, budget, is_decided, self._sensors.sample)

    def verify(self) -> list[Comparison]:
        """The candidate's kept calls against the reference."""
        arm = self._arms[0]
        return arm.kept.verify(arm.candidate.implementation.declared)

    def timing(self, ceilings: Ceilings, peak_bytes: int | None = None, host_us: float | None = None) -> Timing:
        arm, case = self._arms[0], self._arms[0].candidate.case
        cost = arm.candidate.implementation.cost(case)
        time_us, low, high = statistics.median_interval(arm.samples_us)
        gb_per_s, gflop_per_s = roofline.achieved(cost, time_us)
        floor = roofline.floor_us(case, valid_steps(case), ceilings)
        return Timing(
            time_us, low, high, arm.samples_us, arm.calls, self._clock.name, self._against(), arm.candidate.build_ms,
            peak_bytes, cost.bytes, cost.operations, gb_per_s, gflop_per_s, floor, floor / time_us, host_us,
            self._sensors.summary(),
        )  # fmt: skip

    def _against(self) -> list[Against]:
        return [self._compared(arm) for arm in self._arms[1:]]

    def _compared(self, baseline: Timed) -> Against:
        ratio = statistics.paired_ratio(self._arms[0].samples_us, baseline.samples_us, self._confidence)
        time_us, _, _ = statistics.median_interval(baseline.samples_us)
        return Against(
            baseline.candidate.name, time_us, ratio.ratio, ratio.low, ratio.high,
            statistics.verdict(ratio, self._clock.smallest_difference), list(baseline.samples_us),
        )  # fmt: skip
