"""persistent_gpu where T is 1: a kernel of its own, run on a CPU, and when it is taken."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_ecornn.implementations._common.recurrent_problem import GATES, Device, MathMode
from pytest_ecornn.implementations.persistent_gpu import kernel
from pytest_ecornn.implementations.persistent_gpu.describe import describe, kernel_codes
from pytest_ecornn.implementations.persistent_gpu.ops import run
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions, get_plan, plan_of_case
from pytest_ecornn.implementations.persistent_gpu.single_step import (
    MAX_SEQUENCES,
    SingleStepConfig,
    is_applicable,
    select_single_step,
)
from tests.helpers.operators import Operators
from tests.helpers.persistent import ARITHMETICS, small, verdicts
from tests.helpers.requirements import needs_compiler, on_simulator
from tests.helpers.simulated_kernels import CELLS, KernelRun, runs


@given(st.sampled_from(CELLS), st.integers(1, 3000), st.integers(1, 128), st.sampled_from(ARITHMETICS), st.integers(1, 200))
def test_blocks_cover_all_units_and_sequences_and_run_at_once_where_they_can(
    cell: str, hidden: int, batch: int, arithmetic: MathMode, processors: int
) -> None:
    form = select_single_step(SingleStepConfig(cell, 40, hidden, batch, arithmetic), Device(processors, 100_000, 1))
    tiles = -(-batch // 8)
    assert form.units * form.blocks >= hidden > form.units * (form.blocks - 1)
    assert form.launch.grid == form.blocks * tiles
    assert GATES[cell] * form.units <= 64
    assert form.launch.shared_bytes <= 48 * 1024
    assert form.launch.grid <= processors or GATES[cell] * (form.units + 1) > 64


@pytest.mark.parametrize(
    ("bytes", "inputs", "hidden", "width"), [(2, 512, 512, 16), (2, 650, 512, 4), (4, 3, 512, 4), (2, 8, 9, 2)]
)
def test_as_much_is_read_at_once_as_divides_all_rows(bytes: int, inputs: int, hidden: int, width: int) -> None:
    assert SingleStepConfig("lstm", inputs, hidden, 1, MathMode(bytes, False)).width == width


@pytest.mark.parametrize(
    ("cell", "batch", "widths", "hidden", "expected"),
    [
        ("lstm", MAX_SEQUENCES, [8192], 8192, True),
        ("lstm", 32, [2048], 2048, True),  # 64 MiB
        ("lstm", 32, [2049], 2048, False),
        ("lstm", 32, [64, 2049], 2048, False),
        ("lstm", 33, [2048], 2048, False),
        ("lstm", 64, [1024, 0], 512, True),  # 6 MiB
        ("lstm", 88, [1024, 0], 512, False),
        ("rnn_relu", 128, [8], 8, True),
        ("rnn_relu", 129, [8], 8, False),
        ("rnn_relu", 128, [0], 0, True),
    ],
)
def test_the_fewer_weights_the_more_sequences(cell: str, batch: int, widths: list[int], hidden: int, expected: bool) -> None:
    def found(steps: int) -> bool:
        return is_applicable(kernel.Shape(cell, steps, batch, hidden, batch_first=False), widths, torch.float16)

    assert found(steps=1) is expected
    assert not found(steps=2)


@pytest.mark.parametrize(("tracks", "expected"), [(2, True), (4, False)])
@pytest.mark.parametrize("is_projected", [False, True])
def test_a_plan_counts_the_weights_of_its_widest_layer(tracks: int, expected: bool, is_projected: bool) -> None:
    options = RNNOptions("gru", batch_first=False, bidirectional=True, projected=is_projected, tf32=False)
    sizes = torch.Size((1, 32, 2 * 3 * 2048 if is_projected else 5))  # 24 MiB, of inner layers 72
    plan = get_plan(options, sizes, tracks * 4, 2048, torch.float16, torch.device("cpu"), False, False)
    assert plan.is_single_step is expected


@needs_compiler
@pytest.mark.parametrize(
    "run",
    runs("once gru-T{2-B3-I6-H9-float16,1-B129-I6-H9-float16,1-B3-H9-float16-projected,1-B3-I6-H9-float16-ragged}"),
    ids=str,
)
def test_else_it_is_not_taken(run: KernelRun) -> None:
    assert run.kernel.source not in run.expect_right().launched


@pytest.mark.parametrize(
    ("steps", "batch", "has_lengths", "expected"),
    [(1, 1, 0, True), (1, 128, 0, True), (1, 129, 0, False), (1, 3, 1, False), (2, 3, 0, False)],
)
def test_when_one_step_backward_has_a_kernel_of_its_own(steps: int, batch: int, has_lengths: bool, expected: bool) -> None:
    options, sizes = RNNOptions("gru", False, False, projected=False, tf32=False), torch.Size((steps, batch, 5))
    plan = get_plan(options, sizes, 4, 9, torch.float16, torch.device("cpu"), True, has_lengths)
    assert plan.is_single_step_backward is expected


@on_simulator("on_cpu")
def test_both_kernels_are_told_of() -> None:
    case = small("lstm", steps=1, mode="training", dtype="float16")
    plan = plan_of_case(case, torch.device("cpu"))
    assert re.fullmatch(r"one step alone: 3 blocks, 4 units a block; backward: one step alone", describe(plan))
    assert {"single_step_forward.cu", "single_step_backward.cu"} <= {code.source.name for code in kernel_codes(plan)}


@on_simulator("on_cpu")
@pytest.mark.parametrize("has_states", [False, True])
@pytest.mark.parametrize("cell", GATES)
def test_gradients_that_are_not_wanted_take_no_products_and_change_no_others(cell: str, has_states: bool) -> None:
    """Of any of x, the initial states and the parameters. Products with W_hh are only of initial states."""
    options, rows = RNNOptions(cell, False, False, projected=False, tf32=False), GATES[cell] * 9
    torch.manual_seed(0)
    sizes = [(1, 3, 6), *[(1, 3, 9)] * (has_states * (1 + (cell == "lstm"))), (rows, 6), (rows, 9), (rows,), (rows,)]
    tensors = [torch.randn(size).half() for size in sizes]
    states = len(tensors) - 5
    products_of = [1, *[1, 0][:states], 1, has_states, 0, 0]

    def gradients(wanted: Sequence[int]) -> tuple[list[torch.Tensor], int]:
        x, *rest = leaves = [tensor.clone().requires_grad_(i in wanted) for i, tensor in enumerate(tensors)]
        output = run(x, rest[:states], rest[states:], None, options)[0]
        with Operators(sees_inside_ops=True) as operators:
            results = list(torch.autograd.grad(output, [leaves[i] for i in wanted], output.detach()))
        return results, sum(name in ("aten::mm", "aten::addmm_", "aten::bmm") for name in operators.names)

    everything = range(len(tensors))
    expected, _ = gradients(everything)
    for wanted in ([i] for i in everything), ([i for i in everything if i != left] for left in everything):
        for chosen in wanted:
            results, products = gradients(chosen)
            assert products == sum(products_of[i] for i in chosen)
            assert all(torch.equal(gradient, expected[i]) for i, gradient in zip(chosen, results, strict=True))


def test_what_does_not_run_is_refused() -> None:
    x, weights = torch.zeros(1, 2, 3), [torch.zeros(16, 3), torch.zeros(16, 4), None, None]
    options = RNNOptions("lstm", False, False, False, False)
    with pytest.raises(ValueError, match="on cpu: runs on a CUDA device"):
        run(x, (), weights, None, options)
    doubles = [None if one is None else one.double() for one in weights]
    with pytest.raises(ValueError, match=r"expected one of torch.bfloat16, torch.float16, torch.float32, got torch.float64"):
        run(x.double(), (), doubles, None, options)


@on_simulator("on_cpu")
def test_a_launch_that_gave_up_before_is_told_of() -> None:
    status = kernel.status_of(torch.device("cpu"))
    case = small("lstm", steps=1, mode="inference", dtype="float16")
    ctypes.c_int32.from_address(status.address).value = 1
    with pytest.raises(RuntimeError, match="an earlier launch of a persistent kernel on cpu is wrong"):
        verdicts(case)
    assert verdicts(case) == []
