"""Verdicts of the device-only column on times whose ratio is known: the same call under two names, and one 3 % longer.

A case's calls are captured once. Each trial measures fresh arms over these graphs, as a row does, and stops as a row does.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch

from pytest_ecornn.contract import Case, Layer, Unsupported
from pytest_ecornn.measurement.capture import graph_arms
from pytest_ecornn.measurement.clocks import CudaEventTimer, CudaGraphTimer
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import Arm, measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import Graph, GraphArm
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.statistics import Ratio, median_interval, paired_ratio
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.system.error_line import error_line, first_line
from pytest_ecornn.system.graphs import GraphCapture, NotCaptured
from pytest_ecornn.verification.verification import Candidate

SHARE = 0.03
TOLERANCE = 0.003  # of the share that is really planted
_CYCLES = (4_000, 84_000)  # two lengths through which a line is drawn
_SLEEPS = 32  # in one graph
_REPLAYS, _TIMES = 8, 9
CASES = (
    ("sequential", "lstm-T8-B4-H64-float32-cuda"),
    ("sequential", "gru-T12-B16-H128-float32-cuda-training"),
    ("transposed_gpu", "lstm-T35-B32-H200-L2-float16-cuda"),
    ("transposed_gpu", "lstm-T35-B32-H650-L2-float32-cuda-training"),
    ("cudnn", "lstm-T35-B64-H512-float32-cuda"),
    ("cudnn", "lstm-T35-B32-H650-L2-bfloat16-cuda-training"),
)
SAME, PLANTED = "two names", f"{SHARE:.0%} planted"
WANTED = {SAME: "same", PLANTED: "slower"}
MAX_ERROR_RATE = 0.01
BUDGET = 2.0
VERDICTS = ("same", "slower", "faster", "unclear")
_CALLED_SECONDS = 0.05


@dataclass(frozen=True)
class CapturedImplementation:
    """called: the arm as a row's first column has it, measured."""

    called: Arm
    graphs: Sequence[Graph]
    case: Case

    @property
    def device(self) -> str:
        return self.called.candidate.device

    def arm(self) -> GraphArm:
        """A fresh arm of a device-only column, without samples, over the same graphs."""
        return GraphArm(self.called.candidate, self.called.pool, self.graphs)


def capture(
    name: str, case: Case, pool: InputPool, change: Callable[[Layer], Layer] = lambda layer: layer
) -> CapturedImplementation:
    """`change` makes of the layer what is timed. Raises Unsupported or NotCaptured; a wrong result is not found out."""
    kind = discover([])[name].cls
    if reason := kind().refusal(case):
        raise Unsupported(reason)
    candidate = Candidate.build(name, kind, case)
    candidate.layer = change(candidate.layer)
    called = Arm(candidate, pool)
    measure([called], CudaEventTimer(case.device), _CALLED_SECONDS, lambda: True)
    arms, missing = graph_arms([called])
    if missing:
        raise NotCaptured(missing[0])
    return CapturedImplementation(called, arms[0].graphs, case)


def reason_of(error: Exception) -> str:
    """Why there is nothing to measure, in one line."""
    return first_line(error) if isinstance(error, (Unsupported, NotCaptured)) else error_line(error)


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
    case = plain.case
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


@dataclass
class Tally:
    """One case's verdicts. measured: the ratio as measured by itself, in more rounds than a verdict takes."""

    name: str
    case: str
    what: str
    verdicts: Counter[str] = field(default_factory=Counter)
    ratios: list[float] = field(default_factory=list)
    measured: Ratio | None = None
    reason: str = ""

    def add(self, verdict: str, ratio: float) -> None:
        self.verdicts[verdict] += 1
        self.ratios.append(ratio)


def shares(trials: int, cases: int) -> list[int]:
    """The trials spread over the cases, as evenly as they can be."""
    return [trials // cases + (number < trials % cases) for number in range(cases)]


def count_correct(tallies: Sequence[Tally], what: str) -> tuple[int, int]:
    """How many verdicts were as wanted, and how many there were."""
    counted = sum((one.verdicts for one in tallies if one.what == what), Counter[str]())
    return counted[WANTED[what]], counted.total()


def measure_all(trials: int, budget: float = BUDGET) -> Iterator[Tally]:
    """Yields both tallies of each case; over all cases, either kind of tally has `trials` verdicts."""
    sleep = measure_sleep("cuda")
    for (name, text), count in zip(CASES, shares(trials, len(CASES)), strict=True):
        if count:
            yield from _of_case(name, Case.parse(text), count, sleep, budget)


def _of_case(name: str, case: Case, count: int, sleep: SpinKernelModel, budget: float) -> Iterator[Tally]:
    pool, what, seconds = InputPool(case), SAME, budget / 4
    try:
        plain, again = (capture(name, case, pool) for _ in range(2))
        yield _judged(Tally(name, str(case), what, measured=ratio_of(again, plain, seconds)), again, plain, count, budget)
        what = PLANTED
        planted, ratio = inject_slowdown(plain, name, pool, sleep, seconds)
        yield _judged(Tally(name, str(case), what, measured=ratio), planted, plain, count, budget)
    except Exception as error:  # one case's failure must not end the others' measurement
        yield Tally(name, str(case), what, reason=reason_of(error))


def _judged(found: Tally, row: CapturedImplementation, baseline: CapturedImplementation, count: int, budget: float) -> Tally:
    with frozen_gc():
        for _ in range(count):
            column = TimingColumn([row.arm(), baseline.arm()], CudaGraphTimer(row.device))
            column.measure(budget)
            against = column.against()[0]
            found.add(against.verdict, against.ratio)
    return found


@contextmanager
def frozen_gc() -> Iterator[None]:
    """Exempts existing objects from garbage collection: to search them before a measurement takes longer than it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def render(tallies: Sequence[Tally]) -> str:
    if not tallies:
        return ""
    header = ("implementation", "case", "what", "ratio by itself", "ratios of verdicts", "trials", *VERDICTS)
    reasons = [f"- {one.name}, {one.case}: {escape(one.reason)}" for one in tallies if one.reason]
    return document(
        [
            "## Verdicts on known ratios",
            f"Device only, stopped at the first decided verdict or after {BUDGET:g} s. A ratio by itself comes from a longer "
            "measurement and has its interval; beside it the median of the verdicts' ratios, its interval in brackets.",
            table(header, [_cells(one) for one in tallies if not one.reason], header[3:]),
            "\n".join(reasons),
        ]
    )


def _cells(one: Tally) -> list[str]:
    measured = ratio_interval(one.measured.ratio, one.measured.low, one.measured.high) if one.measured else "-"
    is_off = one.what == PLANTED and one.measured is not None and not is_planted(one.measured.ratio)
    ratios = ratio_interval(*median_interval(one.ratios)) if one.ratios else "-"
    counts = [str(one.verdicts.total()), *(str(one.verdicts[verdict]) for verdict in VERDICTS)]
    return [one.name, one.case, one.what, measured + " (off)" * is_off, ratios, *counts]


def share_text(count: int, of: int) -> str:
    """A count as a share of all."""
    return f"{count} of {of} ({count / of:.1%})" if of else "none"
