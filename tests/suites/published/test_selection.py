"""The report of what `auto` chooses: its problems, a run on a CPU, and what it sums up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import selection
from pytest_ecornn.suites.published.selection_parts import problems, selection_tables
from pytest_ecornn.suites.published.selection_parts.selection_tables import Column, SelectionRow

PROBLEM = problems.SelectionProblem("drawn", "lstm", 2, 8, 16, 3, 5, 2, "tf32", "training")


def test_problems_are_drawn_by_their_seed() -> None:
    once, again, other = (list(problems.drawn(seed, 20)) for seed in (1, 1, 2))
    assert once == again != other
    assert len(once) == 40
    assert {problem.mode for problem in once} == set(problems.MODES)
    assert all(48 <= problem.hidden_size <= 2048 and 7 <= problem.steps <= 300 for problem in once)


def test_deepbench_is_whole() -> None:
    sizes = {(one.cell, one.hidden_size, one.batch, one.steps) for one in problems.deepbench()}
    assert len(sizes) == 103  # of 125 those up to T 750, one of which is in two sets
    assert {one.precision for one in problems.deepbench()} == {"float16", "tf32"}


def test_a_problem_in_words() -> None:
    assert str(PROBLEM) == "lstm 2 x 16, I 8, B 3, T 5, both directions, tf32"


def test_a_run_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection_tables, "ROUNDS", 3)
    few = [replace(one, steps=2) for one in problems.drawn_scans(1, 1)]
    monkeypatch.setattr(selection, "selected", lambda *given: few)
    arguments = ["--output", str(tmp_path), "--device", "cpu", "--sets", "scans", "--seconds", "30"]
    assert selection.main(arguments) == 0
    report = selection.Report.read(tmp_path / "selection.json")
    assert [row.problem for row in report.rows] == few
    for row in report.rows:
        assert row.called is not None
        assert set(row.called.times_us) == {"scan_cpu", "loop", "auto"}
        assert row.called.choice in ("scan_cpu", "loop")
        assert row.decision_ms > 0
    text = (tmp_path / "selection.md").read_text()
    assert "2 decisions were timed" in text
    before = (tmp_path / "selection.json").read_text()
    assert selection.main([*arguments, "--continue"]) == 0
    rows = [json.loads(one)["rows"] for one in (before, (tmp_path / "selection.json").read_text())]
    assert [row["problem"] for row in rows[0]] == [row["problem"] for row in rows[1]]


def row(over_baseline: float, over_best: float, decision_ms: float) -> SelectionRow:
    column = Column(
        "torch.nn", {"torch.nn": (90.0,) * 3, "auto": (100.0,) * 3}, *map(ratio, (over_baseline, over_best)), "torch.nn"
    )
    return SelectionRow(PROBLEM, column, None, {}, decision_ms)


def ratio(value: float) -> Ratio:
    return Ratio(value, value * 0.99, value * 1.01)


def test_a_problem_that_fails_costs_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise RuntimeError("no\nmore")

    monkeypatch.setattr(selection_tables, "measure", fail)
    assert selection._row(PROBLEM, torch.device("cpu"), 0.99).refusals == {"all": "RuntimeError: no"}


def test_modules_of_a_problem() -> None:
    cpu = torch.device("cpu")
    assert problems.backends(PROBLEM, cpu) == ("torch.nn",)
    assert problems.backends(PROBLEM, torch.device("cuda")) == ("torch.nn", "persistent_gpu")
    module = problems.make_module(PROBLEM, "torch.nn", cpu)
    assert isinstance(module, torch.nn.LSTM)
    assert module.training
    assert len(problems.make_call(PROBLEM, module, cpu)()) == 1 + len(list(module.parameters()))
