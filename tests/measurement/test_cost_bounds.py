"""A declared cost: right ones of any own implementation pass, and what cannot be is named with the cell's own count."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ecornn.contract import Case, Cost, Weights, cells
from pytest_ecornn.measurement.cost_bounds import WrongCost, checked, rate_problem
from pytest_ecornn.measurement.roofline import Ceilings
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.results.rows import Timing
from pytest_ecornn.run.discovery import discover
from pytest_ecornn.verification.verification import Candidate
from tests.helpers import samples

CASE = Case(cell="gru", steps=4, batch=2, hidden_size=8)
FLOOR = cells.minimum_cost(CASE)
CASES = [
    "gru-T4-B2-H8-float32",
    "gru-T300-B2-H8-float32-state-training",
    "gru-T1-B1-H1-float32-nobias-state-projected",
    "lstm-T4-B2-I1-H128-L2-float32-bidirectional-ragged",
    "rnn_relu-T4-B2-H8-float64-density0.1",
    "minlstm_positive-T1000-B2-H8-bfloat16",
    "mingru-T2-B2-H8-float32-projected-training",
]


def _candidate(name: str, implementation: Any, case: Case) -> Candidate:
    declared = ReferenceLoop().declared
    return Candidate(name, implementation, case, lambda *given: None, Weights({}), 0.0, declared)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("name", CASES)
def test_own_implementations_declare_what_can_be(name: str) -> None:
    case = Case.parse(name)
    for found in discover([]).values():
        is_scan, is_gpu = found.name.startswith("scan"), found.name.endswith("gpu") or found.name == "cudnn"
        if is_scan == case.cell.startswith("min") if is_gpu else found.cls().refusal(case) is None:
            assert checked(_candidate(found.name, found.cls(), case)) == found.cls().cost(case), found.name


@pytest.mark.parametrize("name", CASES)
def test_what_declares_no_cost_has_the_cells_own(name: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(samples.RIGHT.partition("    def cost(")[0])
    found, case = discover([path])["mine"], Case.parse(name)
    assert checked(_candidate(found.name, found.cls(), case)) == cells.minimum_cost(case)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        (None, "expected a Cost, got NoneType"),
        (Cost(FLOOR.bytes // 3, FLOOR.operations), "bytes, got 768: the cell's own count is 2,304"),
        (Cost(FLOOR.bytes, FLOOR.operations // 1000), "operations, got 6: the cell's own count is 6,272"),
        (Cost(1000 * FLOOR.bytes, FLOOR.operations), "bytes, got 2,304,000"),
        (Cost(FLOOR.bytes, -1), "operations, got -1"),
        (Cost(nan, FLOOR.operations), "a number of bytes, got nan"),  # type: ignore[arg-type]
        (Cost(FLOOR.bytes, inf), "a number of operations, got inf"),  # type: ignore[arg-type]
        (Cost("many", FLOOR.operations), "a number of bytes, got 'many'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_named(cost: Any, message: str) -> None:
    with pytest.raises(WrongCost) as error:
        checked(_candidate("mine", SimpleNamespace(cost=lambda case: cost), CASE))
    assert str(error.value).startswith("mine on gru-T4-B2-H8-float32: cost: expected")
    assert message in str(error.value)


def test_a_rate_is_held_to_the_machine() -> None:
    ceilings = Ceilings({1: 10.0}, {1: 20.0}, {"float32": 100.0})
    timing = Timing(1, 1, 1, [], 1, "", [], 0, None, 1, 1, gb_per_s=199, gflop_per_s=999, floor_us=0, floor_share=0)
    assert rate_problem(timing, ceilings) == ""
    assert "at most 200 GB/s" in rate_problem(replace(timing, gb_per_s=201), ceilings)
    assert "at most 1,000 GFLOP/s" in rate_problem(replace(timing, gflop_per_s=1001), ceilings)
