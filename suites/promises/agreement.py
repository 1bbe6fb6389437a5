"""The harness's device-only time beside triton's `do_bench` of the same graphs in the same order; a call's time on the host.

`do_bench` zeroes 256 MB before each call that it times, so that call finds the L2 cold, weights included; the harness changes
inputs and keeps weights. So what it is given replays all graphs of the arm so often that this weighs little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.clocks import CudaEventTimer, CudaGraphTimer
from pytest_ecornn.measurement.measurement import measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.reporting.markdown_syntax import document, escape, table
from pytest_ecornn.results.formatting import ratio_interval, significant
from pytest_ecornn.results.statistics import MIN_PAIRS, Ratio, paired_ratio
from pytest_ecornn.suites.promises.verdicts import CapturedImplementation, capture, reason_of

DoBench = Callable[..., Any]
CASES = {
    "lstm-T35-B32-H650-L2-float32-cuda": ("transposed_gpu", "cudnn"),
    "lstm-T35-B64-H512-float32-cuda-training": ("transposed_gpu", "cudnn"),
    "lstm-T35-B32-H650-L2-bfloat16-cuda-training": ("transposed_gpu", "cudnn"),
    "gru-T35-B16-H128-float32-cuda": ("sequential",),
}
TURNS = MIN_PAIRS
MAX_DIFFERENCE = 0.03
MIN_US = 200.0  # below, what lies between two replays weighs too much
_CALL_MS = 50.0  # that do_bench is given to time
_SHORT_MS, _REPEAT_MS = 1, 400


@dataclass(frozen=True)
class Row:
    """Times of one call. ratio: the harness's time over do_bench's. reason: why there is nothing, or nothing of do_bench."""

    case: str
    name: str
    reason: str = ""
    graphs: int = 0
    called_us: float = 0.0
    host_us: float = 0.0
    harness_us: float = 0.0
    do_bench_us: float = 0.0
    ratio: Ratio | None = None

    @property
    def is_judged(self) -> bool:
        return self.ratio is not None and self.harness_us >= MIN_US

    @property
    def difference(self) -> float:
        return abs(self.ratio.ratio - 1) if self.ratio else 0.0


def measure_all(turns: int = TURNS) -> Iterator[Row]:
    """A row for each implementation of CASES."""
    do_bench = triton_do_bench()
    for text, names in CASES.items():
        for name in names:
            yield row(Case.parse(text), name, do_bench, turns)


def triton_do_bench() -> DoBench | str:
    """The function, or why there is none; tried out, since it needs a compiler for C at its first call."""
    try:
        from triton.testing import do_bench

        do_bench(torch.ones(1, device="cuda").neg_, warmup=1, rep=1, return_mode="median")
    except Exception as error:
        return f"no do_bench: {reason_of(error)}"
    found: DoBench = do_bench
    return found


def row(case: Case, name: str, do_bench: DoBench | str, turns: int) -> Row:
    """Both in turns, every other turn the other way round."""
    try:
        return _timed(capture(name, case, InputPool(case)), do_bench, turns)
    except Exception as error:  # one row's failure must not end the others' measurement
        return Row(str(case), name, reason_of(error))


def _timed(one: CapturedImplementation, do_bench: DoBench | str, turns: int) -> Row:
    case, name = str(one.case), one.called.candidate.name
    harness, other = list[float](), list[float]()
    sides = [(harness, harness_us)]
    if not isinstance(do_bench, str):
        sides.append((other, lambda one: do_bench_us(do_bench, one)))
    for turn in range(turns):
        for times, time_us in reversed(sides) if turn % 2 else sides:
            times.append(time_us(one))
    called_us, host_us = median(one.called.samples_us), one.called.host_us(CudaEventTimer(one.device)) or 0.0
    found = (len(one.graphs), called_us, host_us, median(harness))
    if isinstance(do_bench, str):
        return Row(case, name, do_bench, *found)
    return Row(case, name, "", *found, median(other), paired_ratio(harness, other))


def harness_us(one: CapturedImplementation) -> float:
    """One replay, as a row's device-only column has it after the fewest rounds."""
    arm = one.arm()
    measure([arm], CudaGraphTimer(one.device), 0.1, lambda: True)
    return median(arm.samples_us)


def do_bench_us(do_bench: DoBench, one: CapturedImplementation) -> float:
    """Time of one replay by do_bench, in microseconds; a timed call has enough rounds of all graphs to be long."""
    round_ms = _do_bench_ms(do_bench, one, 1, _SHORT_MS)
    rounds = ceil(_CALL_MS / round_ms)
    return _do_bench_ms(do_bench, one, rounds, _REPEAT_MS) * 1e3 / (rounds * len(one.graphs))


def _do_bench_ms(do_bench: DoBench, one: CapturedImplementation, rounds: int, repeat_ms: int) -> float:
    def around() -> None:
        for _ in range(rounds):
            for graph in one.graphs:
                graph.replay()

    return float(do_bench(around, warmup=_SHORT_MS, rep=repeat_ms, return_mode="median"))


def worst(rows: Sequence[Row]) -> Row | None:
    """The row of those judged where both differ most."""
    return max((one for one in rows if one.is_judged), key=lambda one: one.difference, default=None)


def render(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    measured = [one for one in rows if one.graphs]
    reasons = dict.fromkeys(_reason(one) for one in rows if one.reason)
    times = ("harness, us", "do_bench, us", "harness to do_bench")
    host = ("as called, us", "device only, us", "host, us")
    return document(
        [
            "## Device-only time beside triton's do_bench",
            "Both replay the same graphs in the same order. `do_bench` flushes the L2 before each call it times, so a call "
            "is many rounds of all graphs, its time divided by the number of replays. Medians of turns; the ratio with its "
            "interval.",
            table(("case", "implementation", "graphs", *times), map(_cells, measured), ("graphs", *times)),
            "## What a call costs the host",
            "As called. The host is free again after its time, while the device may still work.",
            table(("case", "implementation", *host), map(_host_cells, measured), host),
            "\n".join(reasons),
        ]
    )


def _reason(one: Row) -> str:
    """Without do_bench all rows have the same."""
    return f"- {escape(one.reason)}" if one.graphs else f"- {one.name}, {one.case}: {escape(one.reason)}"


def _cells(one: Row) -> list[str]:
    ratio = ratio_interval(one.ratio.ratio, one.ratio.low, one.ratio.high) if one.ratio else "-"
    mark = "" if one.is_judged or not one.ratio else f" (under {MIN_US:.0f} us, not judged)"
    do_bench = significant(one.do_bench_us, 4) if one.ratio else "-"
    return [one.case, one.name, str(one.graphs), significant(one.harness_us, 4), do_bench, ratio + mark]


def _host_cells(one: Row) -> list[str]:
    times = (one.called_us, one.harness_us, one.host_us)
    return [one.case, one.name, *(significant(value, 4) for value in times)]
