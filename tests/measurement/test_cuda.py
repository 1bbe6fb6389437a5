"""Measurement on a GPU: what is timed is all that runs, what is replayed is verified, and equal and slower are told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pytest_ecornn.contract import Case, Declared, Layer
from pytest_ecornn.measurement.capture import graph_arms
from pytest_ecornn.measurement.clocks import CudaEventTimer, CudaGraphTimer
from pytest_ecornn.measurement.columns import TimingColumn
from pytest_ecornn.measurement.measurement import Arm, measure
from pytest_ecornn.measurement.pool import InputPool
from pytest_ecornn.measurement.replay import GraphArm
from pytest_ecornn.measurement.roofline import measure_ceilings
from pytest_ecornn.reference.loop import ReferenceLoop
from pytest_ecornn.reference.precision import current
from pytest_ecornn.system import memory, sensors
from pytest_ecornn.system.graphs import GraphCapture, NotCaptured
from pytest_ecornn.verification.verification import Candidate
from tests.helpers.foreign import BRIEFLY, Foreign

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.gpu_alone,
]

CASE = "lstm-T8-B4-H64-float32-cuda"
MB = 2**20
_TEN_MS = 20_000_000  # clock cycles, on any GPU at least


def sleep(cycles: int = _TEN_MS) -> None:
    torch.cuda._sleep(cycles)


def arm(text: str = CASE, layer: Any = None, name: str = "sequential") -> Arm:
    """The plain loop, or what `layer` makes of it, as if it had been timed as called."""
    case = Case.parse(text)
    candidate = Candidate.build(name, ReferenceLoop, case)
    if layer is not None:
        candidate.layer = layer(candidate.layer)
    return Arm(candidate, InputPool(case), seconds=1e-4)


def first(act: Callable[[torch.Tensor], Any]) -> Callable[[Layer], Layer]:
    """A layer each call of which does that first, with its x."""

    def wrap(layer: Layer) -> Layer:
        return lambda x, state, lengths: (act(x), layer(x, state, lengths))[1]

    return wrap


def captured(*arms: Arm) -> list[GraphArm]:
    found, missing = graph_arms(arms)
    assert missing == []
    return found


# The clock.


def test_earlier_work_is_not_timed() -> None:
    clock = CudaEventTimer("cuda")
    clock.time([])
    sleep()
    assert clock.time([]) < 1e-3


def test_work_on_another_stream_is_timed() -> None:
    side = torch.cuda.Stream()

    def aside() -> None:
        with torch.cuda.stream(side):
            sleep()

    clock = CudaEventTimer("cuda")
    assert clock.time([aside]) == pytest.approx(clock.time([sleep]), rel=0.1)


def test_the_hosts_time_is_that_until_a_call_returns() -> None:
    clock = CudaEventTimer("cuda")
    assert 0 < clock.host_us([sleep] * 3) < 1e3
    assert clock.time([sleep]) > 4e-3


def test_peak_is_what_a_call_allocates() -> None:
    held = torch.ones(8 * MB, device="cuda")
    peak = memory.peak_bytes(lambda: (held + 1) * 2, "cuda")
    assert peak == 64 * MB


# Replay.


@pytest.mark.parametrize("rest", ["", "-training", "-state-training", "-batchfirst-strided", "-offset"])
def test_replays_are_verified_on_contents_that_changed(rest: str) -> None:
    (graphs,) = captured(arm(CASE + rest))
    assert len(graphs.graphs) >= 2
    measure([graphs], CudaGraphTimer("cuda"), 0.1, lambda: True)
    verdicts = graphs.kept.verify(Declared("float32"))
    assert {one.tensor for one in verdicts} >= {"output", "final h", "final c"}
    assert [one.message for one in verdicts if one.status == "failed"] == []


def test_a_graph_that_reads_stale_input_fails() -> None:
    def stale(layer: Layer) -> Layer:
        kept: list[torch.Tensor] = []

        def remembering(x: torch.Tensor, state: Any, lengths: Any) -> Any:
            kept[:] = kept or [x.clone()]
            return layer(kept[0], state, lengths)

        return remembering

    (graphs,) = captured(arm(layer=stale))
    measure([graphs], CudaGraphTimer("cuda"), 0.1, lambda: True)
    assert "output" in {one.tensor for one in graphs.kept.verify(Declared("float32")) if one.status == "failed"}


def test_the_same_under_two_names_is_the_same() -> None:
    column = TimingColumn(captured(arm(), arm(name="again")), CudaGraphTimer("cuda"))
    column.measure(2.0)
    assert column.against()[0].verdict == "same"


def test_three_percent_more_is_slower() -> None:
    (plain,) = captured(arm())
    clock = CudaGraphTimer("cuda")
    measure([plain], clock, 0.2, lambda: True)
    sleep_seconds = clock.time([sleep] * 3) / 3
    cycles = int(0.03 * plain.samples_us[-1] * 1e-6 / sleep_seconds * _TEN_MS)

    column = TimingColumn(captured(arm(layer=first(lambda x: sleep(cycles))), arm()), clock)
    column.measure(2.0)
    assert column.against()[0].verdict == "slower"


# Capture that fails.


def _raises(layer: Layer) -> Layer:
    def raising(x: torch.Tensor, state: Any, lengths: Any) -> Any:
        result = layer(x, state, lengths)
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("not in a graph")
        return result

    return raising


@pytest.mark.parametrize(
    "layer",
    [
        first(lambda x: float(x.sum())),
        first(lambda x: torch.cuda.is_current_stream_capturing() and torch.cuda.synchronize()),
        _raises,
    ],
    ids=["waits", "spoils", "raises"],
)
def test_a_capture_that_fails_is_told_and_leaves_the_device_as_it_was(layer: Any) -> None:
    stream = torch.cuda.current_stream()
    graphs, missing = graph_arms([arm(layer=layer)])
    assert graphs == []
    assert "cannot be captured" in missing[0]
    assert torch.cuda.current_stream() == stream
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.cuda.get_sync_debug_mode() == 0
    (again,) = captured(arm(CASE + "-training"))
    measure([again], CudaGraphTimer("cuda"), 0.1, lambda: True)
    assert [one.message for one in again.kept.verify(Declared("float32")) if one.status == "failed"] == []
    torch.cuda.empty_cache()


def test_the_reason_is_the_layers_own() -> None:
    with pytest.raises(NotCaptured, match=r"ValueError: not in a graph"):
        GraphCapture("cuda").capture(lambda: _raises(lambda x, state, lengths: None)(torch.ones(1), None, None))


# The machine.


def test_ceilings_are_plausible_and_settings_are_restored() -> None:
    before = current("matmul")
    found = measure_ceilings(["float32"], "cuda")
    assert current("matmul") == before
    assert found.matmul_gflop_per_s.keys() == {"float32", "float16", "tf32"}
    rates = [found.gb_per_s(2**power) for power in range(10, 40)]
    assert rates == sorted(rates, reverse=True)
    cache = torch.cuda.get_device_properties("cuda").L2_cache_size
    assert found.gb_per_s(1) == found.gb_per_s(cache // 4)
    assert found.gb_per_s(1) > 1.1 * found.gb_per_s(2**30)


def test_sensors_read_what_a_gpu_may_show() -> None:
    if sensors.nvml() is None:
        pytest.skip("NVML is not available")
    found = sensors.GpuTelemetry("cuda")
    found.sample()
    summary: Any = found.summary()
    assert 100 < summary["sm_mhz"][1] < 5000
    assert 5 < summary["power_w"][1] < 3000


def test_a_row_has_both_columns(tmp_path: Path) -> None:
    foreign = Foreign(tmp_path)
    options = ["--ecornn-baseline", "sequential", "--ecornn-only", "sequential", "--ecornn-case", CASE]
    foreign.run("--ecornn-bench", *options, *BRIEFLY, check=0)
    row = foreign.rows()[f"sequential-{CASE}"]
    assert row["replay"]["time_us"] < row["timing"]["time_us"]
    assert row["timing"]["host_us"] > 0
    assert "device only" in (tmp_path / "reports/local/report.md").read_text()
