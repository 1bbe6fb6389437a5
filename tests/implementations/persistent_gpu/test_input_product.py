"""persistent_gpu's input product as part of its kernels, of short calls: when it is taken."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_ecornn.implementations.persistent_gpu import kernel as persistent_kernel
from pytest_ecornn.implementations.persistent_gpu.config import Form
from pytest_ecornn.implementations.persistent_gpu.describe import describe
from pytest_ecornn.implementations.persistent_gpu.kernel import MOST_FUSED_ROWS, KernelSpec, is_fused
from pytest_ecornn.implementations.persistent_gpu.ops import run
from pytest_ecornn.implementations.persistent_gpu.plan import RNNOptions
from tests.helpers import persistent
from tests.helpers.persistent import small
from tests.helpers.requirements import needs_compiler, on_simulator
from tests.helpers.simulated_kernels import KERNELS, KernelRun, Seen

on_cpu = persistent.on_cpu  # a fixture
RELU = RNNOptions("rnn_relu", batch_first=False, bidirectional=False, projected=False, tf32=False)


@pytest.mark.parametrize(
    ("steps", "batch", "is_taken"), [(2, 1, True), (16, 1, True), (2, 8, True), (1, 16, True), (17, 1, False), (3, 6, False)]
)
def test_few_rows_of_x_are_multiplied_by_the_kernel_itself(steps: int, batch: int, is_taken: bool) -> None:
    assert MOST_FUSED_ROWS == 16
    assert is_fused(steps, batch, 40, 40) == is_taken


@pytest.mark.parametrize(
    ("inputs", "hidden", "is_taken"),
    [(0, 64, False), (1024, 64, True), (1025, 64, False), (3000, 1500, True), (3001, 1500, False), (None, 1500, True)],
)
def test_wide_rows_are_not_multiplied_by_few_blocks(inputs: int | None, hidden: int, is_taken: bool) -> None:
    assert is_fused(2, 8, inputs, hidden) == is_taken


@pytest.mark.parametrize(("inputs", "hidden", "width"), [(0, 512, 16), (512, 512, 16), (70, 512, 4), (33, 512, 2), (512, 9, 2)])
def test_as_much_is_read_at_once_as_divides_all_rows(inputs: int, hidden: int, width: int) -> None:
    kind = KernelSpec(torch.float16, torch.device("cpu"), inputs=inputs)
    form = Form(kind.problem("lstm", hidden, 1), 16, -(-hidden // 16), 1, 1)
    assert persistent_kernel.width_of(kind, form) == width


@needs_compiler
@pytest.mark.parametrize(
    ("line", "inputs"),
    [
        ("cluster gru-T11-B3-I6-H9-float16", [0]),
        ("cluster gru-T5-B3-H9-L2-float16-projected", [0, 9]),
        ("cluster gru-T5-B1-I6-H9-float16-training", [0, 0]),
        ("cluster gru-T1-B3-I6-H9-float16", []),
        ("cluster gru-T1-B129-I6-H9-float16", [0]),
    ],
)
def test_else_it_is_not(line: str, inputs: list[int]) -> None:
    simulated = KernelRun.parse(line)
    with simulated.running() as seen:
        assert simulated.failed() == []
    assert [spec.inputs for spec in seen.specs] == inputs


@on_simulator("on_cpu")
@pytest.mark.parametrize(
    ("options", "is_taken"), [({"layers": 2}, True), ({"steps": 11}, False), ({"projected": True, "input_size": 0}, False)]
)
def test_it_is_told_of_a_case(options: dict[str, Any], is_taken: bool) -> None:
    found = describe(small("lstm", **{"mode": "inference", "dtype": "float16", **options}), torch.device("cpu"))
    assert found.endswith("; the input product in the same launch") == is_taken


@needs_compiler
def test_of_inputs_without_width_there_is_no_product_to_make() -> None:
    x, weight_hh, seen = torch.zeros(3, 2, 0).half(), torch.eye(8).half(), Seen()
    with KERNELS["cluster"].running({}, seen):
        output, _ = run(x, (torch.ones(1, 2, 8).half(),), [x.new_empty(8, 0), weight_hh, None, None], None, RELU)
    assert torch.equal(output, torch.ones(3, 2, 8).half())
    assert [spec.inputs for spec in seen.specs] == [0]
