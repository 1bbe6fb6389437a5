"""Ceilings that the processes of a run share."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ecornn.contract import Case
from pytest_ecornn.measurement import roofline
from pytest_ecornn.run.measured_ceilings import MeasuredCeilings

CASES = [Case(cell="lstm", steps=1, batch=1, hidden_size=1, device=device) for device in ("cpu", "cuda", "cuda:1")]


def of(gb_per_s: float) -> roofline.Ceilings:
    return roofline.Ceilings({2**20: gb_per_s}, {2**20: gb_per_s}, {"float32": 10.0})


def test_each_gpu_has_its_own_and_the_report_the_highest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for own, measured in (("1", 5.0), ("2", 7.0), ("", 1.0)):
        monkeypatch.setattr(roofline, "measure_ceilings", lambda dtypes, device, measured=measured: of(measured))
        for device in ("cuda",) if own else ("cpu", "cuda:1"):
            assert MeasuredCeilings(tmp_path, CASES, own).of_device(device) == of(measured)
    monkeypatch.setattr(roofline, "measure_ceilings", lambda dtypes, device: pytest.fail("measured twice"))
    assert MeasuredCeilings(tmp_path, CASES, "1").of_device("cuda") == of(5.0)
    found = MeasuredCeilings(tmp_path, CASES).as_report(["cpu", "cuda", "cuda:1"])
    assert {name: value for name, value in found.items() if name.endswith("flop_per_s")} != {}
    highest = {**of(1.0).as_dict(), **{f"cuda {name}": value for name, value in of(7.0).as_dict().items()}}
    assert found == {**highest, **{f"cuda:1 {name}": value for name, value in of(1.0).as_dict().items()}}


def test_a_second_measurement_only_raises_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ceilings = MeasuredCeilings(tmp_path, CASES)
    for measured, highest in ((5.0, 5.0), (4.0, 5.0), (6.0, 6.0)):
        monkeypatch.setattr(roofline, "measure_ceilings", lambda dtypes, device, measured=measured: of(measured))
        assert ceilings.remeasured("cpu") == of(highest)
