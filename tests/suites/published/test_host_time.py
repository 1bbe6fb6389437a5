"""The report of short steps, measured small on a CPU, and its bars."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from pytest_ecornn.results.statistics import Ratio
from pytest_ecornn.suites.published import host_time
from pytest_ecornn.suites.published.common.report_files import from_json
from pytest_ecornn.suites.published.host_time import ARMS, PROBLEMS, ArmTime, Row
from pytest_ecornn.suites.published.selection_parts.problems import BASELINE, make_module

SMALL = replace(PROBLEMS[1], hidden_size=4, input_size=4, batch=2, steps=3)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_time, "_BLOCK_US", 2e3)


def row(of_ours: float) -> Row:
    ratio = Ratio(of_ours, of_ours - 0.01, of_ours + 0.01)
    return Row(PROBLEMS[0], {name: ArmTime((9.0, 8.0, 9.5), (5.0, 4.0, 6.0), None, ratio) for name in ARMS})


def test_small_steps_are_measured_on_a_cpu() -> None:
    (found,) = host_time.measure(float("inf"), problems=[SMALL], device="cpu")
    assert found.arms["persistent_gpu"].reason
    for name in (BASELINE, "auto"):
        arm = found.arms[name]
        assert arm.reason == ""
        assert arm.called_us is not None
        assert arm.called_us[0] > 0
        assert arm.replayed_us is None
    assert found.arms[BASELINE].over_baseline == Ratio(1.0, 1.0, 1.0)
    assert from_json(Row, json.loads(json.dumps(asdict(found)))) == found
    assert f"- {found.label}, persistent_gpu: " in host_time.render([found])


def test_a_training_step_fills_the_gradients_anew() -> None:
    module = make_module(SMALL, BASELINE, CPU)
    step = host_time.make_step(SMALL, module, CPU)
    step()
    first = [parameter.grad for parameter in module.parameters()]
    step()
    for parameter, before in zip(module.parameters(), first, strict=True):
        assert parameter.grad is not before
        torch.testing.assert_close(parameter.grad, before)


def test_inference_leaves_no_gradients() -> None:
    problem = replace(SMALL, mode="inference")
    module = make_module(problem, BASELINE, CPU)
    host_time.make_step(problem, module, CPU)()
    assert all(parameter.grad is None for parameter in module.parameters())


def test_bars_are_of_the_problems_of_the_report() -> None:
    assert set(host_time.TARGETS) == set(PROBLEMS)
    for measured, holds in ((0.58, "yes"), (0.62, "no"), (0.6, "unclear")):
        assert host_time.targets([row(measured)]).splitlines()[-1].split(" | ")[-1] == f"{holds} |"
    assert host_time.targets([replace(row(0.5), problem=SMALL)]) == ""


def test_the_report_is_written(tmp_path: Path) -> None:
    plan = host_time.make_plan([SMALL], "cpu")
    plan.run(tmp_path, 60.0, ["steps"])
    assert "## Steps" in (tmp_path / "host_time.md").read_text()
    (stored,) = json.loads((tmp_path / "host_time.json").read_text())["rows"]["steps"]
    assert from_json(Row, stored).problem == SMALL
