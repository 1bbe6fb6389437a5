"""The gradients of biases in one launch: sums of all rows, run on clusters of a CPU and compiled for a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_ecornn.implementations._cuda import bias_gradients
from pytest_ecornn.implementations._cuda.bias_gradients import BiasGradients
from tests.helpers.requirements import needs_compiler, needs_hopper
from tests.simulator.clusters_on_cpu import is_fault_seen, running_kernels

CPU = torch.device("cpu")
SIZES = [(1, 1, 0), (700, 72, 0), (35, 128, 0), (300, 27, 9), (513, 192, 64), (40, 24, 8)]  # rows, columns, H of GRU


@pytest.fixture
def on_cpu() -> Iterator[None]:
    with running_kernels(bias_gradients):
        yield


def expect_sums(rows: int, columns: int, hidden: int, dtype: torch.dtype, device: torch.device, directions: int = 1) -> None:
    """Both gradients are the sums in float64, rounded once; of GRU the last H of bias_hh are d_recurrent's."""
    torch.manual_seed(0)
    leading = (rows,) if directions == 1 else (directions, rows)
    d_gates = torch.randn(*leading, columns, device=device).to(dtype)
    d_recurrent = torch.randn(*leading, hidden, device=device).to(dtype) if hidden else None
    found = BiasGradients(rows, columns, hidden, dtype, device, directions)(d_gates, d_recurrent)
    of_ih = d_gates.double().sum(-2)
    of_hh = of_ih if d_recurrent is None else torch.cat((of_ih[..., : columns - hidden], d_recurrent.double().sum(-2)), -1)
    for one, wanted in zip(found, (of_ih, of_hh), strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-5 * rows**0.5)
    assert found[0].data_ptr() != found[1].data_ptr()


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_they_are_the_sums_of_all_rows(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    expect_sums(*sizes, dtype, CPU)


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("sizes", SIZES)
def test_two_directions_take_one_launch(sizes: tuple[int, int, int]) -> None:
    expect_sums(*sizes, torch.float16, CPU, directions=2)


@pytest.mark.parametrize("hidden", [0, 9])
@pytest.mark.parametrize("directions", [1, 2])
def test_without_the_kernel_torch_sums(directions: int, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bias_gradients, "_kernel_for", lambda *given: None)
    leading = (4, 3) if directions == 1 else (2, 4, 3)
    d_gates, d_recurrent = torch.randn(*leading, 27), torch.randn(*leading, hidden) if hidden else None
    of_ih, of_hh = bias_gradients.bias_gradients(d_gates, d_recurrent, directions)
    summed = d_gates.flatten(-3, -2).sum(-2)
    torch.testing.assert_close(of_ih, summed)
    wanted = summed if d_recurrent is None else torch.cat((summed[..., : 27 - hidden], d_recurrent.sum((-3, -2))), -1)
    torch.testing.assert_close(of_hh, wanted)
    assert of_ih.data_ptr() != of_hh.data_ptr()


@needs_compiler
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("shared.block_sums[own] = sum;\n    }\n    cluster_sync();", "shared.block_sums[own] = sum;\n    }"),
        ("[i];\n    __syncthreads();", "[i];"),
        ("int row = first; row < rows", "int row = first; row < rows - 1"),
    ],
)
def test_a_fault_is_seen(right: str, wrong: str) -> None:
    assert is_fault_seen(right, wrong, lambda: expect_sums(700, 72, 0, torch.float32, CPU))


@needs_hopper
@pytest.mark.parametrize("sizes", [*SIZES, (22_400, 2048, 0), (5_120, 1536, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_gpu(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    for directions in (1, 2):
        expect_sums(*sizes, dtype, torch.device("cuda", 0), directions)
