"""Every planted fault is caught, by the check that its decorator names; what the faults are built on is right."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_ecornn.run.discovery import ImplementationInfo
from pytest_ecornn.selfcheck import _correct_layers, planting, trial
from pytest_ecornn.selfcheck.planting import Expectation
from pytest_ecornn.selfcheck.plugin import KEPT_CASES
from pytest_ecornn.selfcheck.trial import Planted, Trial
from pytest_ecornn.verification import verification

BY_QUICK = 0.95
FAULTS = trial.all_trials("fault")

pytestmark = pytest.mark.usefixtures("_references_cached")


@pytest.fixture(scope="module")
def _references_cached() -> Iterator[None]:
    """Faults of a cell and dtype are verified on the same cases."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification, "_expected", verification._expected)  # put back at the end
        verification.keep_expected(KEPT_CASES)
        yield


@pytest.mark.parametrize("planted", FAULTS, ids=str)
@pytest.mark.test_all(keep=8)
def test_a_planted_fault_is_caught_for_the_reason_that_it_states(planted: Trial) -> None:
    if reason := planted.missing():
        pytest.skip(reason)
    assert not (message := planted.survived()), message


def test_at_least_95_of_100_faults_are_caught_by_quick() -> None:
    profiles = [planting.expectation(fault.layer).profile for fault in FAULTS]
    assert profiles.count("quick") >= BY_QUICK * len(profiles)


RIGHT = [("lstm", "float32"), ("gru", "bfloat16"), ("rnn_relu", "float16"), ("minlstm", "float64")]


@pytest.mark.parametrize(("cell", "dtype"), RIGHT)
def test_the_loop_that_faults_are_built_on_is_right(cell: str, dtype: str) -> None:
    found = ImplementationInfo("loop", _correct_layers.Loop, Path(_correct_layers.__file__))
    row = trial.explored(Planted(found, Expectation("", cell, dtype)), "quick")
    assert row.status == "passed", row.reason


REASONS: list[tuple[str, str]] = [
    (
        "  output: rms relative error 3 is over its limit 1e-06\n  grad x: at [0] expected 1, got nan",
        "equivalence: output",
    ),
    ("  grad weight_hh_l1_reverse (gate f): maximum relative error 2 is over its limit", "equivalence: grad weight_hh"),
    ("  grad x (steps 0..7): rms relative error 0.002 is over its limit 0.001", "equivalence: rounding"),
    ("  output: at [0, 1] expected nan, got 0.5 (1 such elements)", "equivalence: non-finite"),
    ("  grad x: at [0, 1] expected 0.25, got nan (1 such elements)", "poison"),
    ("it on lstm: got WrongResult: expected initial h unchanged by the call, but at [0] 1 became 2", "unchanged"),
    ("  output: expected a tensor of shape [1], float32, on cpu; got shape [2], float32, on cpu", "form"),
    ("scan_cpu: scan_cpu must support mingru-T1-B1-H1-float32, but says: no", "required"),
]


@pytest.mark.parametrize(("reason", "caught_by"), REASONS)
def test_a_reason_is_read_as_one_check_and_no_other(reason: str, caught_by: str) -> None:
    row = _failed(reason)
    others = {one for _, one in REASONS} - {caught_by}
    overlapping = {"equivalence: non-finite"} if caught_by == "poison" else set()
    assert trial.is_caught(row, caught_by)
    assert [one for one in others - overlapping if trial.is_caught(row, one)] == []


def test_a_crash_and_a_pass_are_no_catch() -> None:
    crash = _failed("it on lstm: expected a result or Unsupported, got RuntimeError at it.py:3: shapes do not match")
    passed = _failed("")
    passed.status = "passed"
    assert [one for row in (crash, passed) for _, one in REASONS if trial.is_caught(row, one)] == []


def _failed(reason: str) -> Any:
    found = ImplementationInfo("it", _correct_layers.Loop, Path(_correct_layers.__file__))
    row = trial.item(Planted(found, Expectation("")), "quick").empty_row()
    row.status, row.reason = "failed", reason
    return row
