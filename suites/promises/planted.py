"""A known share of time added to a captured call: a kernel that only waits, long enough to make the replay 3 % longer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from pytest_ecornn.contract import Layer
from pytest_ecornn.measurement.clocks import CudaGraphTimer
from pytest_ecornn.measurement.measurement import measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.results.statistics import Ratio, paired_ratio
from pytest_ecornn.suites.promises.captured import CapturedImplementation, capture
from pytest_ecornn.system.graphs import GraphCapture

SHARE = 0.03
TOLERANCE = 0.003  # of the share that is really planted
_CYCLES = (4_000, 84_000)  # two lengths through which a line is drawn
_SLEEPS = 32  # in one graph
_REPLAYS, _TIMES = 8, 9


@dataclass(frozen=True)
class SpinKernelModel:
    """How long the waiting kernel takes within a graph, its launch included."""

    fixed_us: float
    us_per_cycle: float

    @classmethod
    def fit_two_points(cls, short: tuple[int, float], long: tuple[int, float]) -> SpinKernelModel:
        """Fits the line through two points (cycles, us). Raises ValueError where more cycles do not take longer."""
        slope = (long[1] - short[1]) / (long[0] - short[0])
        if slope <= 0:
            raise ValueError(f"expected a longer wait to take longer, got {short} and {long} (cycles, us)")
        return cls(short[1] - slope * short[0], slope)

    def cycles(self, wanted_us: float) -> int:
        return max(1, round((wanted_us - self.fixed_us) / self.us_per_cycle))

    def refine(self, cycles: int, ratio: float, plain_us: float) -> int:
        """Returns the cycles to try next, after `cycles` made the time `ratio` times as long."""
        return max(1, cycles + round((1 + SHARE - ratio) * plain_us / self.us_per_cycle))


def is_planted(ratio: float) -> bool:
    return abs(ratio - 1 - SHARE) <= TOLERANCE


def measure_sleep(device: str) -> SpinKernelModel:
    short, long = ((cycles, _sleep_us(cycles, device)) for cycles in _CYCLES)
    return SpinKernelModel.fit_two_points(short, long)


def _sleep_us(cycles: int, device: str) -> float:
    def sleeps() -> None:
        for _ in range(_SLEEPS):
            torch.cuda._sleep(cycles)

    capturing = GraphCapture(device)
    capturing.warm_up(sleeps)
    graph, _ = capturing.capture(sleeps)
    clock, replays = CudaGraphTimer(device), [graph.replay] * _REPLAYS
    clock.time(replays)
    return median(clock.time(replays) for _ in range(_TIMES)) / (_REPLAYS * _SLEEPS) * 1e6


def inject_slowdown(
    plain: CapturedImplementation, name: str, pool: InputPool, sleep: SpinKernelModel, seconds: float
) -> tuple[CapturedImplementation, Ratio]:
    """Returns `plain` with SHARE planted, and the measured ratio of the two; calibrates once more where that is off."""
    case = plain.called.candidate.case
    plain_us = _time_us(plain, seconds)
    cycles = sleep.cycles(SHARE * plain_us)
    planted = capture(name, case, pool, partial(_sleeping, cycles))
    ratio = ratio_of(planted, plain, seconds)
    if not is_planted(ratio.ratio):
        planted = capture(name, case, pool, partial(_sleeping, sleep.refine(cycles, ratio.ratio, plain_us)))
        ratio = ratio_of(planted, plain, seconds)
    return planted, ratio


def _sleeping(cycles: int, layer: Layer) -> Layer:
    def sleeping(*given: Any) -> Any:
        torch.cuda._sleep(cycles)
        return layer(*given)

    return sleeping


def _time_us(one: CapturedImplementation, seconds: float) -> float:
    arm = one.arm()
    measure([arm], CudaGraphTimer(one.device), seconds, lambda: False)
    return median(arm.samples_us)


def ratio_of(one: CapturedImplementation, other: CapturedImplementation, seconds: float) -> Ratio:
    """The time of `one` over that of `other`, from as many rounds as fit into so many seconds."""
    arms = [one.arm(), other.arm()]
    measure(arms, CudaGraphTimer(one.device), seconds, lambda: False)
    return paired_ratio(arms[0].samples_us, arms[1].samples_us)
