"""persistent_gpu over the whole grid: forms, the kernel with all its blocks at once on a CPU, and planted faults."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.implementations._common.recurrent_problem import MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from tests.helpers import persistent_grid
from tests.helpers.persistent import CELLS, expect_seen, plant_fault, small, verdicts
from tests.helpers.persistent_grid import (
    A100,
    ARITHMETICS,
    NOT_CHECKED,
    NOT_PUBLISHED,
    PRECISIONS,
    TF32,
    assert_a_lost_packet_is_reported,
    assert_it_fits,
)
from tests.helpers.requirements import needs_compiler
from tests.simulator.clusters_on_cpu import H200

on_cpu, sizes = persistent_grid.on_cpu, persistent_grid.sizes  # fixtures


# The form.


@given(st.sampled_from(CELLS), st.integers(1, 2000), st.integers(1, 600), st.sampled_from(ARITHMETICS))
def test_without_clusters_a_grid_holds_all_weights_of_layers_that_are_not_large(
    cell: str, hidden: int, batch: int, arithmetic: MathMode
) -> None:
    form = select_config(ProblemSize(cell, hidden, batch, arithmetic), A100, computes_inputs=True)
    if isinstance(form, str) or form.streamed_fragments:  # tests/implementations/persistent_gpu/test_streaming.py
        assert hidden > 800, form
        return
    assert_it_fits(form, A100)
    assert form.units * form.blocks >= hidden > form.units * (form.blocks - 1)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize(("hidden", "is_grid"), [(128, False), (1024, True)])
def test_a_cluster_is_taken_while_its_weights_find_room(hidden: int, arithmetic: MathMode, is_grid: bool) -> None:
    form = select_config(ProblemSize("lstm", hidden, 8, arithmetic), H200)
    assert isinstance(form, Form)
    assert form.is_grid == is_grid


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    assert select_config(ProblemSize("lstm", 12288, 8, ARITHMETICS[2]), A100) == (
        "H 12288 does not fit: a part of W_hh of 4 x 12288 x 12288 elements of 4 bytes and the states of 8 sequences must lie "
        "in the registers and the 166912 bytes of shared memory of each of 108 multiprocessors"
    )


# All blocks of a grid at once, on a CPU.


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("buffers", [0, 1, 2])
@pytest.mark.parametrize(
    ("cell", "precision", "changed", "options"),
    [
        ("lstm", PRECISIONS[0], {"tiles": 2}, {"batch": 17, "ragged": True}),
        ("gru", PRECISIONS[2], {"tiles": 2}, {"batch": 17, "bidirectional": True}),
        (
            "lstm",
            PRECISIONS[2],
            {"units": 20, "tiles": 3, "reg_fragments": 3},
            {"hidden_size": 91, "batch": 19, "batch_first": True},
        ),
        ("gru", PRECISIONS[1], {"units": 20, "tiles": 3, "reg_fragments": 3}, {"hidden_size": 61, "batch": 19}),
        ("rnn_tanh", PRECISIONS[3], {"units": 20, "tiles": 3}, {"batch": 19, "ragged": True}),
        ("lstm", PRECISIONS[3], {"units": 36, "groups": 4}, {"hidden_size": 77, "batch": 3, "steps": 9, "ragged": True}),
        ("rnn_relu", PRECISIONS[0], {"units": 36, "groups": 4}, {"hidden_size": 77, "batch": 3, "steps": 9}),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_kernel_passes_the_rule(
    buffers: int, cell: str, precision: dict[str, str], changed: dict[str, int], options: dict[str, Any], sizes: dict[str, int]
) -> None:  # fmt: skip
    sizes.update(changed, buffers=buffers)
    assert verdicts(small(cell, **{"hidden_size": 50, "has_state": True, "mode": "inference", **precision, **options})) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize("precision", [PRECISIONS[0], TF32])
@pytest.mark.parametrize(("buffers", "load_threads"), [(0, 0), (1, 128), (1, 256), (2, 128)])
def test_more_packets_than_a_thread_has_in_flight_arrive_in_rounds(
    buffers: int,
    load_threads: int,
    precision: dict[str, str],
    tiles: int,
    sizes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes.update(units=8, tiles=tiles, buffers=buffers, load_threads=load_threads)
    in_flight = "PACKETS_IN_FLIGHT = BUFFERS > 0 ? 16 : 8;"
    plant_fault("persistent_forward", in_flight, "PACKETS_IN_FLIGHT = 1;", monkeypatch)
    assert verdicts(small("lstm", hidden_size=300, batch=8 * tiles, steps=4, mode="inference", **precision)) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("buffers", [0, 1])
@pytest.mark.parametrize(("batch", "units"), [(1, 4), (2, 8), (5, 4), (8, 8)])
def test_of_few_sequences_only_those_are_told(buffers: int, batch: int, units: int, sizes: dict[str, int]) -> None:
    sizes.update(units=units, buffers=buffers)
    for order in range(2):
        assert verdicts(small("lstm", hidden_size=17, batch=batch, mode="inference"), order) == []


FAULTS = {
    "another epoch": ("thread.number, t + 1, store)", "thread.number, t, store)"),
    "one place for all steps": ("tile) * 2 + t % 2) * PACKETS_PER_TILE", "tile) * 2) * PACKETS_PER_TILE"),
    "no barrier before the product": ("named_barrier_sync(NamedBarrier::StatesFull + buffer, BLOCK_THREADS);", ";"),
    "no barrier before the gates": (
        "            named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);\n            jitter(t, 3);\n",
        "",
    ),
    "no barrier before publishing": ("timed_out = __syncthreads_or(timed_out);", ";"),
}
FAULTS_OF_READERS = {
    "states are not waited for": ("named_barrier_sync(NamedBarrier::StatesFull + buffer, BLOCK_THREADS);", ";"),
    "states are not waited for to be read": (
        "if (iteration++ >= BUFFERS) named_barrier_sync(NamedBarrier::StatesEmpty + buffer, BLOCK_THREADS);",
        "iteration++;",
    ),
    "another buffer": ("!receive_states(receiver, shared.states[buffer]", "!receive_states(receiver, shared.states[0]"),
    "no barrier before publishing": (
        "BLOCK_THREADS),\n                    named_barrier_sync(NamedBarrier::ComputeSynced, THREADS);",
        "BLOCK_THREADS);",
    ),
}
PLANTED = [
    *(("persistent_forward", 0, *fault) for fault in FAULTS.items()),
    *(("persistent_forward", 2, *fault) for fault in FAULTS_OF_READERS.items()),
    *(("ll_packet.cuh", buffers, "an epoch that is not checked", NOT_CHECKED) for buffers in (0, 1)),
    *(("ll_state_packets.cuh", buffers, "a packet is not published", NOT_PUBLISHED) for buffers in (0, 1)),
]


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("name", "buffers", "label", "planted"), PLANTED, ids=lambda of: "" if isinstance(of, tuple) else str(of)
)
def test_faults_of_the_handoff_are_seen(
    name: str, buffers: int, label: str, planted: tuple[str, str], sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes.update(tiles=2, buffers=buffers)
    case = small("lstm", steps=12, batch=12, hidden_size=40, mode="inference", dtype="float16", has_state=True)
    expect_seen(case, monkeypatch, name, *planted)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("buffers", [0, 1, 2])
def test_a_lost_packet_ends_the_launch_with_nan_and_a_later_call_raises(
    buffers: int, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes["buffers"] = buffers
    assert_a_lost_packet_is_reported(monkeypatch, "ll_state_packets.cuh", *NOT_PUBLISHED)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("rounds", [60, 500])
@pytest.mark.parametrize("buffers", [0, 1, 2])
def test_where_some_threads_give_up_all_end(
    buffers: int, rounds: int, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes.update(tiles=2, buffers=buffers)
    monkeypatch.setattr(kernel, "WATCHDOG_NS", rounds)
    case = small("lstm", steps=8, batch=12, hidden_size=40, mode="inference", dtype="float16")
    status = kernel.status_of(torch.device("cpu"))
    for order in range(4):
        with suppress(RuntimeError):
            assert verdicts(case, order) == [] or status.reset()
        status.reset()
