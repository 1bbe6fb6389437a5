"""persistent_gpu for many sequences by wgmma: forms, both kernels with all their blocks on a CPU, and planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import candidate_configs, select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.persistent_gpu.wgmma.config import WgmmaConfig, WgmmaForwardConfig
from pytest_ecornn.suites.forms_gpu import force_config
from pytest_ecornn.verification import calls, verification
from tests.helpers.persistent import expect_seen, small, verdicts
from tests.helpers.persistent_grid import A100, ARITHMETICS, PRECISIONS, assert_a_lost_packet_is_reported, assert_it_fits
from tests.helpers.persistent_wgmma import backward_form_of, form_of
from tests.helpers.requirements import needs_compiler, needs_hopper
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200

FLOAT16, BFLOAT16, FLOAT32, TF32 = PRECISIONS
FOUR_TILES = {"n_tiles": 4, "tiles": 2, "pointwise_batch": 16}
SIX_TILES = {"n_tiles": 6, "tiles": 1, "chunk_fragments": 2, "sum_buffers": 1}
EIGHT_TILES = {"n_tiles": 8, "tiles": 1, "k_partitions": 1, "reg_fragments": 2}
BATCH_FIRST = {"batch": 60, "hidden_size": 61, "batch_first": True}
FEW = Device(132, 232_448, 3)

# All blocks of a grid at once, on a CPU.


@pytest.fixture
def sizes() -> dict[str, int]:
    """Of the form that is forced."""
    return {
        "units": 6, "tiles": 3, "reg_fragments": 1, "cluster": 2, "k_partitions": 2, "n_tiles": 2, "chunk_fragments": 1,
        "stages": 2, "sum_buffers": 2, "pointwise_batch": 8,
    }  # fmt: skip


@pytest.fixture
def on_cpu(sizes: dict[str, int]) -> Iterator[None]:
    with clusters_on_cpu.running_layers(
        lambda shape, kind: form_of(kind.problem(shape.cell, shape.hidden, shape.batch), **sizes)
    ):
        yield


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("cell", "precision", "changed", "options"),
    [
        ("lstm", TF32, {}, {"batch": 41, "ragged": True}),
        ("gru", FLOAT32, {}, {"batch": 40, "bidirectional": True}),
        ("gru", TF32, {"cluster": 1, "k_partitions": 1, "units": 8}, {"batch": 90, "hidden_size": 77}),
        ("rnn_tanh", FLOAT16, {**FOUR_TILES, "units": 20}, {"batch": 50, "ragged": True}),
        (
            "lstm",
            BFLOAT16,
            {**SIX_TILES, "cluster": 1},
            {"batch": 97, "steps": 4},
        ),
        (
            "rnn_relu",
            FLOAT32,
            {**EIGHT_TILES, "units": 20},
            BATCH_FIRST,
        ),
        ("lstm", FLOAT32, {"units": 16, "cluster": 2, "k_partitions": 2}, {"batch": 33, "has_state": False}),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_kernel_passes_the_rule(
    cell: str, precision: dict[str, str], changed: dict[str, int], options: dict[str, Any], sizes: dict[str, int]
) -> None:  # fmt: skip
    sizes.update(changed)
    assert verdicts(small(cell, **{"hidden_size": 50, "has_state": True, "mode": "inference", **precision, **options})) == []


@pytest.fixture
def backward_sizes() -> dict[str, int]:
    """Of the form that is forced backward."""
    return {
        "units": 6, "grid_rows": 2, "tiles": 3, "reg_fragments": 1, "k_partitions": 2, "n_tiles": 2, "chunk_fragments": 1,
        "stages": 2, "sum_buffers": 2, "pointwise_batch": 8,
    }  # fmt: skip


@pytest.fixture
def backward_on_cpu(backward_sizes: dict[str, int]) -> Iterator[None]:
    """Forward the op runs on a cluster."""

    def form(shape: Shape, kind: KernelSpec) -> Form:
        problem = kind.problem(shape.cell, shape.hidden, shape.batch)
        found = backward_form_of(problem, **backward_sizes) if kind.is_backward else select_config(problem, FEW)
        assert isinstance(found, Form)
        return found

    with clusters_on_cpu.running_layers(form):
        yield


@needs_compiler
@pytest.mark.usefixtures("backward_on_cpu")
@pytest.mark.parametrize(
    ("cell", "precision", "changed", "options"),
    [
        ("lstm", TF32, {}, {"batch": 41, "ragged": True}),
        ("gru", FLOAT32, {"grid_rows": 3}, {"batch": 40, "bidirectional": True}),
        ("gru", TF32, {"k_partitions": 1, "units": 8, "grid_rows": 5}, {"batch": 60, "hidden_size": 77}),
        ("rnn_tanh", FLOAT16, {**FOUR_TILES, "units": 10}, {"batch": 50, "ragged": True}),
        ("lstm", BFLOAT16, SIX_TILES, {"batch": 97, "steps": 3}),
        (
            "rnn_relu",
            FLOAT32,
            {**EIGHT_TILES, "units": 8},
            BATCH_FIRST,
        ),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_backward_kernel_passes_the_rule(
    cell: str, precision: dict[str, str], changed: dict[str, int], options: dict[str, Any], backward_sizes: dict[str, int]
) -> None:  # fmt: skip
    backward_sizes.update(changed)
    assert verdicts(small(cell, **{"hidden_size": 50, "has_state": True, "mode": "training", **precision, **options})) == []


# The file, what stands there, and what is planted.
KERNEL, MAINLOOP, POINTWISE = "persistent_forward", "mainloop.cuh", "forward_pointwise_warps.cuh"
EMPTIED = "named_barrier_sync(NamedBarrier::SumsEmpty + buffer, THREADS + POINTWISE_THREADS);"
SYNCED = "            named_barrier_sync(NamedBarrier::PointwiseSynced, POINTWISE_THREADS);\n"
LEFT = "            const index left"
WAITS_FOR_STAGE = "while (!mbarrier_wait_parity(smem_addr(&stages.full"
FAULTS = {
    "one block is not waited for": (KERNEL, "1u : 0u)) * BLOCKS;", "1u : 0u)) * BLOCKS - 1;"),
    "one place for all steps": ("forward_storage.cuh", "((index)(t % 2) * all_passes()", "((index)0 * all_passes()"),
    "sums are sent before others are read": (KERNEL, EMPTIED, ";"),
    "credits are not waited for": (KERNEL, "while (!mbarrier_wait_parity(credits, parity)) {}", ";"),
    "peers' sums are not waited for": (POINTWISE, "while (CLUSTER > 1 && !mbarrier", "while (false && !mbarrier"),
    "a stage is not waited for": (MAINLOOP, WAITS_FOR_STAGE, WAITS_FOR_STAGE.replace("(!", "(false && !")),
    "a stage is loaded before it is empty": (MAINLOOP, "if (is_reused) named_barrier", "if (false) named_barrier"),
    "published before all warps have stored": (POINTWISE, SYNCED + LEFT, LEFT),
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("label", FAULTS)
def test_faults_of_the_handoff_are_seen(label: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes.update(units=8)
    case = small("lstm", steps=8, batch=44, hidden_size=30, mode="inference", has_state=True, **TF32)
    expect_seen(case, monkeypatch, *FAULTS[label])


PUBLISHES = "if (number == 0 && is_published && !timed_out) publish"
NOT_PUBLISHED = (POINTWISE, PUBLISHES, PUBLISHES.replace("number == 0", "number == 0 && group.rank == 0"))


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_what_is_not_published_ends_the_launch_with_nan_and_a_later_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_a_lost_packet_is_reported(monkeypatch, *NOT_PUBLISHED, batch=30, rounds=20_000)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("rounds", [60, 500])
def test_where_some_blocks_give_up_all_end(rounds: int, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "WATCHDOG_NS", rounds)
    case = small("lstm", steps=8, batch=40, hidden_size=40, mode="inference", **TF32)
    status = kernel.status_of(torch.device("cpu"))
    for order in range(4):
        with suppress(RuntimeError):
            assert verdicts(case, order) == [] or status.reset()
        status.reset()


BACKWARD = "persistent_backward"
PUBLISHES_IF = "            if (thread.number == 0 && is_published)"
WRITTEN = "named_barrier_sync(NamedBarrier::SumsWritten + warp / 4, THREADS / 2);"
BACKWARD_FAULTS = {
    "one block's gradients are not waited for": (BACKWARD, "(i + 1u) * GRID_ROWS);", "(i + 1u) * GRID_ROWS - 1);"),
    "one warpgroup's sums are not waited for": (BACKWARD, "* GRID_COLS * 2);", "* GRID_COLS * 2 - 1);"),
    "one place for the gradients of all steps": (BACKWARD, "(tile * GRID_COLS", "((index)pass * GRID_COLS"),
    "one place for the sums of all steps": (BACKWARD, "place * BLOCKS", "(index)pass * BLOCKS"),
    "sums are loaded before others are read": (BACKWARD, "if (is_reused) named_barrier", "if (false) named_barrier"),
    "sums are not waited for": (BACKWARD, "while (i > 0 && !mbarrier", "while (false && !mbarrier"),
    "published before all warps have stored": (BACKWARD, SYNCED + PUBLISHES_IF, PUBLISHES_IF),
    "sums are published before all warps have written": (BACKWARD, WRITTEN, ";"),
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("backward_on_cpu")
@pytest.mark.parametrize("label", BACKWARD_FAULTS)
def test_faults_of_the_handoff_backward_are_seen(
    label: str, backward_sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    backward_sizes.update(units=8, sum_buffers=1 if label.startswith("sums are loaded") else 2)
    case = small("lstm", steps=8, batch=44, hidden_size=30, mode="training", has_state=True, **TF32)
    expect_seen(case, monkeypatch, *BACKWARD_FAULTS[label])


@needs_hopper
@pytest.mark.parametrize("hidden", [112, 128, 256])
def test_on_a_gpu_16_bit_weights_of_8_units_are_right_backward(hidden: int) -> None:
    """Repeats what NVRTC 13.0 miscompiled: the kernel read beyond W_hh."""
    case = Case.parse(f"lstm-T6-B220-I40-H{hidden}-float16-cuda-ragged-state-training")
    problem = ProblemSize("lstm", hidden, case.batch, MathMode.of("float16", "ieee"), is_backward=True)
    forms = [form for form in candidate_configs(problem, H200) if isinstance(form, WgmmaConfig) and form.units == 8]
    assert forms
    contents_of = contents.problem(case)
    reference = verification.ReferenceResult(contents_of)
    for form in forms[:3]:
        with force_config(form):
            found = calls.run(PersistentGpu().build(case, contents_of.weights), contents_of)
        checks = reference.compare(found, PersistentGpu().declared)
        assert [one for one in checks if one.status == "failed"] == []


# The form.


@given(st.sampled_from(tuple(GATES)), st.integers(1, 2000), st.integers(1, 600), st.sampled_from(ARITHMETICS), st.booleans())
def test_every_form_covers_all_units_and_sequences_and_fits(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, is_backward: bool
) -> None:  # fmt: skip
    problem = ProblemSize(cell, hidden, batch, arithmetic, is_backward)
    for form in candidate_configs(problem, H200):
        if not isinstance(form, WgmmaConfig):
            continue
        assert_it_fits(form, H200)
        assert form.blocks % form.cluster_blocks == 0
        assert form.m_tiles_per_pass * 128 >= form.block_rows * form.k_partitions
        words = form.block_columns * arithmetic.bytes / 4
        assert form.block_chunks * form.chunk_fragments * 16 >= words
        assert form.pointwise_tiles * form.pointwise_batch == form.tiles * form.wide
        assert 6 + form.k_partitions * form.stages <= 16  # named barriers
        assert form.reg_fragments + form.smem_fragments == form.fragments
        assert not 0 < form.smem_fragments < 5


def test_few_sequences_and_devices_without_clusters_have_no_such_form() -> None:
    def kinds(batch: int, device: Device) -> set[type[Form]]:
        return {type(form) for form in candidate_configs(ProblemSize("gru", 640, batch, ARITHMETICS[1]), device)}

    assert WgmmaForwardConfig in kinds(24, H200)
    assert WgmmaForwardConfig not in kinds(23, H200) | kinds(256, A100)


@pytest.mark.parametrize(("cell", "hidden", "batch", "arithmetic"), [
    ("gru", 1280, 256, ARITHMETICS[1]), ("gru", 640, 256, ARITHMETICS[2]), ("rnn_tanh", 1000, 160, ARITHMETICS[2]),
])  # fmt: skip
@pytest.mark.parametrize("is_backward", [False, True])
def test_wgmma_is_chosen_for_many_sequences(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, is_backward: bool
) -> None:  # fmt: skip
    chosen = select_config(ProblemSize(cell, hidden, batch, arithmetic, is_backward), H200)
    assert isinstance(chosen, WgmmaConfig)
    assert "by wgmma" in str(chosen)


def test_in_16_bits_wgmma_is_chosen_where_it_was_faster() -> None:
    """Of wgmma's backward forms of one speed by other roles, one with few rows of blocks."""

    def chosen(cell: str, hidden: int, batch: int, is_backward: bool = False) -> Form | str:
        return select_config(ProblemSize(cell, hidden, batch, ARITHMETICS[0], is_backward), H200)

    assert isinstance(chosen("lstm", 1024, 64), WgmmaForwardConfig)
    assert not isinstance(chosen("gru", 416, 500), WgmmaConfig)
    backward = chosen("rnn_relu", 2048, 128, is_backward=True)
    assert isinstance(backward, WgmmaConfig)
    assert backward.grid_rows == 16


@pytest.mark.parametrize(("batch", "load_threads"), [(8, 256), (16, 128)])
def test_beside_other_groups_fewer_threads_read_many_packets(batch: int, load_threads: int) -> None:
    chosen = select_config(ProblemSize("lstm", 1536, batch, ARITHMETICS[0]), H200)
    assert isinstance(chosen, Form)
    assert chosen.load_threads == load_threads
