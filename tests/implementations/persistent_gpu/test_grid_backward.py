"""persistent_gpu's backward pass over the whole grid: forms, the kernel with all its blocks at once on a CPU, and faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.cases import contents
from pytest_ecornn.implementations import persistent_gpu
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu, heuristics, kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.verification import calls
from tests.helpers.persistent import (
    CELLS,
    assert_a_lost_message_raises,
    expect_right,
    expect_seen,
    plant_fault,
    small,
    verdicts,
    with_fault,
    with_weights,
)
from tests.helpers.persistent_grid import A100, ARITHMETICS, NOT_CHECKED, NOT_PUBLISHED, PRECISIONS, assert_it_fits
from tests.helpers.requirements import needs_ampere, needs_compiler
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200

FLOAT16, BFLOAT16, FLOAT32, TF32 = PRECISIONS


# The form.


@given(st.sampled_from(CELLS), st.integers(1, 2000), st.integers(1, 600), st.sampled_from(ARITHMETICS))
def test_without_clusters_a_grid_holds_all_weights_of_layers_that_are_not_large(
    cell: str, hidden: int, batch: int, arithmetic: MathMode
) -> None:
    form = select_config(ProblemSize(cell, hidden, batch, arithmetic, is_backward=True), A100, computes_inputs=True)
    if isinstance(form, str) or form.streamed_fragments:  # tests/implementations/persistent_gpu/test_streaming.py
        assert hidden > 800, form
        return
    assert_it_fits(form, A100)
    assert form.grid_rows * form.grid_cols == form.blocks
    assert form.units * form.blocks >= hidden > form.units * (form.blocks - form.grid_rows)
    assert form.m_tiles_per_warp * 128 >= form.units * form.grid_cols * form.k_partitions
    assert form.k_tiles_per_warp * form.k_partitions * 64 >= GATES[cell] * form.units * form.grid_rows * arithmetic.bytes


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(("hidden", "is_grid"), [(128, False), (1024, True), (1500, True)])
def test_a_cluster_is_taken_while_its_weights_find_room(hidden: int, arithmetic: MathMode, is_grid: bool) -> None:
    form = select_config(ProblemSize("lstm", hidden, 20, arithmetic, is_backward=True), H200)
    assert isinstance(form, Form)
    assert form.is_grid == is_grid


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    assert select_config(ProblemSize("lstm", 12288, 8, ARITHMETICS[2], is_backward=True), A100) == (
        "H 12288 does not fit backward: a part of W_hh of 4 x 12288 x 12288 elements of 4 bytes and the gradients of 8 "
        "sequences must lie in the registers and the 166912 bytes of shared memory of each of 108 multiprocessors"
    )


# All blocks of a grid at once, on a CPU.


@pytest.fixture
def sizes() -> dict[str, int]:
    """Of the form that is forced backward."""
    return {"units": 12, "down": 2, "tiles": 1, "groups": 2, "reg_fragments": 1}


@pytest.fixture
def on_cpu(sizes: dict[str, int]) -> Iterator[None]:
    """Forward the op runs on a cluster."""

    def form(shape: Shape, kind: KernelSpec) -> Form:
        problem = kind.problem(shape.cell, shape.hidden, shape.batch)
        found = (
            form_of(problem, **sizes)
            if kind.is_backward
            else select_config(problem, Device(132, 232_448, 3), computes_inputs=True)
        )
        assert isinstance(found, Form)
        return found

    with clusters_on_cpu.running_layers(form):
        yield


def form_of(problem: ProblemSize, units: int, down: int, tiles: int, groups: int, reg_fragments: int) -> Form:
    blocks = -(-problem.hidden // units // down) * down
    return with_weights(Form(problem, units, blocks, tiles, groups, is_grid=True, grid_rows=down), reg_fragments, 0, 0)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16, FLOAT32, TF32], ids=["float16", "bfloat16", "float32", "tf32"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.test_all(keep=2)
def test_the_kernel_passes_the_rule(cell: str, precision: dict[str, str]) -> None:
    options = {"hidden_size": 50, "batch": 9, "ragged": True, "bidirectional": True, "has_state": True}
    assert verdicts(small(cell, mode="training", **precision, **options)) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("cell", "precision", "changed", "options"),
    [
        ("lstm", FLOAT16, {"tiles": 2}, {"batch": 17, "ragged": True}),
        ("gru", FLOAT32, {"tiles": 2, "down": 3}, {"batch": 17, "bidirectional": True}),
        ("lstm", FLOAT32, {"units": 20, "tiles": 3, "reg_fragments": 3, "groups": 4}, {"hidden_size": 91, "batch": 19}),
        ("lstm", FLOAT32, {"tiles": 2}, {"batch": 13, "batch_first": True, "ragged": True, "bidirectional": True}),
        ("gru", BFLOAT16, {"units": 20, "tiles": 3, "reg_fragments": 3, "groups": 1}, {"hidden_size": 61, "batch": 19}),
        ("rnn_tanh", TF32, {"units": 40, "tiles": 3, "down": 1}, {"hidden_size": 81, "batch": 19, "ragged": True}),
        ("lstm", TF32, {"units": 36, "groups": 8}, {"hidden_size": 77, "batch": 3, "steps": 9, "ragged": True}),
        ("rnn_relu", FLOAT16, {"units": 36, "down": 3}, {"hidden_size": 77, "batch": 3, "steps": 9, "layout": "strided"}),
        ("lstm", FLOAT16, {"units": 8, "down": 4}, {"hidden_size": 64, "batch": 3, "layers": 2, "contents": "saturated"}),
    ],
)  # fmt: skip
def test_every_kind_of_form_passes_the_rule(
    cell: str, precision: dict[str, str], changed: dict[str, int], options: dict[str, Any], sizes: dict[str, int]
) -> None:
    sizes.update(changed)
    assert verdicts(small(cell, **{"hidden_size": 50, "has_state": True, "mode": "training", **precision, **options})) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("batch", "units"), [(1, 4), (2, 8), (5, 4), (8, 8)])
def test_of_few_sequences_only_those_are_told(batch: int, units: int, sizes: dict[str, int]) -> None:
    sizes["units"] = units
    for order in range(2):
        assert verdicts(small("lstm", hidden_size=17, batch=batch, steps=3, mode="training"), order) == []
    assert verdicts(small("rnn_tanh", hidden_size=1, batch=batch, steps=1, mode="training")) == []


NEXT = " " * 12
FAULTS = {
    "another step's sums": ("sums.receive(shared, mailboxes, thread, i - 1, ", "sums.receive(shared, mailboxes, thread, i, "),
    "another step's gradients": ("thread, i, tile, tiles));", "thread, i + 1, tile, tiles));"),
    "another epoch": ("thread.number, i + 1, [&]", "thread.number, i, [&]"),
    "one place for all steps": ("* 2 + i % 2) * each", "* 2) * each"),
    "another block's sums": ("GRID_COLS + to) * GRID_COLS + thread.across()", "GRID_COLS + to) * GRID_COLS"),
    "a sum is not published": ("p < GRID_COLS * SUM_PACKETS; p += THREADS", "p < GRID_COLS * SUM_PACKETS - 1; p += THREADS"),
    "no barrier before the sums are added": (NEXT + "timed_out = __syncthreads_or(timed_out);\n            if", NEXT + "if"),
    "no barrier before publishing gradients": ("            __syncthreads();\n            jitter(i, 2);\n", ""),
    "no barrier before the product": ("__syncthreads_or(!gradients.receive_all(", "(!gradients.receive_all("),
    "no barrier before publishing sums": (NEXT + "    __syncthreads();\n" + NEXT + "    jitter(i, 4);\n", ""),
}  # fmt: skip
PLANTED = {
    "persistent_backward": FAULTS,
    "ll_state_packets.cuh": {"a packet is not published": NOT_PUBLISHED},
    "ll_packet.cuh": {"an epoch that is not checked": NOT_CHECKED},
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, faults in PLANTED.items() for fault in faults])
def test_faults_of_the_handoff_are_seen(name: str, fault: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes["tiles"] = 2
    case = small("lstm", steps=12, batch=12, hidden_size=40, mode="training", dtype="float16", has_state=True)
    expect_seen(case, monkeypatch, name, *PLANTED[name][fault])


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("name", "fault"),
    [("persistent_backward", "a sum is not published"), ("ll_state_packets.cuh", "a packet is not published")],
)
def test_a_lost_packet_ends_the_launch_with_nan_and_a_later_call_raises(
    name: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = small("gru", hidden_size=40, has_state=True, mode="training")
    problem = contents.problem(case)
    layer = persistent_gpu.make_layer(case, problem.weights, torch.device("cpu"))
    monkeypatch.setattr(kernel, "WATCHDOG_NS", 2000)  # rounds of all threads, here
    with monkeypatch.context() as patch:
        plant_fault(name, *PLANTED[name][fault], patch)
        found = calls.run(layer, problem)
    gradients = {name: one for name, one in found.items() if name.startswith("grad")}
    assert all(torch.as_tensor(one).isnan().any() for one in gradients.values())
    assert all(found[f"grad {name}_l0"].isnan().all() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cpu is wrong: a block waited 2e-06 s"):
        calls.run(layer, problem)
    clusters_on_cpu.forget()
    calls.run(layer, problem)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("rounds", [300, 700])
def test_where_some_threads_give_up_all_end(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "WATCHDOG_NS", rounds)
    case = small("lstm", steps=8, batch=12, hidden_size=40, mode="training", dtype="float16")
    status = kernel.status_of(torch.device("cpu"))
    for order in range(4):
        with suppress(RuntimeError):  # of the backward pass, after a forward pass that gave up
            assert verdicts(case, order) == [] or status.reset()
        status.reset()


# On a GPU.


@pytest.fixture
def no_clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every layer lies in a grid, forward and backward."""
    monkeypatch.setattr(heuristics, "clusters", lambda make, problem, device: iter(()))
    monkeypatch.setattr(kernel, "compile_layer", lru_cache(kernel.compile_layer.__wrapped__))
    clusters_on_cpu.forget()
    yield
    clusters_on_cpu.forget()


@needs_ampere
@pytest.mark.usefixtures("no_clusters")
@pytest.mark.parametrize("precision", [FLOAT16, BFLOAT16, FLOAT32, TF32], ids=["float16", "bfloat16", "float32", "tf32"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [1, 33, 200, 650, 1024, 1500])
@pytest.mark.parametrize("batch", [1, 20, 40])
def test_on_a_gpu_the_kernel_passes_the_rule(cell: str, precision: dict[str, str], hidden: int, batch: int) -> None:
    options = {"ragged": True, "has_state": True, "bidirectional": True, "mode": "training", "device": "cuda", "steps": 9}
    case = small(cell, hidden_size=hidden, batch=batch, **precision, **options)
    if reason := PersistentGpu().unsupported(case, torch.device("cuda")):
        pytest.skip(reason)
    expect_right(case)


@needs_ampere
@pytest.mark.usefixtures("no_clusters")
def test_on_a_gpu_a_lost_packet_raises_and_does_not_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = kernel._GRID_SOURCES[True]
    source = with_fault(right, tmp_path, right.name, FAULTS["a sum is not published"])
    case = small("lstm", hidden_size=200, mode="training", device="cuda")
    assert_a_lost_message_raises(case, monkeypatch, lambda patch: patch.setitem(kernel._GRID_SOURCES, True, source))
