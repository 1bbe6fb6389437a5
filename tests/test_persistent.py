"""persistent_gpu: its form is a function of the shape; its kernel runs on clusters of a CPU, where planted faults are seen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ecornn import calls, contents, verification
from pytest_ecornn.contract import Case, Layer
from pytest_ecornn.implementations import _persistent_op, persistent_gpu
from pytest_ecornn.implementations._persistent_form import GATES, Device, Form, choose
from pytest_ecornn.implementations.cuda.layout_memo import LayoutMemo
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu
from tests import clusters_on_cpu
from tests.clusters_on_cpu import ClustersOnCpu, Hangs

CELLS = tuple(GATES)
H200 = Device(132, 232_448, 16)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


# The form.


@given(st.sampled_from(CELLS), st.integers(1, 1100), st.integers(1, 600), st.sampled_from([H200, Device(78, 166_912, 8)]))
def test_a_form_covers_all_units_and_sequences_and_fits(cell: str, hidden: int, batch: int, device: Device) -> None:
    form = choose(cell, hidden, batch, device)
    if isinstance(form, str):
        assert hidden > 384, form
        return
    assert form.units * form.blocks >= hidden > form.units * (form.blocks - 1)
    assert 8 * form.tiles * form.clusters >= batch > 8 * form.tiles * (form.clusters - 1)
    assert form.warps % 4 == 0
    assert form.blocks <= device.largest_cluster
    assert 1 <= form.held <= form.slices
    assert 4 * form.held * 32 * form.warps < 65_536
    assert form.shared_bytes <= device.shared_bytes


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    found = choose("lstm", 1024, 1, H200)
    assert found == (
        "H 1024 does not fit: W_hh of 4 x 1024 x 1024 elements of 2 bytes must lie in the registers and the 232448 bytes of "
        "shared memory of each of 16 blocks"
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("mingru-T3-B2-H4-bfloat16-cuda", "no mingru: rnn_tanh, rnn_relu, lstm, gru only"),
        ("lstm-T3-B2-H4-bfloat16-cuda-training", "has no backward pass yet"),
        ("lstm-T3-B2-H4-float32-cuda", "runs bfloat16 and float16, not float32"),
        ("lstm-T3-B2-H4-float16", "runs on a CUDA device"),
        ("lstm-T1073741824-B1-H1-float16-cuda", "T and G * B * H must be below 2^30, got 1073741824"),
    ],
)
def test_what_it_will_not_run_has_a_reason(case: str, reason: str) -> None:
    found = Case.parse(case)
    assert PersistentGpu().unsupported(found, torch.device(found.device)) == reason


# On clusters of a CPU.


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The op runs on a CPU, on clusters small enough that many threads take turns there."""

    def plan(shape: _persistent_op.Shape, dtype: torch.dtype, device: torch.device) -> tuple[Form, Any]:
        form = choose(shape.cell, shape.hidden, shape.batch, Device(132, 232_448, 3))
        assert isinstance(form, Form)
        form = replace(form, held=1)  # of weights in registers and in shared memory both
        return form, _persistent_op.make_kernel(shape, dtype, device, form)

    monkeypatch.setattr(_persistent_op, "Kernel", ClustersOnCpu)
    monkeypatch.setattr(_persistent_op, "plan", plan)
    monkeypatch.setattr(_persistent_op, "_launches", LayoutMemo(_persistent_op._prepared))
    monkeypatch.setattr(torch.cuda, "device", lambda of: nullcontext())
    with torch.library._scoped_library("pytest_ecornn", "IMPL") as library:
        library.impl("persistent_forward", _persistent_op._forward, "CPU")
        yield


def layer_of(case: Case, weights: Any) -> Layer:
    return persistent_gpu.make_layer(case, {name: weights.masked(name).detach() for name in weights}, torch.device("cpu"))


def verdicts(case: Case) -> list[verification.Comparison]:
    problem = contents.problem(case)
    found = calls.run(layer_of(case, problem.weights), problem)
    return [one for one in verification.Expected(problem).compare(found, PersistentGpu().declared) if one.status == "failed"]


def small(cell: str, **options: Any) -> Case:
    return Case(**{"cell": cell, "steps": 5, "batch": 3, "hidden_size": 9, "input_size": 6, "dtype": "bfloat16", **options})


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 1, "batch": 1, "hidden_size": 1, "input_size": 1},
        {"hidden_size": 40, "batch": 17, "has_state": True, "bias": False},
        {"layers": 2, "bidirectional": True, "ragged": True, "has_state": True, "batch_first": True, "steps": 9},
        {"projected": True, "bidirectional": True, "input_size": 0, "batch": 9},
        {"density": 0.4, "contents": "saturated"},
        {"layout": "strided", "hidden_size": 18},
    ],
    ids=["plain", "one of each", "two tiles with states", "all at once", "projected", "sparse", "strided"],
)
def test_the_kernel_passes_the_rule(cell: str, dtype: str, options: dict[str, Any]) -> None:
    assert verdicts(small(cell, **{"dtype": dtype, **options})) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@settings(max_examples=10, deadline=None)
@given(
    st.sampled_from(CELLS), st.integers(1, 12), st.integers(1, 33), st.integers(1, 48), st.booleans(), st.integers(0, 2**20),
)  # fmt: skip
def test_any_sizes_in_any_order_of_threads(cell: str, steps: int, batch: int, hidden: int, ragged: bool, seed: int) -> None:
    case = small(cell, steps=steps, batch=batch, hidden_size=hidden, ragged=ragged, has_state=True, seed=seed)
    assert verdicts(case) == []


SENDS = "for (word number = me.warp; number < BLOCKS;"
WAITS = "is_stuck = !wait_for(address_of(&shared.barriers[now]), (t - 1) / 2 % 2);"
FAULTS = {
    "a block is told nothing": (SENDS, SENDS.replace("BLOCKS", "BLOCKS - 1")),
    "the other parity": (WAITS, WAITS.replace("t - 1", "t + 1")),
    "no wait": (WAITS, ";"),
    "one buffer of states": ("now = t % 2, next = 1 - now", "now = 0, next = 0"),
    "one buffer of what leaves": ("shared.leaving[next]", "shared.leaving[0]"),
    "no barrier of the block": ("is_stuck = __syncthreads_or(is_stuck);", ";"),
    "too few bytes": ("BLOCKS * PIECES * 16", "(BLOCKS * PIECES - 1) * 16"),
    "no barrier of the cluster at the start": ("    sync_cluster();\n    bool", "    bool"),
}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_the_handoff_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = FAULTS[fault]

    def change(text: str) -> str:
        assert right in text
        return text.replace(right, wrong)

    monkeypatch.setattr(ClustersOnCpu, "change", staticmethod(change))
    monkeypatch.setattr(clusters_on_cpu, "MOST_SWEEPS", 4000)
    assert any(_fails(small("lstm", steps=12, batch=12, hidden_size=40)) for _ in range(8))  # each in another order of threads


def _fails(case: Case) -> bool:
    try:
        return bool(verdicts(case))
    except Hangs:
        return True


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_a_lost_message_ends_the_launch_and_the_next_call_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    case = small("gru", hidden_size=40)
    problem = contents.problem(case)
    monkeypatch.setattr(_persistent_op, "WATCHDOG_NS", 400)  # rounds of all threads, here
    with monkeypatch.context() as patch:
        patch.setattr(ClustersOnCpu, "change", staticmethod(lambda text: text.replace(*FAULTS["a block is told nothing"])))
        calls.run(layer_of(case, problem.weights), problem)
    with pytest.raises(RuntimeError, match="an earlier launch of persistent_gpu on cpu is wrong: a block waited 4e-07 s"):
        calls.run(layer_of(case, problem.weights), problem)
    monkeypatch.setattr(_persistent_op, "_launches", LayoutMemo(_persistent_op._prepared))
    calls.run(layer_of(case, problem.weights), problem)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_weights_at_an_odd_address_are_read_all_the_same() -> None:
    torch.manual_seed(0)
    gates, weight = torch.randn(4, 2, 40).half(), torch.randn(10 * 40 + 1).half()[1:].view(40, 10)
    found = _persistent_op.run(gates, weight, None, None, (), None, "lstm", False, False)
    wanted = _persistent_op.run(gates, weight.clone(), None, None, (), None, "lstm", False, False)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("sizes", [(0, 3, 16), (2, 0, 16), (2, 3, 0)])
def test_nothing_to_run_is_refused(sizes: tuple[int, int, int]) -> None:
    steps, batch, width = sizes
    with pytest.raises(ValueError, match="expected T, B and H of at least 1"):
        _persistent_op.plan(_persistent_op.Shape("lstm", steps, batch, width // 4, False), torch.half, torch.device("cpu"))


def test_shapes_are_known_without_running() -> None:
    with torch._subclasses.FakeTensorMode():
        x, weight = torch.empty(7, 3, 40, dtype=torch.half), torch.empty(40, 10, dtype=torch.half)
        given = (None, None, None, None, None, "lstm")
        output, *final = torch.ops.pytest_ecornn.persistent_forward(x, weight, *given, False, False)
        assert output.shape == (7, 3, 10)
        assert [one.shape for one in final] == [(3, 10), (3, 10)]
        output, *final = torch.ops.pytest_ecornn.persistent_forward(x, weight[:20, :5], *given[:-1], "rnn_relu", True, False)
        assert (output.shape, len(final)) == ((7, 3, 40), 1)


# On a GPU.


@needs_gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [1, 33, 200, 512, 650, 768])
@pytest.mark.parametrize("batch", [1, 20, 64])
def test_on_a_gpu_the_kernel_passes_the_rule(cell: str, dtype: str, hidden: int, batch: int) -> None:
    case = small(cell, hidden_size=hidden, batch=batch, dtype=dtype, ragged=True, has_state=True, device="cuda", steps=9)
    problem = contents.problem(case)
    layer = PersistentGpu().build(case, problem.weights)
    first, again = calls.run(layer, problem), calls.run(layer, problem)
    assert [
        one for one in verification.Expected(problem).compare(first, PersistentGpu().declared) if one.status == "failed"
    ] == []
    assert all(torch.equal(first[name], again[name]) for name in first)


@needs_gpu
def test_on_a_gpu_a_lost_message_raises_and_does_not_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = tmp_path / "persistent_gpu.cu"
    source.write_text(_persistent_op._SOURCE.read_text().replace(*FAULTS["a block is told nothing"]))
    case = small("lstm", hidden_size=200, device="cuda")
    problem = contents.problem(case)
    with monkeypatch.context() as patch:
        patch.setattr(_persistent_op, "_SOURCE", source)
        patch.setattr(_persistent_op, "WATCHDOG_NS", 20_000_000)
        patch.setattr(_persistent_op, "plan", _persistent_op.plan.__wrapped__)
        patch.setattr(_persistent_op, "_launches", LayoutMemo(_persistent_op._prepared))
        calls.run(PersistentGpu().build(case, problem.weights), problem)
        torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="an earlier launch of persistent_gpu on cuda:0 is wrong"):
            calls.run(PersistentGpu().build(case, problem.weights), problem)
    calls.run(PersistentGpu().build(case, problem.weights), problem)
