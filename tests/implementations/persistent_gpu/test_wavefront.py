"""persistent_gpu's layers in a wavefront: when they are, and the kernel on clusters of a CPU, where planted faults are seen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import forward as persistent_forward
from pytest_ecornn.implementations.persistent_gpu import kernel, wavefront
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.config_wavefront import MAX_LAYERS, WavefrontConfig
from pytest_ecornn.implementations.persistent_gpu.cost_coefficients import H200 as COEFFICIENTS
from pytest_ecornn.implementations.persistent_gpu.cost_model import WavefrontCostModel, make_cost_model
from pytest_ecornn.implementations.persistent_gpu.describe import describe
from pytest_ecornn.implementations.persistent_gpu.heuristics import clusters, select_config
from pytest_ecornn.implementations.persistent_gpu.heuristics_wavefront import (
    select_wavefront,
    select_wavefronts,
    single_layer_us,
)
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec, Shape
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from pytest_ecornn.verification import calls
from tests.helpers import persistent
from tests.helpers.persistent import (
    ARITHMETICS,
    CELLS,
    assert_a_lost_message_raises,
    expect_right,
    expect_seen,
    layer_of,
    plant_fault,
    small,
    verdicts,
    with_fault,
)
from tests.helpers.requirements import needs_compiler, needs_hopper
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200

A100 = Device(108, 166_912, 1)


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
    assert WavefrontCostModel(wave, COEFFICIENTS).all_us(steps) < wave.layers * single_layer_us(form, H200, steps)


@pytest.mark.parametrize(
    ("layers", "sizes"),
    [(1, [1]), (2, [2]), (3, [3]), (4, [4]), (5, [4, 1]), (6, [4, 2])],
)
def test_layers_come_in_waves_of_four_at_most(layers: int, sizes: list[int]) -> None:
    found = select_wavefronts(ProblemSize("lstm", 200, 8, ARITHMETICS[0]), H200, 200, layers, 35)
    assert [wave.layers if wave else 1 for wave in found] == sizes


def test_a_first_layer_of_wide_inputs_runs_on_its_own_and_those_above_in_a_wave() -> None:
    alone, wave = select_wavefronts(ProblemSize("lstm", 256, 8, ARITHMETICS[0]), H200, 8000, 3, 35)
    assert (alone, wave and (wave.layers, wave.inputs)) == (None, (2, 256))


@pytest.mark.parametrize(
    ("problem", "device"),
    [
        (ProblemSize("lstm", 1024, 8, ARITHMETICS[0]), H200),
        (ProblemSize("lstm", 200, 600, ARITHMETICS[0]), H200),
        (ProblemSize("lstm", 200, 8, ARITHMETICS[0]), A100),
    ],
    ids=["weights too large", "too many sequences", "no clusters"],
)
def test_what_has_no_room_at_once_runs_layer_after_layer(problem: ProblemSize, device: Device) -> None:
    assert select_wavefronts(problem, device, problem.hidden, 2, 100) == [None, None]


# On clusters of a CPU.


def wave_of(shape: Shape, kind: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
    """All layers in one wave, each in three blocks at most, of weights in registers and in shared memory both."""
    problem = kind.problem(shape.cell, shape.hidden, shape.batch)
    small = Device(132, 232_448, 3)
    found = min(
        clusters(partial(WavefrontConfig, problem, layers=layers, inputs=inputs), problem, small),
        key=lambda wave: make_cost_model(wave).step_us,
    )
    return [persistent.with_weights(found, 1, 0, 0)]  # type: ignore[list-item]


@pytest.fixture
def in_waves(request: pytest.FixtureRequest) -> Iterator[list[WavefrontConfig]]:
    """Layers run on a CPU, in one direction by waves, which are listed."""
    seen: list[WavefrontConfig] = []

    def waves_of(shape: Shape, kind: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
        found = wave_of(shape, kind, inputs, layers) if layers > 1 else [None]
        seen.extend(wave for wave in found if wave)
        return found

    with clusters_on_cpu.running_layers(lambda shape, kind: persistent.form_of(shape, kind), waves_of):
        yield seen


@needs_compiler
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options",
    [
        {"layers": 2},
        {"layers": 3, "steps": 7, "has_state": True, "ragged": True, "batch_first": True},
        {"layers": 2, "steps": 1, "batch": 1, "hidden_size": 1, "input_size": 1},
        {"layers": 4, "steps": 2, "batch": 17, "bias": False, "mode": "inference"},
        {"layers": 3, "hidden_size": 40, "batch": 9, "input_size": 70, "has_state": True, "dtype": "bfloat16"},
        {"layers": 2, "hidden_size": 18, "layout": "strided", "mode": "inference"},
        {"layers": 2, "hidden_size": 18, "layout": "offset", "mode": "inference"},
        {"layers": 2, "dtype": "float32", "ragged": True, "has_state": True, "steps": 7},
        {"layers": 2, "dtype": "float32", "precision": "tf32", "hidden_size": 50, "batch": 20},
        {"layers": 3, "projected": True, "input_size": 0, "mode": "inference", "steps": 7},
    ],
    ids=[
        "two layers", "three with all there is", "one of each", "four without biases", "wide inputs", "strided",
        "odd addresses", "float32", "tf32", "projected",
    ],
)  # fmt: skip
@pytest.mark.test_all(keep=2)
def test_the_kernel_passes_the_rule(cell: str, options: dict[str, Any], in_waves: list[WavefrontConfig]) -> None:
    case = small(cell, **{"dtype": "float16", "mode": "training", **options})
    assert verdicts(case) == []
    assert {wave.layers for wave in in_waves} == {case.layers - case.projected}


@needs_compiler
@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(CELLS), st.integers(1, 8), st.integers(1, 20), st.integers(1, 40), st.integers(2, 3), st.booleans(),
    st.integers(0, 2**20), st.sampled_from(["inference", "training"]), st.sampled_from(["bfloat16", "float32"]),
)  # fmt: skip
def test_any_sizes_in_any_order_of_threads(
    cell: str, steps: int, batch: int, hidden: int, layers: int, ragged: bool, seed: int, mode: str, dtype: str
) -> None:
    sizes = {"steps": steps, "batch": batch, "hidden_size": hidden, "layers": layers}
    with clusters_on_cpu.running_layers(persistent.form_of, wave_of):
        case = small(cell, ragged=ragged, has_state=True, seed=seed, mode=mode, dtype=dtype, **sizes)
        assert verdicts(case) == []


@needs_compiler
@pytest.mark.parametrize("options", [{"bidirectional": True}, {"layers": 1}, {"steps": 1, "mode": "inference"}])
def test_else_layers_run_one_after_the_other(options: dict[str, Any], in_waves: list[WavefrontConfig]) -> None:
    assert verdicts(small("gru", **{"layers": 2, "dtype": "float16", "mode": "training", **options})) == []
    assert not in_waves


# Units of a block, tiles, groups; H, I, B and the dtype.
FORMS = {
    "lstm": [(16, 1, 1, 40, 24, 9, "float16"), (32, 2, 4, 70, 6, 19, "float32"), (16, 3, 8, 30, 100, 30, "bfloat16")],
    "gru": [(32, 3, 2, 65, 65, 25, "float32"), (16, 4, 1, 40, 7, 30, "float16")],
    "rnn_relu": [(64, 2, 2, 150, 20, 20, "float16")],
}


def wave_with(sizes: tuple[Any, ...], shape: Shape, kind: KernelSpec, inputs: int, layers: int) -> list[WavefrontConfig | None]:
    units, tiles, groups, *_ = sizes
    problem = kind.problem(shape.cell, shape.hidden, shape.batch)
    wave = WavefrontConfig(problem, units, -(-shape.hidden // units), tiles, groups, layers=layers, inputs=inputs)
    return [persistent.with_weights(wave, 2, 0, 0)]  # type: ignore[list-item]


@needs_compiler
@pytest.mark.parametrize(("cell", "sizes"), [(cell, sizes) for cell, every in FORMS.items() for sizes in every])
def test_every_kind_of_form_passes_the_rule(
    cell: str, sizes: tuple[Any, ...], in_waves: list[WavefrontConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "wave_of", partial(wave_with, sizes))
    *_, hidden, inputs, batch, dtype = sizes
    options = {"steps": 4, "ragged": True, "has_state": True, "mode": "inference", "dtype": dtype, "layers": 2}
    assert verdicts(small(cell, hidden_size=hidden, input_size=inputs, batch=batch, **options)) == []
    assert in_waves


@needs_compiler
def test_what_is_kept_is_what_layers_one_by_one_keep(in_waves: list[WavefrontConfig]) -> None:
    torch.manual_seed(0)
    how = RNNOptions("lstm", False, False, False, False)
    weights = [torch.randn(36, 9), torch.randn(36, 9), torch.randn(36), torch.randn(36)] * 2
    given = torch.randn(5, 3, 9), (), weights, None, how
    found, kept = persistent_forward.forward(*given, keeps=True)
    assert in_waves
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wavefront, "get_wavefronts", clusters_on_cpu.one_by_one)
        wanted, kept_alone = persistent_forward.forward(*given, keeps=True)
    for one, other in zip([found, *kept], [wanted, *kept_alone], strict=True):
        assert len(one) == len(other)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.usefixtures("in_waves")
@pytest.mark.parametrize("cell", CELLS)
def test_memory_that_nobody_wrote_is_not_read(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(self: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        return new_empty(self, *shape, **options).fill_(torch.nan)

    new_empty = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    case = small(cell, layers=3, ragged=True, has_state=True, mode="training", dtype="float16", batch=11, hidden_size=20)
    assert verdicts(case) == []


@needs_compiler
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"layers": 3}, ["3 layers in a wave"]),
        ({"layers": 3, "projected": True, "input_size": 0}, ["blocks", "2 layers in a wave"]),
        ({"layers": 2, "bidirectional": True}, ["blocks"]),
    ],
)
def test_it_is_said_what_runs(options: dict[str, Any], wanted: list[str], in_waves: list[WavefrontConfig]) -> None:
    found = describe(small("lstm", mode="training", **options), torch.device("cpu"))
    forward, backward = found.split("; backward: ")
    assert [one.startswith(start) for one, start in zip(forward.split(", then "), wanted, strict=True)] == [True] * len(wanted)
    assert backward.startswith("blocks")


POLLS = "timed_out = !spin_until([&] { return (ready_steps = ld_acquire(input.step_flags + thread.lane)) > t; });"
AWAITS_INPUTS = "named_barrier_sync(WaveBarrier::InputsFull + input_buffer, THREADS + 32);"
AWAITS_EMPTY = "if (!is_first) named_barrier_sync(WaveBarrier::InputsEmpty + thread.warp, THREADS + 32);"
FAULTS = {
    "an input is not waited for": (POLLS, ";"),
    "one step too early": (POLLS, POLLS.replace("> t", ">= t")),
    "one block below is not polled": ("thread.lane < BLOCKS", "thread.lane < BLOCKS - 1"),
    "another tile set is polled": ("step_flags + ((index)l * sets + set) * BLOCKS", "step_flags + (index)l * sets * BLOCKS"),
    "a step is signalled before it is written": (
        "named_barrier_sync(WaveBarrier::OutputWritten, POINTWISE_THREADS + 32);\n        jitter", "jitter",
    ),
    "inputs are used before they are there": (AWAITS_INPUTS, AWAITS_INPUTS.replace("_sync", "_arrive")),
    "inputs are overwritten before they are used": (AWAITS_EMPTY, AWAITS_EMPTY.replace("_sync", "_arrive")),
    "a step too many is signalled": ("st_release(step_flag, t + 1)", "st_release(step_flag, t + 2)"),
    "states are not waited for": (
        "timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[t % 2][tile]), (t - 1) / 2 % 2);", ";",
    ),
    "sums are written before they are read": (
        "named_barrier_sync(NamedBarrier::SumsEmpty + sum_buffer, BLOCK_THREADS);",
        "named_barrier_arrive(NamedBarrier::SumsEmpty + sum_buffer, BLOCK_THREADS);",
    ),
    "no barrier of the cluster at the start": ("        cluster_sync();\n", ""),
}  # fmt: skip


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_handoff_are_seen(fault: str, in_waves: list[WavefrontConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "wave_of", partial(wave_with, (16, 3, 1)))
    case = small("gru", steps=12, batch=28, hidden_size=40, layers=2, mode="inference")
    expect_seen(case, monkeypatch, "persistent_wave", *FAULTS[fault])
    assert in_waves


LOST = {
    "a layer": ("persistent_wave", "st_release(step_flag, t + 1)", "st_release(step_flag, 0)"),
    "a block": (persistent.GATES_OF_CLUSTER, *persistent.A_BLOCK_IS_SENT_NOTHING),
}


@needs_compiler
@pytest.mark.usefixtures("in_waves")
@pytest.mark.parametrize("who", LOST)
def test_a_lost_message_ends_the_launch_with_nan_and_a_later_call_raises(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small("lstm", hidden_size=40, has_state=True, mode="inference", layers=3)
    problem = contents.problem(case)
    monkeypatch.setattr(kernel, "WATCHDOG_NS", 2000)  # rounds of all threads, here
    with monkeypatch.context() as patch:
        plant_fault(*LOST[who], patch)
        found = calls.run(layer_of(case, problem.weights), problem)
    assert found["output"].isnan().all()
    with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cpu is wrong: a block waited 2e-06 s"):
        calls.run(layer_of(case, problem.weights), problem)
    clusters_on_cpu.forget()
    assert calls.run(layer_of(case, problem.weights), problem)["output"].isfinite().all()


@needs_compiler
@pytest.mark.parametrize("rounds", [100, 200, 300])
def test_where_some_threads_give_up_all_end(
    rounds: int, in_waves: list[WavefrontConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "WATCHDOG_NS", rounds)
    case = small("lstm", steps=8, batch=12, hidden_size=40, mode="inference", dtype="float16", layers=3)
    status = kernel.status_of(torch.device("cpu"))
    for order in range(3):
        failed = verdicts(case, order)
        assert failed == [] or status.reset()
        status.reset()
    assert in_waves


# On a GPU.


def gpu_case(cell: str, **options: Any) -> Case:
    return small(cell, **{"layers": 2, "steps": 9, "device": "cuda", "ragged": True, "has_state": True, **options})


@needs_hopper
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "tf32"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [1, 33, 200, 512])
@pytest.mark.parametrize(("batch", "layers", "steps"), [(1, 2, 50), (20, 3, 300), (8, 4, 35)])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_on_a_gpu_the_kernel_passes_the_rule(
    cell: str, dtype: str, hidden: int, batch: int, layers: int, steps: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[WavefrontConfig | None] = []

    def waves_of(*of: Any) -> list[WavefrontConfig | None]:
        seen.extend(found := found_by(*of))
        return found

    found_by = wavefront.get_wavefronts
    monkeypatch.setattr(wavefront, "get_wavefronts", waves_of)
    precise = {"dtype": "float32", "precision": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    case = gpu_case(cell, hidden_size=hidden, batch=batch, layers=layers, steps=steps, mode=mode, **precise)
    expect_right(case)
    if not any(seen):
        pytest.skip("no wave")


@needs_hopper
def test_on_a_gpu_a_lost_message_raises_and_does_not_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = wavefront._SOURCE
    source = with_fault(right, tmp_path, right.name, LOST["a layer"][1:])
    case = gpu_case("lstm", hidden_size=200, mode="inference")
    assert_a_lost_message_raises(case, monkeypatch, lambda patch: patch.setattr(wavefront, "_SOURCE", source))
