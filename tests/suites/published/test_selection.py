"""Problems of modules, and the reports on them: what `auto` chooses, and short steps."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import host_time, selection, stored
from pytest_ecornn.suites.published.common.parted import from_json
from pytest_ecornn.suites.published.host_time import PROBLEMS
from pytest_ecornn.suites.published.selection_parts import problems, selection_tables
from pytest_ecornn.suites.published.selection_parts.problems import BASELINE, SelectionProblem
from pytest_ecornn.suites.published.selection_parts.selection_tables import Column, SelectionRow

PROBLEM = SelectionProblem("drawn", "lstm", 2, 8, 16, 3, 5, 2, "tf32", "training")
BATCHED = SelectionProblem("batched", "lstm", 1, 8, 16, 64, 5, 1, "tf32", "inference")
STEP = replace(PROBLEMS[1], hidden_size=4, input_size=4, batch=2, steps=3)
CPU = torch.device("cpu")


# Problems.


def test_problems_are_drawn_by_their_seed() -> None:
    assert list(problems.drawn(1, 20)) == list(problems.drawn(1, 20)) != list(problems.drawn(2, 20))
    drawn = list(problems.drawn(1, 20))
    assert len(drawn) == 40
    assert {problem.mode for problem in drawn} == set(problems.MODES)
    assert all(48 <= problem.hidden_size <= 2048 and 7 <= problem.steps <= 300 for problem in drawn)


def test_deepbench_is_whole() -> None:
    sizes = {(one.cell, one.hidden_size, one.batch, one.steps) for one in problems.deepbench()}
    assert len(sizes) == 103  # of 125 those up to T 750, one of which is in two sets
    assert {one.precision for one in problems.deepbench()} == {"float16", "tf32"}
    assert len(list(problems.deepbench())) == 2 * (103 + 47)


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
    rows = stored.load(tmp_path / "selection.json").rows["problems"]
    assert [row.problem for row in rows] == few
    for row in rows:
        assert row.called is not None
        assert set(row.called.times_us) == {"scan_cpu", "loop", "auto"}
        assert row.called.choice in ("scan_cpu", "loop")
        assert row.decision_ms > 0
    assert "2 decisions were timed" in (tmp_path / "selection.md").read_text()
    assert selection.main([*arguments, "--resume"]) == 0
    assert stored.load(tmp_path / "selection.json").rows["problems"] == rows


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
