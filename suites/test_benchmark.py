"""Every implementation over the selected cases: verified, timed against its baselines, and verified again."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from pytest_ecornn.measurement.clocks import replay_clock
from pytest_ecornn.run.items.benchmark_items import AATestItem, BenchmarkItem


@pytest.mark.benchmark(timer=replay_clock)
def test_benchmark(ecornn_row: BenchmarkItem, benchmark: BenchmarkFixture) -> None:
    """One row of the comparison; its samples go to pytest-benchmark."""
    row = ecornn_row.run()
    assert row.timing is not None
    replay_clock.replay(benchmark, row.timing.samples_us, row.case, {"implementation": row.implementation})


def test_control(ecornn_control: AATestItem) -> None:
    """A baseline against itself: what the run's verdicts are to be read by."""
    ecornn_control.run()
