"""persistent_gpu's forms: each covers its problem and fits the device; which is chosen; each kind passes the rule."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.config import WARPS, Form
from pytest_ecornn.implementations.persistent_gpu.config_ntiled import NTiledGridConfig
from pytest_ecornn.implementations.persistent_gpu.heuristics import (
    candidate_configs,
    estimated_us_with_queueing,
    gemm_step_us,
    select_config,
    streaming_grids,
)
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaConfig, WgmmaForwardConfig
from pytest_ecornn.suites.sanitized import _best
from tests.helpers.persistent import A100, ARITHMETICS, small, verdicts
from tests.helpers.requirements import needs_compiler
from tests.helpers.simulated_kernels import CELLS
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200

FLOAT16, TF32, FLOAT32 = ([arithmetic] for arithmetic in ARITHMETICS)
FORWARD, BACKWARD, BOTH = [False], [True], [False, True]


# What is possible.

# H and B at which forms of all kinds are.
RANGES = {"blocks": (1, 260, 3000), "weights on chip": (1, 2000, 600), "streamed weights": (1600, 4096, 64)}


@pytest.mark.parametrize("sizes", RANGES.values(), ids=RANGES)
@settings(deadline=None)
@given(
    st.data(), st.sampled_from(CELLS), st.sampled_from(ARITHMETICS), st.sampled_from([H200, A100, Device(78, 166_912, 8)]),
    st.booleans(),
)  # fmt: skip
def test_forms_cover_all_units_and_sequences_and_fit(
    sizes: tuple[int, int, int], data: st.DataObject, cell: str, arithmetic: MathMode, device: Device, is_backward: bool
) -> None:
    fewest, most, most_sequences = sizes
    hidden, batch = data.draw(st.integers(fewest, most)), data.draw(st.integers(1, most_sequences))
    problem = ProblemSize(cell, hidden, batch, arithmetic, is_backward)
    forms = candidate_configs(problem, device)
    for form in chain(forms, *(streaming_grids(problem, device) if fewest > 1000 else ())):
        expect_cover(form)
        if isinstance(form, BlockConfig):
            expect_block(form, device)
        elif form.is_grid:
            expect_grid(form, device)
        else:
            expect_cluster(form, device)
    chosen = select_config(problem, device, computes_inputs=True)
    assert not isinstance(chosen, str) or hidden > 800 or "is faster by a GEMM a step" in chosen, chosen


def expect_cover(form: Form) -> None:
    problem, sequences = form.problem, form.tile_batch * form.tiles
    assert sequences * form.clusters >= problem.batch > sequences * (form.clusters - 1)
    if isinstance(form, WgmmaConfig) or form.streamed_fragments:
        assert form.units * form.blocks >= problem.hidden
    elif form.is_grid:
        assert form.units * form.blocks >= problem.hidden > form.units * (form.blocks - form.grid_rows)
    else:
        fewest = 2 if problem.is_backward and not isinstance(form, BlockConfig) else 1
        assert form.blocks == max(fewest, -(-problem.hidden // form.units))


def expect_block(form: BlockConfig, device: Device) -> None:
    problem = form.problem
    assert form.threads % 32 == 0
    assert form.threads // form.k_lanes * form.units_per_thread >= problem.hidden
    assert form.vectors_per_lane * form.k_vector * form.k_lanes >= problem.hidden * (form._gates if problem.is_backward else 1)
    assert 0 <= form.smem_vectors < form.vectors_per_lane
    assert form.blocks_per_sm * form.threads * form.registers <= 65_536
    assert form.registers <= form.max_registers <= 255
    assert form.blocks_per_sm * (form.shared_bytes + 1024) <= device.shared_bytes + 1024
    assert (form.stream_bytes, form.launch.grid, form.launch.shared_bytes) == (0, form.clusters, form.shared_bytes)


def expect_cluster(form: Form, device: Device) -> None:
    assert form.units * form.problem.arithmetic.bytes % 16 == 0
    assert form.blocks <= device.largest_cluster
    assert form.shared_bytes <= device.shared_bytes
    assert 8 * form.reg_fragments < 255  # registers
    assert 1 <= form.reg_fragments <= form.reg_fragments + form.smem_fragments <= form.fragments_per_warp
    assert form.m_tiles_per_warp % form.m_tiles_per_pass == 0
    if form.streamed_fragments:
        assert (form.reg_fragments + form.smem_fragments) % form.m_tiles_per_pass == 0
        assert 1 <= form.stream_stages < form.streamed_fragments // form.m_tiles_per_pass


def expect_grid(form: Form, device: Device) -> None:
    """That all of its groups run at once."""
    problem, arithmetic = form.problem, form.problem.arithmetic
    assert form.launch.grid == form.blocks * form.clusters <= device.num_sms
    assert form.shared_bytes <= device.shared_bytes
    assert 1 <= form.reg_fragments <= form.fragments_per_warp
    if form.streamed_fragments:
        assert problem.hidden > 800
        assert form.clusters == 1
        assert form.reg_fragments <= max(1, form.max_reg_fragments)
        assert (form.reg_fragments + form.smem_fragments) % form.m_tiles_per_pass == 0
        assert 1 <= form.stream_stages <= form.streamed_fragments
        assert form.stream_bytes == 8192 * form.streamed_fragments * form.blocks
    else:
        assert form.stream_stages == 0
    if isinstance(form, NTiledGridConfig):
        assert min(problem.batch, form.tile_batch) <= form.sequences <= form.tile_batch
        assert form.states_per_thread * 32 * WARPS >= form.units * form.sequences
        assert 0 <= form.presplit_fragments <= form.fragments * arithmetic.is_3xtf32
    elif isinstance(form, WgmmaConfig):
        assert form.blocks % form.cluster_blocks == 0
        assert form.m_tiles_per_pass * 128 >= form.block_rows * form.k_partitions
        assert form.block_chunks * form.chunk_fragments * 16 >= form.block_columns * arithmetic.bytes / 4
        assert form.pointwise_tiles * form.pointwise_batch == form.tiles * form.tile_batch
        assert 6 + form.k_partitions * form.stages <= 15  # named barriers
        assert form.reg_fragments + form.smem_fragments == form.fragments
        assert not 0 < form.smem_fragments < 5
    elif problem.is_backward:
        assert form.grid_rows * form.grid_cols == form.blocks
        assert form.m_tiles_per_warp * 128 >= form.units * form.grid_cols * form.k_partitions
        assert (
            form.k_tiles_per_warp * form.k_partitions * 64
            >= GATES[problem.cell] * form.units * form.grid_rows * arithmetic.bytes
        )


def test_what_there_is_where() -> None:
    def kinds(hidden: int, batch: int, device: Device) -> set[type[Form]]:
        return {type(form) for form in candidate_configs(ProblemSize("gru", hidden, batch, ARITHMETICS[1]), device)}

    assert WgmmaForwardConfig in kinds(640, 24, H200)
    assert WgmmaForwardConfig not in kinds(640, 23, H200) | kinds(640, 256, A100)
    for is_backward in (False, True):
        forms = candidate_configs(ProblemSize("lstm", 300, 100, ARITHMETICS[2], is_backward), H200)
        assert not any(isinstance(form, BlockConfig) for form in forms)
    for arithmetic in ARITHMETICS:
        forms = candidate_configs(ProblemSize("lstm", 1024, 8, arithmetic), H200)
        assert not any(form.streamed_fragments for form in forms if form.is_grid)


# What is chosen, or refused: the kind of form and how it says what it is, or the reason.

ON_CHIP, GRID, MANY_TILES = "(clusters|blocks);", "grid", r"grid, (16|24|32) sequences at once"
_DOES_NOT_FIT = (
    "a part of W_hh of 4 x 12288 x 12288 elements of 4 bytes and the {} of 8 sequences must lie in the registers and the "
    "166912 bytes of shared memory of each of 108 multiprocessors$"
)
_GEMM = "H {} at B {} is faster by a GEMM a step: {} takes an estimated [^\n]*$"
_STEP, _STEP_BACKWARD = "a step", "a step backward"
_STREAMS = "W_hh does not fit on chip, and a step that streams the rest"
CHOICES = [
    ("lstm", 128, 8, ARITHMETICS, FORWARD, H200, ON_CHIP),
    ("lstm", 128, 20, ARITHMETICS, BACKWARD, H200, ON_CHIP),
    ("lstm", 1024, 8, ARITHMETICS, FORWARD, H200, GRID),
    ("lstm", 1024, 20, ARITHMETICS, BACKWARD, H200, GRID),
    ("lstm", 1500, 20, ARITHMETICS, BACKWARD, H200, GRID),
    *((*sizes, FLOAT32, BOTH, device, "blocks;") for device in (H200, A100) for sizes in (
        ("lstm", 72, 100), ("lstm", 64, 256), ("gru", 96, 128), ("rnn_tanh", 100, 200),
    )),
    ("lstm", 1500, 20, ARITHMETICS, FORWARD, H200, MANY_TILES),
    ("lstm", 650, 32, FLOAT32, FORWARD, H200, MANY_TILES),
    ("gru", 1280, 256, TF32, BOTH, H200, "grid, wgmma;.*by wgmma"),
    ("gru", 640, 256, FLOAT32, BOTH, H200, "grid, wgmma;.*by wgmma"),
    ("rnn_tanh", 1000, 160, FLOAT32, BOTH, H200, "grid, wgmma;.*by wgmma"),
    ("lstm", 1024, 64, FLOAT16, FORWARD, H200, "grid, wgmma"),
    ("gru", 416, 500, FLOAT16, FORWARD, H200, "(?!grid, wgmma|H )"),
    ("rnn_relu", 2048, 128, FLOAT16, BACKWARD, H200, r"grid, wgmma;.* of 16 x \d+ blocks"),
    ("lstm", 1536, 8, FLOAT16, FORWARD, H200, "grid, 256 readers"),
    ("lstm", 1536, 16, FLOAT16, FORWARD, H200, "grid, 128 readers"),
    ("rnn_relu", 2560, 64, TF32, FORWARD, H200, GRID),
    ("gru", 2048, 32, FLOAT16, BACKWARD, H200, GRID),
    ("lstm", 2048, 128, FLOAT16, BACKWARD, H200, GRID),
    ("rnn_relu", 2560, 64, FLOAT16, BACKWARD, H200, GRID),
    ("gru", 2816, 32, FLOAT32, FORWARD, H200, GRID),
    ("rnn_relu", 2560, 128, FLOAT32, FORWARD, H200, GRID),
    ("rnn_relu", 2560, 128, TF32, FORWARD, H200, _GEMM.format(2560, 128, _STEP)),
    ("gru", 2560, 32, FLOAT16, FORWARD, H200, _GEMM.format(2560, 32, _STEP)),
    ("rnn_relu", 784, 940, TF32, BACKWARD, H200, _GEMM.format(784, 940, _STEP_BACKWARD)),
    ("rnn_relu", 2560, 128, FLOAT16, BACKWARD, H200, GRID),
    ("rnn_relu", 784, 940, TF32, FORWARD, H200, "grid, wgmma"),
    ("rnn_relu", 784, 940, TF32, FORWARD, A100, "(?!H )"),
    ("lstm", 4096, 64, FLOAT32, FORWARD, H200, _GEMM.format(4096, 64, _STREAMS)),
    ("lstm", 2048, 128, FLOAT32, FORWARD, H200, _GEMM.format(2048, 128, _STREAMS)),
    ("lstm", 4096, 256, FLOAT16, FORWARD, H200, _GEMM.format(4096, 256, _STREAMS)),
    ("lstm", 12288, 8, FLOAT32, FORWARD, A100, "H 12288 does not fit: " + _DOES_NOT_FIT.format("states")),
    ("lstm", 12288, 8, FLOAT32, BACKWARD, A100, "H 12288 does not fit backward: " + _DOES_NOT_FIT.format("gradients")),
    (
        "lstm", 16384, 1, FLOAT16, FORWARD, H200,
        "H 16384 does not fit: the states of 8 sequences must lie in the 232448 bytes of shared memory of each block of a "
        "cluster of 16$",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "device", "expected"),
    [
        pytest.param(ProblemSize(cell, hidden, batch, arithmetic, is_backward), device, expected)
        for cell, hidden, batch, arithmetics, passes, device, expected in CHOICES
        for arithmetic in arithmetics
        for is_backward in passes
    ],
    ids=lambda of: "-".join(map(str, of[:3])) if isinstance(of, ProblemSize) else None,
)
def test_the_choice(problem: ProblemSize, device: Device, expected: str) -> None:
    chosen = select_config(problem, device)
    assert re.match(expected, chosen if isinstance(chosen, str) else f"{chosen.kind}; {chosen}")


def test_small_layers_of_many_sequences_run_in_blocks_where_their_input_is_given() -> None:
    for is_backward in (False, True):
        problem = ProblemSize("lstm", 72, 100, ARITHMETICS[2], is_backward)
        form = select_config(problem, H200)
        assert isinstance(form, BlockConfig)
        assert form.clusters <= H200.num_sms * form.blocks_per_sm
        assert not isinstance(select_config(problem, H200, computes_inputs=True), BlockConfig)


def test_blocks_that_do_not_run_at_once_queue() -> None:
    few, many = (
        next(form for form in candidate_configs(ProblemSize("lstm", 72, batch, ARITHMETICS[2]), H200) if form.kind == "blocks")
        for batch in (132, 133)
    )
    assert isinstance(few, BlockConfig)
    assert isinstance(many, BlockConfig)
    assert few.block_sequences == many.block_sequences == 1
    assert few.blocks_per_sm == many.blocks_per_sm == 1
    assert estimated_us_with_queueing(many, H200) == 2 * estimated_us_with_queueing(few, H200)
    assert few.step_us > few.product_us > 0


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_no_hidden_size_to_4096_is_refused_at_few_sequences(cell: str, arithmetic: MathMode, is_backward: bool) -> None:
    for hidden in range(1024, 4097, 512):
        form = select_config(ProblemSize(cell, hidden, 4, arithmetic, is_backward), H200)
        assert isinstance(form, Form), form
        assert form.is_grid


def test_stages_are_in_flight_while_states_are_exchanged() -> None:
    problem = ProblemSize("gru", 2816, 1, ARITHMETICS[0])
    form = select_config(problem, H200)
    assert isinstance(form, Form)
    assert 24 * 1024 < form.stream_stages * form.stage_fragments * 8192 < 80 * 1024
    resident = replace(form, reg_fragments=form.fragments_per_warp, smem_fragments=0, stream_stages=0)
    assert resident.step_us < form.step_us < gemm_step_us(problem)


def test_a_gemm_of_unaligned_rows_takes_twice_as_long_but_in_float32() -> None:
    for arithmetic, factor in zip(ARITHMETICS, (2, 2, 1), strict=True):
        even, odd = (gemm_step_us(ProblemSize("gru", hidden, 64, arithmetic)) for hidden in (2048, 2049))
        assert (odd - 4) / (even - 4) == pytest.approx(factor, rel=0.01)


@pytest.mark.parametrize(("hidden", "batch"), [(650, 32), (768, 16), (1024, 8), (1024, 16)])
def test_weights_are_split_once_where_both_halves_find_room(hidden: int, batch: int) -> None:
    problem = ProblemSize("lstm", hidden, batch, ARITHMETICS[2])
    form = select_config(problem, H200)
    assert isinstance(form, NTiledGridConfig)
    assert form.presplit_fragments > form.fragments / 2
    assert f"; {form.presplit_fragments} of {form.fragments} in two halves" in str(form)
    others = [other for other in candidate_configs(problem, H200) if isinstance(other, NTiledGridConfig)]
    alike = [other for other in others if (other.units, other.n_tiles) == (form.units, form.n_tiles)]
    times = [other.product_us for other in alike if not other.presplit_fragments]
    assert form.product_us < min(times)


# Every kind of form, with clusters and without, run on a CPU.

HIDDEN, BATCH = 26, 19  # which no tile divides
DEVICES = {"compute capability 9.0": H200, "8.0": A100}
CASES = [
    (device, dtype, is_backward, name)
    for device, limits in DEVICES.items()
    for dtype in ("float16", "float32")
    for is_backward in (False, True)
    for name in _best(ProblemSize("gru", HIDDEN, BATCH, MathMode.of(dtype, "ieee"), is_backward), limits)
]


def test_the_kinds_are_all_that_a_device_has() -> None:
    kinds = {device: {name for of, _, _, name in CASES if of == device} for device in DEVICES}
    assert kinds["compute capability 9.0"] - kinds["8.0"] == {"clusters"}
    assert kinds["8.0"] >= {"blocks", "grid", "grid, 128 readers", "grid, 256 readers", "grid, 8 sequences at once"}
    assert "grid, 8 sequences at once, weights split once" in kinds["8.0"]


@needs_compiler
@pytest.mark.parametrize(("device", "dtype", "is_backward", "name"), CASES)
@pytest.mark.test_all(keep=3)
def test_each_passes_the_rule(device: str, dtype: str, is_backward: bool, name: str) -> None:
    def form_of(shape: kernel.Shape, spec: kernel.KernelSpec) -> Form:
        problem = spec.problem(shape.cell, shape.hidden, shape.batch)
        form = _best(problem, limits)[name] if spec.is_backward == is_backward else select_config(problem, limits)
        assert isinstance(form, Form)
        taken.append(form)
        return form

    limits = DEVICES[device]
    taken: list[Form] = []
    with clusters_on_cpu.running_layers(form_of):
        case = small("gru", hidden_size=HIDDEN, batch=BATCH, steps=3, ragged=True, mode="training", dtype=dtype)
        assert verdicts(case) == []
    assert {form.problem.is_backward for form in taken} == {False, True}
