"""The page of three clocks, without a GPU: a recorded profile is summed up, and a row has all clocks' times or a reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.results.statistics import median_interval
from pytest_ecornn.suites.published import clocks
from tests.helpers.fake_graphs import CountingClock, built, fake_graph
from tests.helpers.studies import cells_of, event

CASE = "lstm-T3-B2-H5-float32"


def replayed(text: str, count: int) -> GraphArm:
    candidate, pool = built(text)
    return GraphArm(candidate, pool, [fake_graph(candidate, pool) for _ in range(count)])


def record(monkeypatch: pytest.MonkeyPatch, *kernels: tuple[str, float]) -> list[Any]:
    """In place of a profile these are recorded of each call, at once; and the results of the calls that were profiled."""
    results: list[Any] = []

    def profiled(call: Callable[[], list[Any]]) -> list[dict[str, Any]]:
        results.extend(call())
        one_call = [event("cuda_runtime", "cudaLaunchKernel", 0, 99), *(event(*what, 0, us) for *what, us in kernels)]
        return one_call * len(results)

    monkeypatch.setattr(clocks, "profiled", profiled)
    return results


KERNELS: Any = (("kernel", "sgemm", 40.0), ("kernel", "step_forward", 9.5), ("gpu_memset", "Memset", 0.5))


@pytest.mark.parametrize("mode", ["", "-training"])
def test_the_sum_is_of_one_call_of_each_graph(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = record(monkeypatch, *KERNELS)
    assert clocks.cupti(replayed(CASE + mode, 3)) == (50.0, 2.0)
    assert [bool(gradients) for _, gradients in results] == [bool(mode)] * 3


def test_a_profile_without_kernels_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, ("gpu_memset", "Memset", 0.5))
    with pytest.raises(ValueError, match="CUPTI saw none"):
        clocks.cupti(replayed(CASE, 2))


def test_a_row_has_the_times_of_all_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, *KERNELS)
    monkeypatch.setattr(clocks, "CudaGraphTimer", lambda device: CountingClock())
    monkeypatch.setattr(clocks, "graph_arms", lambda arms: ([replayed(CASE, 2)], []))
    row = clocks._row(CASE, "sequential", 0.01)
    assert row.called_us[1] <= row.called_us[0] <= row.called_us[2]
    assert row.called_us[0] > 0
    assert (row.replayed_us, row.cupti_us, row.kernels) == (pytest.approx(median_interval([2000.0] * 8)), 50.0, 2.0)
    (cells,) = cells_of(clocks.render([row]), CASE)
    assert cells[:2] + cells[3:] == [CASE, "sequential", "2,000", "50.00", "40.0", "2"]


@pytest.mark.parametrize(
    ("name", "reason"), [("cudnn", "cuDNN runs on a CUDA device"), ("sequential", "no device-only time of sequential: why")]
)
def test_what_has_no_time_has_a_reason(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "graph_arms", lambda arms: ([], ["no device-only time of sequential: why"]))
    row = clocks._row(CASE, name, 0.01)
    assert row == clocks.Row(CASE, name, reason=reason)
    assert f"- {name} on {CASE}: {reason}" in clocks.render([row])
