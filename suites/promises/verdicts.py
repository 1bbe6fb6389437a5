"""Verdicts of the device-only column on times whose ratio is known: the same call under two names, and one 3 % longer.

A case's calls are captured once. Each trial measures fresh arms over these graphs, as a row does, and stops as a row does.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pytest_ecornn.contract import DTYPES, Case
from pytest_ecornn.measurement.clocks import CudaGraphTimer
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import ratio_interval
from pytest_ecornn.results.statistics import Ratio, median_interval
from pytest_ecornn.suites.promises.captured import CapturedImplementation, capture, reason_of
from pytest_ecornn.suites.promises.planted import SHARE, SpinKernelModel, inject_slowdown, is_planted, measure_sleep, ratio_of

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
_NO_FLOOR = Ceilings({1: 1e9}, {1: 1e9}, dict.fromkeys(DTYPES, 1e12))


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
            against = column.timing(_NO_FLOOR).against[0]
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
    return [one.name, one.case, one.what, measured + (" (off)" if is_off else ""), ratios, *counts]


def share_text(count: int, of: int) -> str:
    """A count as a share of all."""
    return f"{count} of {of} ({count / of:.1%})" if of else "none"
