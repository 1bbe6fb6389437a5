"""persistent_gpu: its form is a function of the shape; its kernel runs on clusters of a CPU, where planted faults are seen."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ecornn.cases import contents
from pytest_ecornn.contract import Case
from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode, ProblemSize
from pytest_ecornn.implementations.persistent_gpu import PersistentGpu
from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.heuristics import select_config
from pytest_ecornn.implementations.persistent_gpu.kernel import KernelSpec
from pytest_ecornn.implementations.persistent_gpu.ops import run
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from pytest_ecornn.verification import calls
from tests.helpers import persistent
from tests.helpers.persistent import (
    A_BLOCK_IS_SENT_NOTHING,
    ARITHMETICS,
    CELLS,
    GATES_OF_CLUSTER,
    assert_a_lost_message_raises,
    expect_right,
    expect_seen,
    fails,
    layer_of,
    plant_fault,
    small,
    verdicts,
    with_fault,
    with_weights,
)
from tests.helpers.requirements import needs_compiler, needs_hopper
from tests.simulator import clusters_on_cpu
from tests.simulator.clusters_on_cpu import H200, ClustersOnCpu

on_cpu = persistent.on_cpu  # a fixture


PROJECTED = RNNOptions("lstm", batch_first=False, bidirectional=False, projected=True, tf32=False)


# The form.


@settings(deadline=None)
@given(
    st.sampled_from(CELLS), st.integers(1, 1600), st.integers(1, 600), st.sampled_from(ARITHMETICS),
    st.sampled_from([H200, Device(78, 166_912, 8)]), st.booleans(),
)  # fmt: skip
def test_a_form_covers_all_units_and_sequences_and_fits(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, device: Device, is_backward: bool
) -> None:
    form = select_config(ProblemSize(cell, hidden, batch, arithmetic, is_backward), device, computes_inputs=True)
    if isinstance(form, str):
        assert hidden > 1000 or "is faster by a GEMM a step" in form, form
        return
    if form.is_grid:  # tests/implementations/persistent_gpu/test_grid.py
        return
    assert form.blocks == max(2 if is_backward else 1, -(-hidden // form.units))
    assert form.units * arithmetic.bytes % 16 == 0
    assert 8 * form.tiles * form.clusters >= batch > 8 * form.tiles * (form.clusters - 1)
    assert form.blocks <= device.largest_cluster
    assert form.shared_bytes <= device.shared_bytes
    assert 8 * form.reg_fragments < 255  # registers
    assert 1 <= form.reg_fragments <= form.reg_fragments + form.smem_fragments <= form.fragments_per_warp
    assert form.m_tiles_per_warp % form.m_tiles_per_pass == 0
    if form.streamed_fragments:
        assert (form.reg_fragments + form.smem_fragments) % form.m_tiles_per_pass == 0
        assert 1 <= form.stream_stages < form.streamed_fragments // form.m_tiles_per_pass


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    found = select_config(ProblemSize("lstm", 16384, 1, ARITHMETICS[0]), H200)
    assert found == (
        "H 16384 does not fit: the states of 8 sequences must lie in the 232448 bytes of shared memory of each block of a "
        "cluster of 16"
    )


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("mingru-T3-B2-H4-bfloat16-cuda", "no mingru: rnn_tanh, rnn_relu, lstm, gru only"),
        ("lstm-T3-B2-H4-float64-cuda", "runs bfloat16, float16 and float32, not float64"),
        ("lstm-T3-B2-H4-float16", "runs on a CUDA device"),
        ("lstm-T1073741824-B1-H1-float16-cuda", "T and G * B * H must be below 2^30, got 1073741824"),
    ],
)
def test_what_it_will_not_run_has_a_reason(case: str, reason: str) -> None:
    found = Case.parse(case)
    assert PersistentGpu().unsupported(found, torch.device(found.device)) == reason


# On clusters of a CPU.


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 1, "batch": 1, "hidden_size": 1, "input_size": 1},
        {"hidden_size": 40, "batch": 17, "has_state": True, "bias": False},
        {"layers": 2, "bidirectional": True, "ragged": True, "has_state": True, "batch_first": True, "steps": 9},
        {"projected": True, "bidirectional": True, "input_size": 0, "batch": 9, "mode": "inference"},
        {"density": 0.4, "contents": "saturated", "dtype": "bfloat16"},
        {"layout": "strided", "hidden_size": 18, "mode": "inference", "dtype": "bfloat16"},
        {"dtype": "float32", "ragged": True, "has_state": True},
        {"dtype": "float32", "precision": "tf32", "hidden_size": 50, "batch": 20, "bidirectional": True},
    ],
    ids=[
        "plain",
        "one of each",
        "three clusters with states",
        "all at once",
        "projected",
        "sparse",
        "strided",
        "float32",
        "tf32",
    ],
)
@pytest.mark.test_all(keep=2)
def test_the_kernels_pass_the_rule(cell: str, options: dict[str, Any]) -> None:
    assert verdicts(small(cell, **{"dtype": "float16", "mode": "training", **options})) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@settings(max_examples=4, deadline=None)
@given(
    st.sampled_from(CELLS), st.integers(1, 8), st.integers(1, 20), st.integers(1, 40), st.booleans(), st.integers(0, 2**20),
    st.sampled_from(["inference", "training"]), st.sampled_from(["bfloat16", "float32"]),
)  # fmt: skip
def test_any_sizes_in_any_order_of_threads(
    cell: str, steps: int, batch: int, hidden: int, ragged: bool, seed: int, mode: str, dtype: str
) -> None:
    sizes = {"steps": steps, "batch": batch, "hidden_size": hidden}
    assert verdicts(small(cell, ragged=ragged, has_state=True, seed=seed, mode=mode, dtype=dtype, **sizes)) == []


# Units of a block, tiles, groups forward, parts of the weights in registers and in shared memory, the ring; H, B and the dtype.
FORMS = {
    "rnn_relu": [(64, 2, 2, 3, 0, 0, 150, 20, "float16"), (128, 1, 8, 50, 0, 0, 140, 3, "float16")],
    "rnn_tanh": [(32, 1, 1, 1, 0, 1, 160, 9, "float32")],
    "lstm": [
        (16, 1, 1, 50, 0, 0, 60, 9, "float16"), (32, 2, 4, 5, 0, 0, 70, 19, "float32"), (48, 3, 1, 2, 1, 2, 50, 24, "float16"),
        (16, 4, 8, 50, 0, 0, 20, 30, "float32"), (96, 1, 1, 1, 3, 3, 200, 5, "float16"),
        (96, 1, 1, 5, 4, 3, 200, 5, "float16"), (96, 1, 1, 5, 0, 0, 200, 5, "float16"),
    ],
    "gru": [(32, 3, 2, 50, 0, 0, 65, 25, "float32"), (16, 2, 1, 2, 0, 1, 60, 24, "float16")],
}  # fmt: skip


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("cell", "sizes"), [(cell, sizes) for cell, every in FORMS.items() for sizes in every])
def test_every_kind_of_form_passes_the_rule(cell: str, sizes: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    units, tiles, groups, reg_fragments, smem_fragments, ring, hidden, batch, dtype = sizes

    def form_of(shape: persistent_kernel.Shape, kind: KernelSpec) -> Form:
        problem = kind.problem(cell, hidden, batch)
        form = Form(problem, units, -(-hidden // units), tiles, 1 if kind.is_backward else groups)
        return with_weights(form, reg_fragments, smem_fragments, ring)

    monkeypatch.setattr(persistent, "form_of", form_of)
    options = {"steps": 3, "ragged": True, "bidirectional": True, "has_state": True, "mode": "training", "dtype": dtype}
    assert verdicts(small(cell, hidden_size=hidden, batch=batch, **options)) == []


WAITS = "timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[t % 2][tile]), (t - 1) / 2 % 2);"
FAULTS = {
    "the other parity": (WAITS, WAITS.replace("t - 1", "t + 1")),
    "no wait": (WAITS, ";"),
    "another tile's barrier": (WAITS, WAITS.replace("[tile]", "[0]")),
    "sums are written before they are read": (
        "named_barrier_sync(NamedBarrier::SumsEmpty + buffer, BLOCK_THREADS);",
        "named_barrier_arrive(NamedBarrier::SumsEmpty + buffer, BLOCK_THREADS);",
    ),
    "no barrier of the cluster at the start": ("        cluster_sync();\n", ""),
}
FAULTS_OF_GATES = {
    "a block is sent nothing": A_BLOCK_IS_SENT_NOTHING,
    "one buffer of states": ("now = t % 2, next = 1 - now", "now = 0, next = 0"),
    "too few bytes": ("(BLOCKS - 1) * STATE_TILE_BYTES", "(BLOCKS - 1) * STATE_TILE_BYTES - 16"),
    "sums are read before they are there": (
        "named_barrier_sync(NamedBarrier::SumsFull + buffer, BLOCK_THREADS);",
        "named_barrier_arrive(NamedBarrier::SumsFull + buffer, BLOCK_THREADS);",
    ),
    "states are sent before they are computed": ("named_barrier_sync(NamedBarrier::StatesReady, POINTWISE_THREADS);", ";"),
}
LATER_WAITS = "timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[last][tile]), (i - 1) / 2 % 2);"
LAST_WAITS = "timed_out = !mbarrier_wait_parity(smem_addr(&shared.barriers[(steps - 1) % 2][tile]), (steps - 1) / 2 % 2);"
FAULTS_BACKWARD = {
    "sums are not sent": ("if (!timed_out) mma_and_send(", "if (i < 3) mma_and_send("),
    "the other parity": (LATER_WAITS, LATER_WAITS.replace("i - 1", "i + 1")),
    "no wait": (LATER_WAITS, ";"),
    "no wait at the end": (LAST_WAITS, ";"),
    "one buffer of sums": ("shared.sums[buffer]", "shared.sums[0]"),
    "one buffer of gates": ("gate_buffer = 1 - gate_buffer;", ""),
    "no barrier of the block": ("timed_out = __syncthreads_or(timed_out);\n            if", "if"),
    "too few bytes": ("BLOCKS * SUM_TILE_BYTES", "BLOCKS * SUM_TILE_BYTES - 16"),
    "another tile's barrier": (LATER_WAITS, LATER_WAITS.replace("[tile]", "[0]")),
    "no barrier of the cluster at the start": ("    cluster_sync();\n    GateInputs", "    GateInputs"),
}
KERNELS = {"persistent_forward": FAULTS, GATES_OF_CLUSTER: FAULTS_OF_GATES, "persistent_backward": FAULTS_BACKWARD}
# Of the weights that are left over, forward and backward.
FAULTS_LEFT_OVER = {
    "they are not waited for": ("cp_async_wait_group<(STREAM_STAGES > 0 ? STREAM_STAGES - 1 : 0)>();", ""),
    "another pass's": ("(from * 2 * STAGE_FRAGMENTS + i)", "(i)"),
}


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(("kernel", "fault"), [(kernel, fault) for kernel, faults in KERNELS.items() for fault in faults])
def test_faults_of_the_handoff_are_seen(kernel: str, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def form_of(shape: persistent_kernel.Shape, kind: KernelSpec) -> Form:
        form = Form(kind.problem(shape.cell, shape.hidden, shape.batch), 16, 3, 3, 1)
        return with_weights(form, 1, 0, 0)

    monkeypatch.setattr(persistent, "form_of", form_of)
    sizes = {"steps": 12, "batch": 20, "hidden_size": 40}
    case = small("lstm", **sizes)
    if kernel == "persistent_backward":
        case = small("gru", mode="training", dtype="float16", has_state=True, **sizes)
    expect_seen(case, monkeypatch, kernel, *KERNELS[kernel][fault])


@pytest.mark.test_all(keep=3)
@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("fault", FAULTS_LEFT_OVER)
@pytest.mark.parametrize("is_backward", [False, True])
def test_faults_of_the_weights_left_over_are_seen(fault: str, is_backward: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def form_of(shape: persistent_kernel.Shape, kind: KernelSpec) -> Form:
        form = Form(kind.problem(shape.cell, shape.hidden, shape.batch), 32, 2, 1, 1)
        return with_weights(form, 1, 0, 2 if kind.is_backward == is_backward else 0)

    monkeypatch.setattr(persistent, "form_of", form_of)
    case = small("lstm", hidden_size=64, dtype="float32", mode="training")
    assert verdicts(case) == []
    plant_fault("resident_weights.cuh", *FAULTS_LEFT_OVER[fault], monkeypatch)
    assert fails(case, 0)


LOST = {
    GATES_OF_CLUSTER: A_BLOCK_IS_SENT_NOTHING,
    "persistent_backward": FAULTS_BACKWARD["sums are not sent"],
}


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kernel", LOST)
def test_a_lost_message_ends_the_launch_with_nan_and_a_later_call_raises(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    is_backward = kernel == "persistent_backward"
    case = small("gru", hidden_size=40, has_state=True, mode="training" if is_backward else "inference")
    problem = contents.problem(case)
    monkeypatch.setattr(persistent_kernel, "WATCHDOG_NS", 2000)  # rounds of all threads, here
    with monkeypatch.context() as patch, torch.inference_mode(not is_backward):
        plant_fault(kernel, *LOST[kernel], patch)
        found = calls.run(layer_of(case, problem.weights), problem)
    of_pass = [one for name, one in found.items() if name.startswith("grad") == is_backward]
    assert all(torch.as_tensor(one).isnan().any() for one in of_pass)
    if is_backward:
        assert all(found[f"grad {name}_l0"].isnan().all() for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cpu is wrong: a block waited 2e-06 s"):
        calls.run(layer_of(case, problem.weights), problem)
    clusters_on_cpu.forget()
    calls.run(layer_of(case, problem.weights), problem)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("rounds", [100, 200, 300])
def test_where_some_threads_give_up_all_end(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(persistent_kernel, "WATCHDOG_NS", rounds)
    case = small("lstm", steps=8, batch=12, hidden_size=40, mode="training", dtype="float16")
    status = persistent_kernel.status_of(torch.device("cpu"))
    for order in range(3):
        with suppress(RuntimeError):  # of the backward pass, after a forward pass that gave up
            failed = verdicts(case, order)
            assert failed == [] or status.reset()
        status.reset()


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_weights_at_an_odd_address_are_read_all_the_same() -> None:
    torch.manual_seed(0)
    gates, weight = torch.randn(4, 2, 40).half(), torch.randn(10 * 40 + 1).half()[1:].view(40, 10)
    found = run(gates, (), [None, weight, None, None], None, PROJECTED)
    wanted = run(gates, (), [None, weight.clone(), None, None], None, PROJECTED)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_backward_weights_are_read_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[set[int]] = []

    def seen(kernel: Any, launch: Any, passed: list[int]) -> None:
        addresses.append(set(passed))
        launched(kernel, launch, passed)

    def gradients(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output = run(gates, (), [None, weight, None, None], None, PROJECTED)[0]
        return torch.autograd.grad(output, [gates, weight], torch.ones_like(output))

    launched = ClustersOnCpu._run
    monkeypatch.setattr(ClustersOnCpu, "_run", seen)
    torch.manual_seed(0)
    gates = torch.randn(4, 2, 36).half().requires_grad_()
    weight = torch.randn(36 * 9 + 1).half()[1:].view(36, 9).requires_grad_()
    found = gradients(weight)
    assert weight.data_ptr() in addresses[-1]
    assert all(
        torch.equal(one, other) for one, other in zip(found, gradients(weight.detach().clone().requires_grad_()), strict=True)
    )


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("hidden", [1, 8, 16, 64])
@pytest.mark.parametrize(("cell", "dtype"), [("lstm", "float16"), ("gru", "float32")])
def test_backward_a_cluster_has_two_blocks_at_least(cell: str, dtype: str, hidden: int) -> None:
    case = small(cell, hidden_size=hidden, batch=9, has_state=True, ragged=True, mode="training", dtype=dtype)
    kind = KernelSpec(getattr(torch, dtype), torch.device("cpu"), is_backward=True)
    form = persistent_kernel.compile_layer(persistent_kernel.Shape(cell, case.steps, case.batch, hidden, False), kind)[0]
    assert form.blocks >= 2
    assert verdicts(case) == []


@pytest.mark.parametrize("sizes", [(0, 3, 16), (2, 0, 16), (2, 3, 0)])
def test_nothing_to_run_is_refused(sizes: tuple[int, int, int]) -> None:
    steps, batch, width = sizes
    with pytest.raises(ValueError, match="expected T, B and H of at least 1"):
        persistent_kernel.compile_layer(
            persistent_kernel.Shape("lstm", steps, batch, width // 4, False), KernelSpec(torch.half, torch.device("cpu"))
        )


@pytest.mark.parametrize(("steps", "batch"), [(2**30, 1), (1, 2**20)])
def test_more_than_numbers_of_32_bits_can_say_is_refused(steps: int, batch: int) -> None:
    with pytest.raises(ValueError, match=r"expected T and G \* B \* H below 2\^30, got "):
        persistent_kernel.compile_layer(
            persistent_kernel.Shape("lstm", steps, batch, 256, False), KernelSpec(torch.half, torch.device("cpu"))
        )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"weight_ih": (40, 6)},
            r"expected weight_ih as \(40, 5\) of torch.float16 on cpu, got \(40, 6\) of torch.float16 on cpu",
        ),
        ({"weight_hh": (10, 40)}, r"expected first_h as \(1, 3, 40\)"),
        ({"weight_hh": (20, 10)}, r"expected weight_hh as \(40, 10\) of torch.float16 on cpu, got \(20, 10\)"),
        ({"bias_ih": (41,)}, r"expected bias_ih as \(40,\)"),
        ({"first": [(1, 10, 3), (1, 3, 10)]}, r"expected first_h as \(1, 3, 10\)"),
        ({"first": [(1, 3, 10)]}, "expected no initial state of lstm, or 2, got 1"),
        ({"x": (3, 5)}, r"three dimensions, got lstm and \(3, 5\)"),
        ({"lengths": (2,)}, r"expected lengths as \(3,\) of torch.int64 on cpu, got \(2,\) of torch.float16"),
        ({"more": (2,)}, "expected weight_ih, weight_hh, bias_ih, bias_hh of each layer and direction, got 5 parameters"),
    ],
    ids=lambda of: "" if isinstance(of, str) else next(iter(of)),
)
def test_wrong_shapes_are_refused(changed: dict[str, Any], message: str) -> None:
    sizes = {"x": (2, 3, 5), "weight_ih": (40, 5), "weight_hh": (40, 10), "bias_ih": (40,), "bias_hh": (40,), **changed}
    first = tuple(torch.zeros(size).half() for size in sizes.pop("first", [(1, 3, 10), (1, 3, 10)]))
    x, *weights = (torch.zeros(size).half() for name, size in sizes.items() if name != "lengths")
    lengths = torch.zeros(changed["lengths"]).half() if "lengths" in changed else None
    with pytest.raises(ValueError, match=message):
        run(x, first, weights, lengths, RNNOptions("lstm", False, False, False, False))


def test_parameters_that_are_missing_and_pre_activations_of_another_width_are_refused() -> None:
    x, weights = torch.zeros(2, 3, 40).half(), [None, torch.zeros(40, 10).half(), None, None]
    with pytest.raises(ValueError, match=r"expected weight_ih as \(40, 40\), got None"):
        run(x, (), weights, None, PROJECTED._replace(projected=False))
    with pytest.raises(ValueError, match=r"expected pre-activations of width 40, got \(2, 3, 39\)"):
        run(x[..., 1:], (), weights, None, PROJECTED)
    with pytest.raises(ValueError, match=r"expected weight_ih as None"):
        run(x, (), [weights[1], *weights[1:]], None, PROJECTED)


def test_other_types_and_devices_are_refused() -> None:
    shape, cpu = persistent_kernel.Shape("lstm", 3, 2, 4, False), torch.device("cpu")
    with pytest.raises(ValueError, match=r"expected one of torch.bfloat16, torch.float16, torch.float32, got torch.float64"):
        persistent_kernel.compile_layer(shape, KernelSpec(torch.float64, cpu))
    with pytest.raises(ValueError, match="on cpu: runs on a CUDA device"):
        persistent_kernel.compile_layer(shape, KernelSpec(torch.half, cpu))


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_the_ops_are_what_torch_asks_of_ops(cell: str) -> None:
    x, *weights = small_tensors(cell)
    first = [torch.randn(4, 2, 10).half().requires_grad_() for _ in range(2 if cell == "lstm" else 1)]
    given = (x, first, weights, torch.tensor([3, 1]), cell, False, True, False, False)
    outcome = torch.library.opcheck(torch.ops.pytest_ecornn.persistent_forward.default, given)
    assert set(outcome.values()) == {"SUCCESS"}, outcome


def small_tensors(cell: str) -> list[torch.Tensor]:
    """x [3, 2, 10] and the parameters of two layers in two directions of H 10."""
    wide, generator = GATES[cell] * 10, torch.Generator().manual_seed(1)
    of_track = [(wide, 10), (wide, 10), (wide,), (wide,)]
    above = [(wide, 20), *of_track[1:]]
    sizes = [(3, 2, 10), *of_track, *of_track, *above, *above]
    return [torch.randn(size, generator=generator).half().requires_grad_() for size in sizes]


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("seed", [7, 8, 18, 30, 43, 45])
def test_the_gradient_of_gru_s_z_is_of_the_state_before_it_was_rounded(seed: int) -> None:
    """Where h - n is small, h in storage's bits alone is not enough: each of these was over its limit by it."""
    options = {"has_state": True, "projected": True, "mode": "training", "input_size": 0, "seed": seed}
    assert verdicts(small("gru", steps=8, batch=1, hidden_size=1, layers=3, **options)) == []


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_observed_or_not_results_and_gradients_are_the_same(cell: str) -> None:
    class Looking(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def call() -> list[torch.Tensor]:
        found = run(x, (), weights, None, RNNOptions(cell, False, True, False, False))
        return [*found, *torch.autograd.grad([one.sum() for one in found], [x, *weights])]

    seen: list[str] = []
    x, *weights = small_tensors(cell)
    unseen = call()
    with Looking():
        assert all(torch.equal(one, other) for one, other in zip(unseen, call(), strict=True))
    ours = [name.split(".")[1] for name in seen if "ecornn" in name]
    assert ours == ["persistent_forward_keeping", "persistent_backward"]


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("options", [{}, {"layers": 2, "bidirectional": True}, {"has_state": True, "ragged": True}])
@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_compiled_layer_is_one_graph_with_the_op_in_it(cell: str, options: dict[str, Any]) -> None:
    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    seen: list[str] = []
    torch._dynamo.reset()
    problem = contents.problem(small(cell, mode="inference", **options))
    layer = layer_of(problem.case, problem.weights)
    wanted = calls.run(layer, problem)
    found = calls.run(torch.compile(layer, fullgraph=True, backend=backend), problem)
    assert [name.split(".")[1] for name in seen if "ecornn" in name] == ["persistent_forward"]
    assert wanted.keys() == found.keys()
    assert all(torch.equal(one, found[name]) for name, one in wanted.items())


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_a_training_call_plans_what_it_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: set[KernelSpec] = set()
    plan = persistent_kernel.compile_layer

    def seen(shape: Any, kind: KernelSpec) -> Any:
        planned.add(kind)
        return plan(shape, kind)

    monkeypatch.setattr(persistent_kernel, "compile_layer", seen)
    assert verdicts(small("lstm", ragged=True, mode="training", dtype="float16")) == []
    assert {(kind.is_backward, kind.saves_for_backward, kind.lengths) for kind in planned} == {
        (False, True, True),
        (True, False, False),
    }


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_what_is_saved_is_unpacked_once_and_may_lie_elsewhere() -> None:
    packed: list[torch.Tensor] = []
    unpacked: list[int] = []

    def pack(one: torch.Tensor) -> int:
        packed.append(one.detach().clone())
        return len(packed) - 1

    def unpack(number: int) -> torch.Tensor:
        unpacked.append(number)
        return packed[number].clone()

    x, *weights = small_tensors("lstm")
    how = RNNOptions("lstm", False, True, False, False)
    wanted = torch.autograd.grad(run(x, (), weights, None, how)[0].sum(), [x, *weights])
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        output = run(x, (), weights, None, how)[0].sum()
    found = torch.autograd.grad(output, [x, *weights])
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    assert sorted(unpacked) == list(range(len(packed)))


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_no_two_gradients_share_memory() -> None:
    x, *weights = small_tensors("lstm")
    output = run(x, (), weights, None, RNNOptions("lstm", False, True, False, False))[0]
    found = torch.autograd.grad(output.sum(), [x, *weights])
    assert len({one.data_ptr() for one in found}) == len(found)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
def test_a_graph_that_is_kept_gives_its_gradients_twice() -> None:
    x, *weights = small_tensors("lstm")
    output = run(x, (), weights, None, RNNOptions("lstm", False, True, False, False))[0].sum()
    first = torch.autograd.grad(output, [x, *weights], retain_graph=True)
    assert all(torch.equal(one, other) for one, other in zip(first, torch.autograd.grad(output, [x, *weights]), strict=True))


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, at its first forward-mode gradient
def test_what_has_no_gradient_of_that_kind_says_so() -> None:
    x, *weights = small_tensors("gru")
    how = RNNOptions("gru", False, True, False, False)
    output = run(x, (), weights, None, how)[0]
    with pytest.raises(RuntimeError, match="Batching rule not implemented for pytest_ecornn::persistent_backward"):
        torch.autograd.grad(output, x, torch.ones(3, *output.shape).half(), is_grads_batched=True, retain_graph=True)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="persistent_forward has no forward-mode gradient"):
        run(forward_ad.make_dual(x.detach(), x.detach()), (), weights, None, how)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("has_lengths", [False, True])
@pytest.mark.parametrize(("bidirectional", "is_projected"), [(True, True), (False, True), (True, False)])
def test_gradients_of_a_graph_are_those_of_the_kernels(has_lengths: bool, bidirectional: bool, is_projected: bool) -> None:
    """A loop over time computes them there (double_backward.py), so that they have gradients."""
    lengths = torch.tensor([3, 7, 1]) if has_lengths else None
    directions, gates = 1 + bidirectional, 30
    how = RNNOptions("gru", False, bidirectional, is_projected, False)
    torch.manual_seed(3)
    x = torch.randn(7, 3, directions * gates if is_projected else 5, requires_grad=True)
    weights: list[torch.Tensor | None] = []
    for _ in range(directions):
        weight_ih = None if is_projected else torch.randn(gates, 5, requires_grad=True)
        weights += [weight_ih, torch.randn(gates, 10).mul_(0.3).requires_grad_(), torch.randn(gates, requires_grad=True), None]
    state = torch.randn(directions, 3, 10, requires_grad=True)
    results = run(x, [state], weights, lengths, how)
    loss = sum((one * one.detach().cos()).sum() for one in results)
    inputs = [x, state, *(one for one in weights if one is not None)]
    by_kernels = torch.autograd.grad(loss, inputs, retain_graph=True)
    by_loop = torch.autograd.grad(loss, inputs, create_graph=True)
    for one, other in zip(by_loop, by_kernels, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    second = torch.autograd.grad(sum(one.square().sum() for one in by_loop), inputs)
    assert all(one.isfinite().all() and one.any() for one in second)


def test_shapes_are_known_without_running() -> None:
    with torch._subclasses.FakeTensorMode():
        x, weight = torch.empty(7, 3, 40, dtype=torch.half), torch.empty(40, 10, dtype=torch.half)
        output, *final = run(x, (), [None, weight, None, None], None, PROJECTED)
        assert output.shape == (7, 3, 10)
        assert [one.shape for one in final] == [(1, 3, 10), (1, 3, 10)]
        output, *final = run(
            x, (), [x.new_empty(10, 40), weight[:10], None, None] * 2, None, RNNOptions("rnn_relu", True, True, False, False)
        )
        assert (output.shape, [one.shape for one in final]) == ((7, 3, 20), [(2, 7, 10)])


# On a GPU.


@needs_hopper
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "tf32"])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("hidden", [1, 33, 200, 512, 650, 1024])
@pytest.mark.parametrize("batch", [1, 20, 128])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_on_a_gpu_the_kernels_pass_the_rule(cell: str, dtype: str, hidden: int, batch: int, mode: str) -> None:
    options = {"ragged": True, "has_state": True, "device": "cuda", "steps": 9, "mode": mode, "bidirectional": True}
    precise = {"dtype": "float32", "precision": "tf32"} if dtype == "tf32" else {"dtype": dtype}
    case = small(cell, hidden_size=hidden, batch=batch, **precise, **options)
    if reason := PersistentGpu().unsupported(case, torch.device("cuda")):
        pytest.skip(reason)
    expect_right(case)


@needs_hopper
def test_on_a_gpu_a_lost_message_raises_and_does_not_hang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = with_fault(persistent_kernel._SOURCES[False], tmp_path, GATES_OF_CLUSTER, LOST[GATES_OF_CLUSTER])
    case = small("lstm", hidden_size=200, device="cuda")
    assert_a_lost_message_raises(case, monkeypatch, lambda patch: patch.setitem(persistent_kernel._SOURCES, False, source))
