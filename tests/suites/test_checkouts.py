"""The comparison of two checkouts: its intervals, its table, and its workers' answers. Times need a CUDA device."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from pytest_ecornn.suites import checkouts
from pytest_ecornn.suites.checkouts import Measured, Worker

ROOT = Path(__file__).resolve().parents[2]


def test_the_interval_holds_the_mean_and_has_the_width_of_students_t() -> None:
    ratios = [1.0, 1.02] * 8
    mean, low, high = checkouts.interval(ratios)
    assert mean == pytest.approx(math.sqrt(1.02))
    reach = 2.947 * (math.log(1.02) / 2) * math.sqrt(16 / 15) / 4
    assert (math.log(mean / low), math.log(high / mean)) == pytest.approx((reach, reach))


def test_the_table_has_each_case_and_the_geometric_means() -> None:
    rows = [
        Measured("scan_gpu", "a", 10.0, 12.1, 1.21, 1.2, 1.22, 1.0),
        Measured("scan_gpu", "b", 10.0, 10.0, 1.0, 0.99, 1.01, 1.44),
    ]
    text = checkouts.render(rows)
    assert "| scan_gpu | a | 10.0 | 12.1 | 1.210 [1.200, 1.220] | 1.000 |" in text
    assert "| scan_gpu | geometric mean of 2 |  |  | 1.1000 | 1.2000 |" in text


def test_a_workers_error_says_what_is_wrong() -> None:
    worker = Worker(ROOT)
    with pytest.raises(RuntimeError, match="no layer is built"):
        worker.ask(block=0.1)
    with pytest.raises(RuntimeError, match="ModuleNotFoundError"):
        worker.ask(build=["no_such", "lstm-T1-B1-H1-float32"])
    worker.close()
