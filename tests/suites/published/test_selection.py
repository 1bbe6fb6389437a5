"""Problems of modules, and the reports on them: what `auto` chooses, persistent_gpu alone beside cuDNN, and short steps."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import host_time, kernels, selection, stored
from pytest_ecornn.suites.published.common.item_rows import NOT_REACHED
from pytest_ecornn.suites.published.common.parted import from_json
from pytest_ecornn.suites.published.host_time import PROBLEMS
from pytest_ecornn.suites.published.kernels import BASELINE, OURS, KernelRow
from pytest_ecornn.suites.published.selection_parts import problems, selection_tables
from pytest_ecornn.suites.published.selection_parts.problems import SelectionProblem
from pytest_ecornn.suites.published.selection_parts.selection_tables import Column, SelectionRow
from pytest_ecornn.system import machine
from tests.helpers.requirements import needs_hopper

PROBLEM = SelectionProblem("drawn", "lstm", 2, 8, 16, 3, 5, 2, "tf32", "training")
BATCHED = SelectionProblem("batched", "lstm", 1, 8, 16, 64, 5, 1, "tf32", "inference")
STEP = replace(PROBLEMS[1], hidden_size=4, input_size=4, batch=2, steps=3)
CPU = torch.device("cpu")


# Problems.


def test_problems_are_drawn_by_their_seed() -> None:
    for draw in (problems.drawn, problems.batched):
        assert list(draw(1, 20)) == list(draw(1, 20)) != list(draw(2, 20))
    drawn = list(problems.drawn(1, 20))
    assert len(drawn) == 40
    assert {problem.mode for problem in drawn} == set(problems.MODES)
    assert all(48 <= problem.hidden_size <= 2048 and 7 <= problem.steps <= 300 for problem in drawn)
    of_many = list(problems.batched(1, 60))
    assert min(one.batch for one in of_many) >= 64
    assert ([one.precision for one in of_many].count("tf32"), len(of_many)) == (60, 120)


def test_deepbench_is_whole_and_each_set_has_the_precisions_that_are_asked_for() -> None:
    sizes = {(one.cell, one.hidden_size, one.batch, one.steps) for one in problems.deepbench()}
    assert len(sizes) == 103  # of 125 those up to T 750, one of which is in two sets
    assert {one.precision for one in problems.deepbench()} == {"float16", "tf32"}
    found = kernels.selected(list(kernels.SETS), ["float32"])
    assert {one.precision for one in found} == {"float32"}
    assert {one.set for one in found} == set(kernels.SETS)
    assert len(kernels.selected(["deepbench"], kernels.PRECISIONS)) == 3 * (103 + 47)


def test_modules_of_a_problem() -> None:
    assert problems.backends(PROBLEM, CPU) == ("torch.nn",)
    assert problems.backends(PROBLEM, torch.device("cuda")) == ("torch.nn", "persistent_gpu")
    module = problems.make_module(PROBLEM, "torch.nn", CPU)
    assert isinstance(module, torch.nn.LSTM)
    assert module.training
    assert len(problems.make_call(PROBLEM, module, CPU)()) == 1 + len(list(module.parameters()))


# What `auto` chooses.


def test_a_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_tables, "ROUNDS", 3)
    few = [replace(one, steps=2) for one in problems.drawn_scans(1, 1)]
    monkeypatch.setattr(selection, "selected", lambda *given: few)
    arguments = ["--output", str(tmp_path), "--device", "cpu", "--sets", "scans", "--seconds", "30"]
    assert selection.main(arguments) == 0
    rows = stored.joined("selection", [tmp_path / "selection.json"]).rows["problems"]
    assert [row.problem for row in rows] == few
    for row in rows:
        assert row.called is not None
        assert set(row.called.times_us) == {"scan_cpu", "loop", "auto"}
        assert row.called.choice in ("scan_cpu", "loop")
        assert row.decision_ms > 0
    assert "2 decisions were timed" in (tmp_path / "selection.md").read_text()
    assert selection.main([*arguments, "--resume"]) == 0
    assert stored.joined("selection", [tmp_path / "selection.json"]).rows["problems"] == rows


def test_a_problem_that_fails_costs_itself_and_what_looks_slow_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def measure(problem: SelectionProblem, device: object, confidence: float, rounds: int = 9) -> SelectionRow:
        asked.append(rounds)
        if problem == BATCHED:
            raise RuntimeError("no\nmore")
        ratio = Ratio(0.9, 0.8, 1.0) if rounds == 9 else Ratio(1.0, 0.9, 1.1)
        return SelectionRow(problem, Column("auto", {}, ratio, ratio, "auto"))

    monkeypatch.setattr(selection_tables, "measure", measure)
    failed, slow = selection.measure(time.monotonic() + 60, [], [BATCHED, PROBLEM], "cpu")
    assert failed.refusals == {"all": "RuntimeError: no"}
    assert slow.called.over_baseline.ratio == 1.0
    assert asked == [9, 9, 36]


# persistent_gpu alone beside cuDNN.


def kernel_row(ratio: float, problem: SelectionProblem = BATCHED) -> KernelRow:
    times_us = {BASELINE: (ratio, ratio, ratio), OURS: (1.0, 1.0, 1.0)}
    return KernelRow(problem, times_us, Ratio(ratio, ratio * 0.99, ratio * 1.01), "clusters")


def test_sums_count_what_is_slower_and_what_did_not_run() -> None:
    rows = [*map(kernel_row, (0.5, 2.0, 1.0)), KernelRow(BATCHED, reason="ValueError: <too large>")]
    text = kernels.render(rows)
    assert "| batched | tf32 | inference | 3 | 1 | 1.00 | 0.50 | 2 of 3 | 1 |" in text
    assert "inference: ValueError: &lt;too large&gt;" in text
    assert kernels.summary([KernelRow(BATCHED, reason="no")]).count("\n") == 1  # the header alone
    assert "- 2 not reached in the time allowed" in kernels.render([KernelRow(BATCHED, reason=NOT_REACHED)] * 2)


def test_an_older_report_of_rows_alone_is_gone_on_with_by_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    todo = kernels.selected(["batched"], ["tf32"])[:3]
    asked: list[SelectionProblem] = []

    def measure(problem: SelectionProblem) -> KernelRow:
        asked.append(problem)
        return kernel_row(2.0, problem)

    monkeypatch.setattr(kernels, "selected", lambda sets, precisions: todo)
    monkeypatch.setattr(kernels, "measure_problem", measure)
    now, path = machine.fingerprint(Path.cwd()), tmp_path / "kernels.json"
    rows = [asdict(kernel_row(3.0, todo[0])), asdict(KernelRow(todo[1], reason="ValueError: H"))]
    path.write_text(json.dumps({"schema_version": 1, "machine": now, "seconds": 3.0, "rows": rows}))
    kernels.PLAN.run(tmp_path, 60.0, ["batched"], path)
    measured = stored.joined("kernels", [path]).rows["problems"]
    assert [row.problem for row in measured] == todo
    assert [row.over_cudnn and row.over_cudnn.ratio for row in measured] == [3.0, None, 2.0]
    assert asked == todo[2:]


@needs_hopper
def test_on_a_gpu_a_problem_has_a_ratio_or_is_refused() -> None:
    measured = kernels.measure_problem(BATCHED)
    assert measured.over_cudnn is not None
    assert measured.over_cudnn.ratio > 0
    assert measured.forms
    with pytest.raises(ValueError, match=r"^H 12288 "):
        kernels.measure_problem(replace(BATCHED, hidden_size=12288))


# Short steps.


def test_small_steps_are_measured_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_time, "_BLOCK_US", 2e3)
    host_time.make_plan([STEP], "cpu").run(tmp_path, 60.0, ["steps"])
    (row,) = json.loads((tmp_path / "host_time.json").read_text())["rows"]["steps"]
    found = from_json(host_time.Row, row)
    assert found.problem == STEP
    assert found.arms["persistent_gpu"].reason
    for name in (BASELINE, "auto"):
        arm = found.arms[name]
        assert (arm.reason, arm.replayed_us) == ("", None)
        assert arm.called_us[0] > 0
    assert found.arms[BASELINE].over_baseline == Ratio(1.0, 1.0, 1.0)
    text = (tmp_path / "host_time.md").read_text()
    assert "## Steps" in text
    assert f"- {found.label}, persistent_gpu: " in text
    assert " bar " not in text  # which are of the report's own problems


def test_a_training_step_fills_the_gradients_anew_and_inference_leaves_none() -> None:
    module = problems.make_module(STEP, BASELINE, CPU)
    step = host_time.make_step(STEP, module, CPU)
    step()
    first = [parameter.grad for parameter in module.parameters()]
    step()
    for parameter, before in zip(module.parameters(), first, strict=True):
        assert parameter.grad is not before
        torch.testing.assert_close(parameter.grad, before)
    problem = replace(STEP, mode="inference")
    module = problems.make_module(problem, BASELINE, CPU)
    host_time.make_step(problem, module, CPU)()
    assert all(parameter.grad is None for parameter in module.parameters())
