"""The report of persistent_gpu alone beside cuDNN: its problems, what it sums up, and what it goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import kernels
from pytest_ecornn.suites.published.kernels import BASELINE, OURS, KernelRow, Report
from pytest_ecornn.suites.published.selection_parts import problems
from pytest_ecornn.suites.published.selection_parts.problems import SelectionProblem
from tests.helpers.requirements import needs_hopper

PROBLEM = SelectionProblem("batched", "lstm", 1, 8, 16, 64, 5, 1, "tf32", "inference")
MACHINE = {"gpu": "a GPU"}


def row(ratio: float, problem: SelectionProblem = PROBLEM) -> KernelRow:
    times_us = {BASELINE: (ratio, ratio, ratio), OURS: (1.0, 1.0, 1.0)}
    return KernelRow(problem, times_us, Ratio(ratio, ratio * 0.99, ratio * 1.01), "clusters")


def test_problems_have_the_precisions_that_are_asked_for() -> None:
    found = kernels.selected(list(kernels.SETS), ["float32"])
    assert {one.precision for one in found} == {"float32"}
    assert {one.set for one in found} == set(kernels.SETS)
    assert len(kernels.selected(["deepbench"], kernels.PRECISIONS)) == 3 * (103 + 47)


def test_sixty_problems_of_many_sequences_are_drawn_half_in_each_precision() -> None:
    found = list(problems.batched(1, 60))
    assert len(found) == 120
    assert min(one.batch for one in found) >= 64
    assert [one.precision for one in found].count("tf32") == 60
    assert found == list(problems.batched(1, 60)) != list(problems.batched(2, 60))


def test_sums_count_what_is_slower_and_what_did_not_run() -> None:
    rows = [row(0.5), row(2.0), row(1.0), KernelRow(PROBLEM, reason="ValueError: too large")]
    line = "| batched | tf32 | inference | 3 | 1 | 1.00 | 0.50 | 2 of 3 | 1 |"
    assert line in kernels.summary(rows)
    assert kernels.summary([KernelRow(PROBLEM, reason="no")]).count("\n") == 1  # the header alone


def test_a_report_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.machine, "gpu_summary", lambda found: str(found["gpu"]))
    report = Report(MACHINE, 3.0, [row(2.0), KernelRow(PROBLEM, reason="ValueError: <too large>")])
    report.write(tmp_path)
    assert Report.read(tmp_path / "kernels.json") == report
    text = (tmp_path / "kernels.md").read_text()
    assert "| lstm 16, I 8, B 64, T 5, tf32 | inference | 2.00 | 1.00 | 2.00 [1.98, 2.02] | clusters |" in text
    assert "inference: ValueError: &lt;too large&gt;" in text


def test_a_run_goes_on_and_measures_anew_what_did_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = kernels.selected(["batched"], ["tf32"])[:3]
    asked: list[SelectionProblem] = []

    def measure(problem: SelectionProblem, device: object) -> KernelRow:
        asked.append(problem)
        return KernelRow(problem, reason="no memory") if problem == todo[1] and len(asked) < 3 else row(2.0, problem)

    def run(some: list[SelectionProblem], seconds: float = 60.0) -> list[bool]:
        report = kernels.report_to_go_on_with(path, MACHINE)
        kernels.run(report, tmp_path, some, seconds)
        return [one.over_cudnn is not None for one in Report.read(path).rows]

    path = tmp_path / "kernels.json"
    monkeypatch.setattr(kernels, "measure", measure)
    monkeypatch.setattr(kernels, "with_index", lambda name: torch.device("cpu"))
    monkeypatch.setattr(kernels.machine, "gpu_summary", lambda found: str(found["gpu"]))
    assert run(todo[:2]) == [True, False]
    assert run(todo[:1]) == run(todo, seconds=-1.0) == [True, False]  # what is not measured again stays
    assert run(todo) == [True, True, True]
    assert asked == [todo[0], todo[1], todo[1], todo[2]]


def test_a_report_of_another_gpu_or_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kernels.machine, "gpu_summary", lambda found: str(found["gpu"]))
    Report(MACHINE).write(tmp_path)
    path = tmp_path / "kernels.json"
    with pytest.raises(ValueError, match="expected a report of another, got one of a GPU"):
        kernels.report_to_go_on_with(path, {"gpu": "another"})
    path.write_text("{}")
    with pytest.raises(SystemExit, match="2"):
        kernels.main(["--output", str(tmp_path), "--continue"])
    assert "kernels.json: expected schema version 1, got None" in capsys.readouterr().err


@needs_hopper
def test_on_a_gpu_a_problem_has_a_ratio_or_the_reason() -> None:
    measured = kernels.measure(PROBLEM, torch.device("cuda", 0))
    assert measured.over_cudnn is not None, measured.reason
    assert measured.over_cudnn.ratio > 0
    assert measured.forms
    refused = kernels.measure(replace(PROBLEM, hidden_size=12288), torch.device("cuda", 0))
    assert refused.reason.startswith("ValueError: H 12288 ")
