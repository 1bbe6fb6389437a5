"""The float32 input product on tensor cores: on a CPU's simulator and on a GPU, and which products it computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._common.input_gemm import InputGemm, make_input_gemm
from pytest_ecornn.implementations.persistent_gpu.input_gemm.gemm_3xtf32 import (
    TILES,
    GemmTile,
    InputGemm3xTF32,
    make_fastest_input_gemm,
    select_tile,
)
from tests.helpers.requirements import needs_gpu, on_simulator
from tests.simulator.clusters_on_cpu import is_fault_seen

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
SIZES = [(1, 1, 4, 1), (7, 3, 12, 40), (5, 30, 72, 288), (1, 70, 36, 65), (2, 33, 84, 130), (1, 9, 200, 8)]  # T, B, I, G*H
LARGE = [(50, 100, 72, 288), (35, 32, 652, 2600), (3, 5, 1536, 4096), (1, 4099, 1024, 132)]
ERROR = 6 * 2.0**-24  # of the sum of the terms' magnitudes; torch's own product on a CPU errs by 4
of_tiles = pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.m_tiles}x{tile.n_tiles}")


def make(sizes: tuple[int, int, int, int], tile: GemmTile, device: torch.device) -> InputGemm3xTF32:
    steps, batch, width, wide = sizes
    torchs = make_input_gemm((steps, batch), width, wide, torch.float32, device, False)
    assert torchs is not None
    return InputGemm3xTF32((steps, batch), width, wide, device, torchs, tile)


def drawn(sizes: tuple[int, int, int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    steps, batch, width, wide = sizes
    return torch.randn(steps, batch, width, device=device), torch.randn(wide, width, device=device)


def expect_product(sizes: tuple[int, int, int, int], tile: GemmTile, device: torch.device) -> None:
    """Asserts that the product is float64's within ERROR, and bit-equal in a repeat."""
    x, weight = drawn(sizes, device)
    gemm = make(sizes, tile, device)
    found, magnitude = gemm(x, weight), x.double().abs() @ weight.double().abs().t()
    error = (found - x.double() @ weight.double().t()).abs()
    assert found.shape == (*sizes[:2], sizes[3])
    assert found.is_contiguous()
    assert bool((error <= ERROR * magnitude).all())
    assert torch.equal(gemm(x, weight), found)


@on_simulator("kernels_on_cpu")
@of_tiles
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_has_the_precision_of_float32(sizes: tuple[int, int, int, int], tile: GemmTile) -> None:
    expect_product(sizes, tile, CPU)


@needs_gpu
@of_tiles
@pytest.mark.parametrize("sizes", SIZES + LARGE, ids=str)
def test_on_a_gpu(sizes: tuple[int, int, int, int], tile: GemmTile) -> None:
    expect_product(sizes, tile, GPU)


@on_simulator("kernels_on_cpu")
def test_an_infinite_input_makes_infinite_gates() -> None:
    x, weight = drawn(SIZES[1], CPU)
    x[2, 1, 5] = -torch.inf
    found = make(SIZES[1], TILES[0], CPU)(x, weight)
    assert torch.equal(found[2, 1], torch.where(weight[:, 5] > 0, -torch.inf, torch.inf))
    assert bool(found[torch.arange(7) != 2].isfinite().all())


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("mma_n_tiles<IS_HALF>(products, a.small,", "if (0) mma_n_tiles<IS_HALF>(products, a.small,"),
        ("return b[n].small;", "return b[n].big;"),
        ("        cp_async_wait_group<STAGES - 2>();\n        __syncthreads();", "        __syncthreads();"),
        ("        cp_async_wait_group<STAGES - 2>();\n        __syncthreads();", "        cp_async_wait_group<STAGES - 2>();"),
        ("i < left / 2;", "i < left / 2 - 1;"),
        ("if (left % 2)", "if (0)"),
        ("tiles[left / 2]", "tiles[0]"),
        ("if (k < inputs && first + local + i < row_count)", "if (first + local + i < row_count)"),
        ("tile.weight_ih[row + 8]", "tile.weight_ih[row]"),
    ],
)
def test_planted_faults_are_seen(right: str, wrong: str) -> None:
    """In a product that is right without them, as the test of its precision shows."""
    assert is_fault_seen(right, wrong, lambda: expect_product(SIZES[4], TILES[1], CPU))


@on_simulator("kernels_on_cpu")
def test_arrays_that_are_not_aligned_are_multiplied_by_torch() -> None:
    x, weight = drawn(SIZES[1], CPU)
    moved = torch.cat((torch.zeros(1), x.flatten()))[1:].view(x.shape)
    assert moved.data_ptr() % 16
    assert torch.equal(make(SIZES[1], TILES[0], CPU)(moved, weight), (moved.flatten(0, 1) @ weight.t()).view(7, 3, 40))


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize(
    ("sizes", "dtype", "tf32", "expected"),
    [
        ((50, 100, 72, 288), torch.float32, False, InputGemm3xTF32),
        ((50, 100, 72, 288), torch.float32, True, InputGemm),
        ((50, 100, 72, 288), torch.float16, False, InputGemm),
        ((0, 100, 72, 288), torch.float32, False, InputGemm),
        ((50, 100, 73, 288), torch.float32, False, InputGemm),  # rows are no multiples of 16 bytes
        ((1, 64, 1024, 1024), torch.float32, False, InputGemm),  # few blocks of long sums, which cuBLAS splits
        ((1, 257, 1024, 1024), torch.float32, False, InputGemm3xTF32),
        ((1, 64, 512, 4096), torch.float32, False, InputGemm3xTF32),
    ],
)
def test_which_products_it_computes(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, tf32: bool, expected: type[object]
) -> None:
    steps, batch, width, wide = sizes
    assert type(make_fastest_input_gemm((steps, batch), width, wide, dtype, CPU, tf32)) is expected


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (12, 0)])
def test_other_gpus_than_hopper_have_cublas(capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert type(make_fastest_input_gemm((50, 100), 72, 288, torch.float32, GPU, False)) is InputGemm


def test_larger_products_have_larger_tiles() -> None:
    assert [select_tile(rows, 256, 1024)[:2] for rows in (16, 1024, 4096, 16384)] == [(2, 2), (2, 4), (3, 4), (4, 4)]
