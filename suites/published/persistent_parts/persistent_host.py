"""Measures persistent_gpu's cost on the host: a call of a short sequence until it returns, and a kernel's first use.

The first call that a process measures takes longer than the same call later, whichever it is: so each implementation's first is
measured once before all others, and thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement.clocks import CudaEventTimer, Timer
from pytest_ecornn.reporting.markdown_syntax import document
from pytest_ecornn.results.statistics import median_interval
from pytest_ecornn.suites.promises import first_use
from pytest_ecornn.suites.published.common.bars import MaxTarget, Times
from pytest_ecornn.suites.published.common.case_times import call_of, prepared
from pytest_ecornn.suites.published.common.figure_rows import Row, render_rows
from pytest_ecornn.suites.published.common.item_rows import measure_each
from pytest_ecornn.verification.verification import Candidate

OURS, BASELINE = "persistent_gpu", "cudnn"
# One step is a kernel alone, more are a product and a kernel.
CALLED = tuple(f"lstm-T{steps}-B8-H512-{dtype}-cuda" for steps in (1, 2) for dtype in ("float16", "float32"))
# The first in a process, for which cuBLAS and autograd load what they need; then other sizes, of one pass and of both.
FIRST_USED = (
    "lstm-T35-B8-H512-float16-cuda-training", "lstm-T35-B8-H640-float16-cuda", "lstm-T35-B8-H576-float16-cuda-training",
)  # fmt: skip
CALL_BAR_US = MaxTarget(30.0)
FIRST_BARS_S = {first_use.COLD: MaxTarget(5.0), first_use.WARM: MaxTarget(0.05)}
_GROUPS, _CALLS = 20, 100  # of calls, whose median is a sample


def measure(deadline: float) -> Iterator[Row]:
    """The calls, then the first uses; of what begins after `deadline` (of time.monotonic) only the reason."""
    for _ in measure_each(product((OURS, BASELINE), CALLED[:1]), deadline, _called, _without):
        pass  # the process is warm now
    yield from measure_each(product((OURS, BASELINE), CALLED), deadline, _called, _without)
    for rows in measure_each([FIRST_USED], deadline, _first_uses, lambda cases, why: [_no_first_use(why)]):
        yield from rows


def _without(call: tuple[str, str], why: str) -> Row:
    name, case = call
    return Row(f"a call of {name}", case, "us", reason=why)


def _called(call: tuple[str, str]) -> Row:
    name, text = call
    candidate = prepared(Case.parse(text), [name])[name]
    if isinstance(candidate, str):
        return _without(call, candidate)
    found = host_us(candidate, CudaEventTimer(candidate.case.device))
    return replace(_without(call, ""), found=found, bar=CALL_BAR_US if name == OURS else None)


def host_us(candidate: Candidate, clock: Timer) -> Times:
    """The device is waited for between calls, never in one."""
    call = call_of(candidate)
    with torch.no_grad():
        taken = [clock.host_us([call] * _CALLS) for _ in range(_GROUPS + 1)]
    return median_interval([us for us in taken[1:] if us is not None])


def _first_uses(cases: Sequence[str]) -> list[Row]:
    return first_uses(first_use.measure(OURS, cases))


def first_uses(figures: first_use.ColdStartFigures) -> list[Row]:
    """Build and first call, until the device is done, by what was on disk. Of a process's first no bar is asked from disk."""
    rows = []
    for i, one in enumerate(figures.firsts):
        is_first = i == 0 or one.disk != figures.firsts[i - 1].disk
        bar = None if is_first and one.disk == first_use.WARM else FIRST_BARS_S[one.disk]
        what = f"first use{' in the process' * is_first}, {one.disk}"
        rows.append(Row(what, one.case, "s", (one.seconds,) * 3, bar))
    return rows + ([_no_first_use(figures.reason)] if figures.reason else [])


def _no_first_use(why: str) -> Row:
    return Row("first use", ", ".join(FIRST_USED), "s", reason=why)


def render(rows: Sequence[Row]) -> str:
    text = (
        "Calls: inference, until a call returns, the device idle before and not waited for within; median of "
        f"{_GROUPS} medians of {_CALLS} calls, with its interval (99 %). What a process measures first takes longer: each "
        "implementation's first row was measured once before, and thrown away. First use: build and first call in a fresh "
        "process until the device is done, compiled there or found on disk; CUDA, cuBLAS, NVRTC and CuPy are ready before, "
        "but for the first in the process not the products that cuBLAS loads for its type, nor autograd's thread."
    )
    return document(["## The host's time", text, render_rows(rows)])
