"""persistent_gpu's layers in a wavefront: when they are, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import MAX_LAYERS, WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.describe import describe
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.plan import plan_of_case
from pytest_ecornn.implementations.persistent_gpu.wavefront import select_wavefront, select_wavefronts, single_layer_us
from tests.helpers.persistent import A100, ARITHMETICS, small, verdicts
from tests.helpers.requirements import needs_compiler
from tests.helpers.simulated_kernels import CELLS, KERNELS, Seen
from tests.simulator.clusters_on_cpu import H200

# When they are.


@given(
    st.sampled_from(CELLS), st.integers(1, 900), st.integers(1, 300), st.integers(1, 2000), st.integers(2, 9),
    st.integers(1, 600), st.sampled_from(ARITHMETICS),
)  # fmt: skip
def test_a_wave_is_all_on_chip_at_once_and_promises_less_time(
    cell: str, hidden: int, batch: int, inputs: int, layers: int, steps: int, arithmetic: MathMode
) -> None:
    problem = ProblemSize(cell, hidden, batch, arithmetic)
    wave = select_wavefront(problem, H200, inputs, layers, steps)
    if wave is None:
        return
    assert 2 <= wave.layers <= min(layers, MAX_LAYERS)
    assert wave.layers * wave.clusters * wave.blocks == wave.launch.grid
    assert wave.layers * wave.clusters <= H200.clusters(wave.blocks)
    assert wave.reg_fragments + wave.smem_fragments == wave.fragments_per_warp
    assert wave.shared_bytes <= H200.shared_bytes
    assert wave.launch.block * wave.launch_registers <= 65_536
    form = select_config(problem, H200)
    assert isinstance(form, Form)
    assert wave.all_us(steps) < wave.layers * single_layer_us(form, H200, steps)


@pytest.mark.parametrize(
    ("hidden", "batch", "device", "inputs", "steps", "sizes"),
    [
        *((200, 8, H200, 200, 35, sizes) for sizes in ([1], [2], [3], [4], [4, 1], [4, 2])),
        pytest.param(256, 8, H200, 8000, 35, [1, 2], id="wide inputs of the first layer"),
        pytest.param(1024, 8, H200, 1024, 100, [1, 1], id="weights too large"),
        pytest.param(200, 600, H200, 200, 100, [1, 1], id="too many sequences"),
        pytest.param(200, 8, A100, 200, 100, [1, 1], id="no clusters"),
    ],
)
def test_layers_come_in_waves_of_as_many_as_have_room_at_once(
    hidden: int, batch: int, device: Device, inputs: int, steps: int, sizes: list[int]
) -> None:
    waves = select_wavefronts(ProblemSize("lstm", hidden, batch, ARITHMETICS[0]), device, inputs, sum(sizes), steps)
    assert [wave.layers if wave else 1 for wave in waves] == sizes
    assert all(wave.inputs == hidden for wave in waves[1:] if wave)


# On clusters of a CPU.


@pytest.fixture
def in_waves() -> Iterator[list[WavefrontConfig]]:
    """Layers run on a CPU, in one direction by waves, which are listed."""
    seen = Seen()
    with KERNELS["wave"].running({}, seen):
        yield seen.forms


@needs_compiler
@pytest.mark.parametrize("options", [{"bidirectional": True}, {"layers": 1}, {"steps": 1, "mode": "inference"}])
def test_else_layers_run_one_after_the_other(options: dict[str, Any], in_waves: list[WavefrontConfig]) -> None:
    assert verdicts(small("gru", **{"layers": 2, "dtype": "float16", "mode": "training", **options})) == []
    assert not in_waves


@needs_compiler
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"layers": 3}, ["3 layers in a wave"]),
        ({"layers": 3, "projected": True, "input_size": 0}, ["clusters", "2 layers in a wave"]),
        ({"layers": 2, "bidirectional": True}, ["clusters"]),
    ],
)
def test_it_is_said_what_runs(options: dict[str, Any], wanted: list[str], in_waves: list[WavefrontConfig]) -> None:
    found = describe(plan_of_case(small("lstm", mode="training", **options), torch.device("cpu")))
    forward, backward = found.split("; backward: ")
    assert [one.startswith(start) for one, start in zip(forward.split(", then "), wanted, strict=True)] == [True] * len(wanted)
    assert backward.startswith("clusters")
