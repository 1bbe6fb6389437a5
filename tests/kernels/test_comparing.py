"""`compare`: functions in alternating blocks, their ratios, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pytest_ecornn import Case, Cost, KernelReport, WrongKernel, compare, load_report
from tests.helpers.foreign_kernels import KERNELS, random, softmax, softmax_reference
from tests.helpers.report_rows import report_row, timing


def inputs(seed: int) -> tuple[Tensor, ...]:
    return (random(seed, 16, 32),)


def slow(x: Tensor) -> Tensor:
    end = time.perf_counter() + 1e-3
    while time.perf_counter() < end:
        pass
    return softmax(x)


def test_each_function_has_a_row_with_ratios_to_the_others(tmp_path: Path) -> None:
    report = compare({"fast": softmax, "slow": slow}, inputs, budget=0.3, name="softmax")
    assert report.ratio("fast", than="slow").ratio < 0.7
    assert report.ratio("slow", than="fast").ratio > 1.5
    assert "softmax(x [16, 32] float32)" in str(report)
    assert "<pre" in report._repr_html_()
    assert [row.implementation for row in load_report(report.save(tmp_path)).rows] == ["fast", "slow"]
    assert KernelReport.load(tmp_path).ratio("fast", than="slow") == report.ratio("fast", than="slow")


def test_a_limit_holds_where_the_interval_does_not_exclude_it() -> None:
    rows = [report_row(name, Case.parse("gru-T1-B1-H8-float32"), timing=t) for name, t in TIMES.items()]
    report = KernelReport(rows)
    report.assert_not_slower("mine", than="theirs", by="5%")
    report.assert_not_slower("mine", than="theirs", by=0.05)
    with pytest.raises(AssertionError, match=r"mine takes .* times as long as theirs: expected at most 1\.03"):
        report.assert_not_slower("mine", than="theirs", by="3%")
    with pytest.raises(ValueError, match="expected two of mine, theirs that took turns, got 'mine' and 'other'"):
        report.assert_not_slower("mine", than="other")
    with pytest.raises(ValueError, match=r"by: expected a share as 0\.05 or '5%', got 'a lot'"):
        report.assert_not_slower("mine", than="theirs", by="a lot")


TIMES = {"mine": timing(104.0, theirs=100.0), "theirs": timing(100.0, mine=104.0)}


def test_gradients_are_timed_with_the_call() -> None:
    kernel = KERNELS["cross entropy"]
    report = compare({"fused": kernel.candidate, "plain": kernel.reference}, kernel.make_inputs, budget=0.2)
    assert {row.mode for row in report.rows} == {"training"}
    assert all(row.timing and row.timing.samples_us for row in report.rows)


def test_a_wrong_function_is_not_timed() -> None:
    def wrong(x: Tensor) -> Tensor:
        return softmax(x) * 1.001

    with pytest.raises(WrongKernel, match="wrong is wrong on softmax_reference"):
        compare({"right": softmax, "wrong": wrong}, inputs, reference=softmax_reference, budget=0.1)


def test_a_timed_call_that_remembers_is_found() -> None:
    calls = list[Tensor]()

    def lazy(x: Tensor) -> Tensor:
        calls.append(softmax(x) if len(calls) < 40 else calls[-1])
        return calls[-1].clone()

    with pytest.raises(WrongKernel, match="a timed call: output"):
        compare({"lazy": lazy, "right": softmax}, inputs, reference=softmax_reference, budget=0.2)


def test_a_time_below_the_floor_is_refused() -> None:
    with pytest.raises(WrongKernel, match="but this machine needs at least"):
        compare({"a": softmax, "b": softmax}, inputs, budget=0.1, cost=Cost(10**9, 10**9))


def test_functions_without_a_float64_form_are_compared_unproven() -> None:
    def narrow(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return softmax(x)

    report = compare({"a": narrow, "b": narrow}, inputs, budget=0.1)
    assert report.rows[0].notes == "not proven: no reference was given, and none of the functions runs in float64"


@pytest.mark.parametrize(
    ("functions", "make_inputs", "message"),
    [
        ({"a": softmax}, inputs, "expected at least two functions by name, as a dict, got"),
        ({"a": softmax, "b": softmax}, lambda seed: (random(seed, 4 + seed, 3),), "expected make_inputs to give one shape"),
    ],
)
def test_what_cannot_be_compared_is_refused(functions: object, make_inputs: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compare(functions, make_inputs)  # type: ignore[arg-type]


def test_what_nothing_informative_was_seen_of_is_said() -> None:
    report = compare({"a": torch.relu, "b": torch.relu}, lambda seed: (random(seed, 8, 8) * 1e-38,), budget=0.1)
    assert "not proven: output: vanished" in report.rows[0].notes
