"""persistent_gpu over the whole grid with weights that are streamed: forms, the kernels on a CPU, planted faults, refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.cost_model import make_cost_model
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs, select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.persistent_gpu.streaming.configs import streaming_configs
from pytest_ecornn.implementations.persistent_gpu.streaming.cost import gemm_step_us
from pytest_ecornn.implementations.persistent_gpu.tiling import WARPS
from tests.helpers.persistent import CELLS, expect_seen, fails, plant_fault, small, verdicts, with_weights
from tests.helpers.persistent_grid import A100, ARITHMETICS, PRECISIONS
from tests.helpers.requirements import needs_compiler
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200

FLOAT16, BFLOAT16, FLOAT32, TF32 = PRECISIONS

# The form.


@given(
    st.sampled_from(CELLS), st.integers(1600, 4096), st.integers(1, 64), st.sampled_from(ARITHMETICS),
    st.sampled_from([H200, A100]), st.booleans(),
)  # fmt: skip
def test_a_form_covers_all_units_and_sequences_and_fits(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, device: Device, is_backward: bool
) -> None:
    for form in streaming_configs(ProblemSize(cell, hidden, batch, arithmetic, is_backward), device):
        assert form.units * form.blocks >= hidden
        assert form.clusters == 1
        assert form.blocks <= device.num_sms
        assert form.wide * form.tiles >= batch
        assert form.shared_bytes <= device.shared_bytes
        assert 1 <= form.reg_fragments <= max(1, form.max_reg_fragments)
        assert (form.reg_fragments + form.smem_fragments) % form.m_tiles_per_pass == 0
        assert 1 <= form.stream_stages <= form.streamed_fragments
        assert form.stream_bytes == 8192 * form.streamed_fragments * form.blocks


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_no_hidden_size_to_4096_is_refused_at_few_sequences(cell: str, arithmetic: MathMode, is_backward: bool) -> None:
    for hidden in range(1024, 4097, 512):
        form = select_config(ProblemSize(cell, hidden, 4, arithmetic, is_backward), H200)
        assert isinstance(form, Form), form
        assert form.is_grid


def test_nothing_is_streamed_where_a_grid_has_room() -> None:
    for arithmetic in ARITHMETICS:
        found = candidate_configs(ProblemSize("lstm", 1024, 8, arithmetic), H200)
        assert not any(form.streamed_fragments for form in found if form.is_grid)


def test_stages_are_in_flight_while_states_are_exchanged() -> None:
    problem = ProblemSize("gru", 2816, 1, ARITHMETICS[0])
    form = select_config(problem, H200)
    assert isinstance(form, Form)
    assert 24 * 1024 < form.stream_stages * form.stage_fragments * 8192 < 80 * 1024
    resident = replace(form, reg_fragments=form.fragments_per_warp, smem_fragments=0, stream_stages=0)
    assert make_cost_model(resident).step_us < make_cost_model(form).step_us < gemm_step_us(problem)


def test_what_a_gemm_a_step_beats_is_refused_with_both_times() -> None:
    found = select_config(ProblemSize("lstm", 4096, 256, ARITHMETICS[0]), H200)
    assert isinstance(found, str)
    assert found.startswith("H 4096 at B 256 is faster by a GEMM a step: W_hh does not fit on chip, and a step that streams ")
    assert "\n" not in found


@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "arithmetic", "is_backward"),
    [
        ("rnn_relu", 2560, 128, ARITHMETICS[1], False),
        ("gru", 2560, 32, ARITHMETICS[0], False),
        ("rnn_relu", 784, 940, ARITHMETICS[1], True),
        ("rnn_relu", 2560, 128, ARITHMETICS[0], True),
    ],
)
def test_a_grid_that_was_slower_than_cudnn_is_refused(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, is_backward: bool
) -> None:
    found = str(select_config(ProblemSize(cell, hidden, batch, arithmetic, is_backward), H200))
    step = "a step backward" if is_backward else "a step"
    assert found.startswith(f"H {hidden} at B {batch} is faster by a GEMM a step: {step} takes an estimated ")


@pytest.mark.parametrize(("hidden", "batch"), [(4096, 64), (2048, 128)])
def test_float32_weights_whose_stream_was_slower_than_cudnn_are_refused(hidden: int, batch: int) -> None:
    found = str(select_config(ProblemSize("lstm", hidden, batch, ARITHMETICS[2]), H200))
    step = "W_hh does not fit on chip, and a step that streams the rest"
    assert found.startswith(f"H {hidden} at B {batch} is faster by a GEMM a step: {step} takes an estimated ")


@pytest.mark.parametrize(
    ("cell", "hidden", "batch", "arithmetic", "is_backward"),
    [
        ("rnn_relu", 2560, 64, ARITHMETICS[1], False),
        ("gru", 2048, 32, ARITHMETICS[0], True),
        ("lstm", 2048, 128, ARITHMETICS[0], True),
        ("rnn_relu", 2560, 64, ARITHMETICS[0], True),
        ("gru", 2816, 32, ARITHMETICS[2], False),
        ("rnn_relu", 2560, 128, ARITHMETICS[2], False),
    ],
)
def test_a_grid_that_was_faster_than_cudnn_is_taken(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, is_backward: bool
) -> None:
    found = select_config(ProblemSize(cell, hidden, batch, arithmetic, is_backward), H200)
    assert not isinstance(found, str), found
    assert found.is_grid


def test_without_clusters_grids_of_resident_weights_are_taken() -> None:
    problem = ProblemSize("rnn_relu", 784, 940, ARITHMETICS[1])
    assert isinstance(select_config(problem, H200), str)
    assert isinstance(select_config(problem, A100), Form)


def test_a_gemm_of_unaligned_rows_takes_twice_as_long_but_in_float32() -> None:
    for arithmetic, factor in zip(ARITHMETICS, (2, 2, 1), strict=True):
        even, odd = (gemm_step_us(ProblemSize("gru", hidden, 64, arithmetic)) for hidden in (2048, 2049))
        assert (odd - 4) / (even - 4) == pytest.approx(factor, rel=0.01)


# All blocks of a grid at once, on a CPU.

MakeForm = Callable[[ProblemSize], Form]


@pytest.fixture
def made() -> dict[bool, MakeForm]:
    """What makes forms, forward (False) and backward (True); where there is none forward, all weights stay."""
    return {}


@pytest.fixture
def on_cpu(made: dict[bool, MakeForm]) -> Iterator[None]:
    def form(shape: Shape, kind: KernelSpec) -> Form:
        problem = kind.problem(shape.cell, shape.hidden, shape.batch)
        if kind.is_backward in made:
            return made[kind.is_backward](problem)
        return with_weights(Form(problem, 24, -(-problem.hidden // 24), 1, 2, is_grid=True), 1, 0, 0)

    with clusters_on_cpu.running_layers(form):
        yield


def forward_form(problem: ProblemSize, weights: tuple[int, int, int], units: int, partitions: int = 2, **options: Any) -> Form:
    """weights: fragments in registers and in shared memory, and stages."""
    blocks = -(-problem.hidden // units)
    form = Form(problem, units, blocks, options.pop("tiles", 1), partitions, is_grid=True, **options)
    return streaming(form, weights)


def ntiled_form(problem: ProblemSize, weights: tuple[int, int, int], units: int, tiles: int = 1, **options: Any) -> Form:
    blocks = -(-problem.hidden // units)
    return streaming(NTiledGridConfig(problem, units, blocks, tiles, WARPS, is_grid=True, **options), weights)


def backward_form(
    problem: ProblemSize, weights: tuple[int, int, int], units: int, down: int, partitions: int = 2, **options: Any
) -> Form:
    blocks = -(-problem.hidden // units // down) * down
    form = Form(problem, units, blocks, options.pop("tiles", 1), partitions, is_grid=True, grid_rows=down, **options)
    return streaming(form, weights)


def streaming(form: Form, weights: tuple[int, int, int]) -> Form:
    found = with_weights(form, *weights)
    assert found.streamed_fragments > 0, found
    return found


READERS = {"buffers": 1, "load_threads": 128, "reallocates_registers": True}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("weights", [(1, 0, 1), (1, 1, 3), (5, 0, 1)])
@pytest.mark.parametrize(
    ("cell", "precision", "form", "options"),
    [
        ("lstm", FLOAT16, {"units": 36, "tiles": 2}, {"batch": 17, "ragged": True}),
        ("gru", FLOAT16, {"units": 22, **READERS}, {"batch": 3, "hidden_size": 450}),
        ("gru", FLOAT32, {"units": 36, "tiles": 2, **READERS, "buffers": 2}, {"batch": 17, "bidirectional": True}),
        ("lstm", TF32, {"units": 36, "partitions": 4}, {"hidden_size": 577, "batch": 3, "steps": 9, "ragged": True}),
        ("rnn_tanh", BFLOAT16, {"units": 22, "partitions": 1}, {"hidden_size": 620, "batch": 5}),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_forward_kernel_passes_the_rule(
    weights: tuple[int, int, int], cell: str, precision: dict[str, str], form: dict[str, int], options: dict[str, Any],
    made: dict[bool, MakeForm],
) -> None:  # fmt: skip
    made[False] = lambda problem: forward_form(problem, weights, **form)
    assert verdicts(small(cell, **{"hidden_size": 410, "has_state": True, "mode": "inference", **precision, **options})) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("weights", [(1, 0, 1), (1, 1, 3), (5, 0, 1)])
@pytest.mark.parametrize(
    ("cell", "precision", "form", "options"),
    [
        ("lstm", FLOAT16, {"units": 36, "tiles": 2}, {"batch": 17, "ragged": True}),
        ("gru", FLOAT16, {"units": 50, "n_tiles": 3}, {"batch": 19, "hidden_size": 700}),
        ("gru", FLOAT32, {"units": 36, "n_tiles": 2, "sum_buffers": 1}, {"batch": 13, "bidirectional": True}),
        ("lstm", TF32, {"units": 36}, {"hidden_size": 577, "batch": 3, "steps": 9, "ragged": True}),
        ("rnn_tanh", BFLOAT16, {"units": 66}, {"hidden_size": 1500, "batch": 5, "steps": 3}),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_ntiled_kernel_passes_the_rule(
    weights: tuple[int, int, int], cell: str, precision: dict[str, str], form: dict[str, int], options: dict[str, Any],
    made: dict[bool, MakeForm],
) -> None:  # fmt: skip
    made[False] = lambda problem: ntiled_form(problem, weights, **form)
    case = small(cell, **{"hidden_size": 450, "has_state": True, "mode": "inference", **precision, **options})
    assert verdicts(case) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("weights", [(1, 0, 1), (1, 1, 3), (5, 0, 1)])
@pytest.mark.parametrize(
    ("cell", "precision", "form", "options"),
    [
        ("lstm", FLOAT16, {"units": 12, "down": 8, "tiles": 2, "partitions": 1}, {"batch": 17, "ragged": True}),
        ("gru", FLOAT16, {"units": 22, "down": 4, "partitions": 1}, {"batch": 3}),
        ("gru", FLOAT32, {"units": 12, "down": 4, "tiles": 2, "partitions": 1}, {"batch": 13, "bidirectional": True}),
        ("lstm", TF32, {"units": 18, "down": 4, "partitions": 1}, {"batch": 3, "steps": 9, "ragged": True}),
        ("lstm", FLOAT16, {"units": 12, "down": 8, "tiles": 3, "n_tiles": 2, "partitions": 1}, {"batch": 23, "ragged": True}),
        ("gru", FLOAT32, {"units": 12, "down": 8, "tiles": 4, "n_tiles": 4, "partitions": 1}, {"batch": 29, "steps": 4}),
        ("rnn_tanh", BFLOAT16, {"units": 22, "down": 16, "partitions": 1}, {"hidden_size": 340, "batch": 5}),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_backward_kernel_passes_the_rule(
    weights: tuple[int, int, int], cell: str, precision: dict[str, str], form: dict[str, int], options: dict[str, Any],
    made: dict[bool, MakeForm],
) -> None:  # fmt: skip
    made[True] = lambda problem: backward_form(problem, weights, **form)
    assert verdicts(small(cell, **{"hidden_size": 150, "has_state": True, "mode": "training", **precision, **options})) == []


FAULTS = {
    "they are not waited for": ("cp_async_wait_group<(STREAM_STAGES > 0 ? STREAM_STAGES - 1 : 0)>();", ";"),
    "another stage's": ("(from * 2 * STAGE_FRAGMENTS + i)", "(i)"),
    "the same stage again": ("next = next + 1 < STREAMED_STAGES ? next + 1 : 0;", ""),
    "one stage for all": ("stage = stage + 1 < STREAM_STAGES ? stage + 1 : 0;", ""),
    "another rank's": ("(long long)rank * STREAMED_FRAGMENTS", "(long long)rank * 0"),
}
# Whether it is backward, a form, and H.
KERNELS: dict[str, tuple[bool, MakeForm, int]] = {
    "grid": (False, lambda problem: forward_form(problem, (1, 1, 3), 36), 210),
    "ntiled": (False, lambda problem: ntiled_form(problem, (1, 1, 3), 36, n_tiles=2), 330),
    "backward": (True, lambda problem: backward_form(problem, (1, 1, 3), 12, 8, 1), 96),
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_stream_are_seen(
    fault: str, kernel: str, made: dict[bool, MakeForm], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_backward, make, hidden = KERNELS[kernel]
    made[is_backward] = make
    mode = "training" if is_backward else "inference"
    case = small("lstm", hidden_size=hidden, batch=9, dtype="float16", has_state=True, mode=mode)
    assert verdicts(case) == []
    plant_fault("resident_weights.cuh", *FAULTS[fault], monkeypatch)
    assert fails(case, 0)


FAULTS_OF_SEVERAL_TILES = {
    "another tile's columns": ("persistent_backward", "receive(shared.columns[N_TILES - 1],", "receive(shared.columns[0],"),
    "another tile's sums": ("persistent_backward", "sums.store(shared, thread, n);", "sums.store(shared, thread, 0);"),
    "no barrier before the next sums": ("persistent_backward", "if (n > 0) __syncthreads();", ""),
    "another tile's states": ("b_tile.cuh", "b_ptr[pass * 32 + n * tile_stride]", "b_ptr[pass * 32]"),
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("fault", FAULTS_OF_SEVERAL_TILES)
def test_faults_of_tiles_that_are_multiplied_as_one_are_seen(
    fault: str, made: dict[bool, MakeForm], monkeypatch: pytest.MonkeyPatch
) -> None:
    made[True] = lambda problem: backward_form(problem, (1, 1, 3), 12, 8, 1, tiles=2, n_tiles=2)
    case = small("gru", steps=4, hidden_size=96, batch=14, dtype="float16", mode="training", has_state=True)
    expect_seen(case, monkeypatch, *FAULTS_OF_SEVERAL_TILES[fault])


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kernel", ["grid", "ntiled"])
def test_the_groups_of_a_grid_share_one_copy(kernel: str, made: dict[bool, MakeForm]) -> None:
    _, made[False], hidden = KERNELS[kernel]
    case = small("gru", hidden_size=hidden, batch=33, dtype="float16", mode="inference")
    form = made[False](ProblemSize("gru", hidden, 33, MathMode(2, False)))
    assert form.clusters > 1
    assert form.stream_bytes == 8192 * form.streamed_fragments * form.blocks
    assert verdicts(case) == []
