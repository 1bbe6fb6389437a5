"""persistent_gpu by blocks that have all weights: the forms, their choice, the kernels on a CPU, and planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import kernel, ops
from pytest_ecornn.implementations.persistent_gpu.blocks.config import BlockConfig
from pytest_ecornn.implementations.persistent_gpu.blocks.heuristics import block_configs
from pytest_ecornn.implementations.persistent_gpu.cost_model import make_cost_model
from pytest_ecornn.implementations.persistent_gpu.heuristics import estimated_us_with_queueing, select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from tests.helpers.persistent import CELLS, expect_seen, small, verdicts
from tests.helpers.persistent_grid import A100, ARITHMETICS
from tests.helpers.requirements import needs_compiler
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200

FLOAT32 = MathMode(4, True)


# The form, and when it is chosen.


@settings(deadline=None)
@given(
    st.sampled_from(CELLS), st.integers(1, 260), st.integers(1, 3000), st.sampled_from(ARITHMETICS),
    st.sampled_from([H200, A100]), st.booleans(),
)  # fmt: skip
def test_a_form_covers_all_units_and_sequences_and_fits(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, device: Device, is_backward: bool
) -> None:
    for form in block_configs(ProblemSize(cell, hidden, batch, arithmetic, is_backward), device):
        assert form.threads % 32 == 0
        assert form.threads // form.k_lanes * form.units_per_thread >= hidden
        assert form.clusters * form.block_sequences >= batch > (form.clusters - 1) * form.block_sequences
        assert form.vectors_per_lane * form.k_vector * form.k_lanes >= hidden * (form._gates if is_backward else 1)
        assert 0 <= form.smem_vectors < form.vectors_per_lane
        assert form.blocks_per_sm * form.threads * form.registers <= 65_536
        assert form.registers <= form.max_registers <= 255
        assert form.blocks_per_sm * (form.shared_bytes + 1024) <= device.shared_bytes + 1024
        assert (form.stream_bytes, form.launch.grid, form.launch.shared_bytes) == (0, form.clusters, form.shared_bytes)


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize(
    ("cell", "hidden", "batch"), [("lstm", 72, 100), ("lstm", 64, 256), ("gru", 96, 128), ("rnn_tanh", 100, 200)]
)
def test_small_layers_of_many_sequences_run_in_blocks_of_their_own(
    cell: str, hidden: int, batch: int, is_backward: bool
) -> None:
    problem = ProblemSize(cell, hidden, batch, FLOAT32, is_backward)
    form = select_config(problem, H200)
    assert isinstance(form, BlockConfig)
    assert form.clusters <= H200.num_sms * form.blocks_per_sm
    assert isinstance(select_config(problem, A100), BlockConfig)
    assert not isinstance(select_config(problem, H200, computes_inputs=True), BlockConfig)


def test_a_layer_whose_weights_find_no_room_has_no_such_form() -> None:
    for is_backward in (False, True):
        assert not list(block_configs(ProblemSize("lstm", 300, 100, FLOAT32, is_backward), H200))


def test_blocks_that_do_not_run_at_once_queue() -> None:
    few, many = (ProblemSize("lstm", 72, batch, FLOAT32) for batch in (132, 133))
    one, two = (next(form for form in block_configs(problem, H200) if form.block_sequences == 1) for problem in (few, many))
    assert one.blocks_per_sm == two.blocks_per_sm == 1
    assert estimated_us_with_queueing(two, H200) == 2 * estimated_us_with_queueing(one, H200)
    assert make_cost_model(one).step_us > make_cost_model(one).product_us > 0


# On a CPU.


@pytest.fixture
def sizes() -> dict[str, int]:
    """Of the form that is forced; units_per_thread of a cell that has gates."""
    return {"units_per_thread": 2, "block_sequences": 2, "k_vector": 2, "smem_vectors": 0}


@pytest.fixture
def on_cpu(sizes: dict[str, int]) -> Iterator[None]:
    def form_of(shape: kernel.Shape, kind: KernelSpec) -> BlockConfig:
        problem = kind.problem(shape.cell, shape.hidden, shape.batch)
        units = sizes["units_per_thread"] * (4 if shape.cell.startswith("rnn") else 1)
        return BlockConfig(problem, shape.hidden, 1, 1, 1, **{**sizes, "units_per_thread": units})

    with clusters_on_cpu.running_layers(form_of):
        yield


ALL = {"ragged": True, "has_state": True, "bidirectional": True}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({}, {"dtype": "float16"}),
        ({"block_sequences": 1}, {"dtype": "float32", **ALL}),
        ({"units_per_thread": 4, "k_vector": 4, "block_sequences": 3}, {"hidden_size": 18, "batch": 5, "has_state": True}),
        ({"units_per_thread": 1}, {"hidden_size": 1, "batch": 1, "steps": 1}),
        (
            {"units_per_thread": 8, "k_vector": 1, "block_sequences": 4},
            {"hidden_size": 33, "dtype": "float32", "precision": "tf32", "layers": 2, "batch_first": True, **ALL},
        ),
        ({"smem_vectors": 1}, {"hidden_size": 20, "dtype": "float32", **ALL}),
        ({"smem_vectors": 2, "k_vector": 1}, {"hidden_size": 37, "dtype": "bfloat16", "batch": 7}),
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_kernels_pass_the_rule(cell: str, changed: dict[str, int], options: dict[str, Any], sizes: dict[str, int]) -> None:
    sizes.update(changed)
    assert verdicts(small(cell, mode="training", **options)) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cell", CELLS)
def test_inference_alone_passes_the_rule(cell: str) -> None:
    assert verdicts(small(cell, mode="inference", projected=True, input_size=0, layout="strided", hidden_size=18)) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_an_infinite_state_is_not_made_nan_by_units_that_are_not_there() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(6, 19), torch.randn(8, 3, 6)
    first = torch.zeros(2, 1, 3, 19)
    first[0, 0, 1, 3] = torch.inf
    how = RNNOptions("lstm", batch_first=False, bidirectional=False, projected=False, tf32=False)
    with torch.inference_mode():
        expected, _ = layer(x, tuple(first))
        found = ops.run(x, tuple(first), list(layer.parameters()), None, how)
    assert expected.isfinite().all()
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-6)


STORES = "        __syncthreads();\n        pointers.store(results"
STORES_GRADIENTS = "        __syncthreads();\n        if (i < steps) pointers.store"
SUMS = "for (int mask = K_LANES / COUNT / 2; mask > 0; mask /= 2)"
SENDS = "sent = is_upper ? values[s][j] : values[s][j + LEFT];"
FAULTS = {
    "one buffer of states": ("persistent_forward", "shared.states[(t + 1) % 2].at", "shared.states[t % 2].at"),
    "no barrier after the states": ("persistent_forward", STORES, "        pointers.store(results"),
    "no barrier before the first step": ("persistent_forward", "jitter(-1, 0);\n    __syncthreads();", "jitter(-1, 0);"),
    "states that were not set to 0": ("persistent_forward", "zero_smem(shared.states, sizeof(shared.states));", ""),
    "the gate of another lane": ("persistent_forward", "gates[s], (GATES - 1) ^ 1)", "gates[s], (GATES - 1) ^ 2)"),
    "one buffer of gradients": ("persistent_backward", "shared.gradients[i % 2].at", "shared.gradients[(i + 1) % 2].at"),
    "no barrier after the gradients": ("persistent_backward", STORES_GRADIENTS, "        if (i < steps) pointers.store"),
    "weights that are read too early": (
        "persistent_backward", "__syncthreads();\n    weights.for_each", "weights.for_each",
    ),
    "weights that are overwritten too early": (
        "persistent_backward", "jitter(-1, 0);\n    __syncthreads();", "jitter(-1, 0);",
    ),
    "sums of half the lanes": ("lane_sums.cuh", SUMS, SUMS.replace("mask > 0", "mask > 1")),
    "the other half of the sums": ("lane_sums.cuh", SENDS, SENDS.replace("values[s][j + LEFT]", "values[s][j]")),
}  # fmt: skip


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(fault: str, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes.update(smem_vectors=1)
    case = small("lstm", hidden_size=19, batch=3, steps=8, dtype="float32", has_state=True, mode="training")
    expect_seen(case, monkeypatch, *FAULTS[fault])
