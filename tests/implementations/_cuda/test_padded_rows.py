"""Copies of matrices with rows of whole vectors, in one launch: run on a CPU's simulator and on a GPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from pytest_ecornn.implementations._common.padding import zero_padding
from pytest_ecornn.implementations._cuda.padded_rows import MatrixSizes, PaddedRows, zero_padding_in_one_launch
from tests.helpers.requirements import needs_gpu, on_simulator

CPU = torch.device("cpu")
SIZES = [
    [MatrixSizes(1, 1, 1, 1, 8)],
    [MatrixSizes(70, 13, 15, 72, 16)],
    [MatrixSizes(5, 16, 16, 5, 16), MatrixSizes(9, 3, 3, 16, 8)],
    [MatrixSizes(33, 65, 65, 33, 72), MatrixSizes(26, 65, 70, 32, 72), MatrixSizes(7, 9, 9, 7, 16)],
    [MatrixSizes(12, 9, 18, 12, 16, skipped=4), MatrixSizes(3, 8, 8, 3, 8, skipped=3)],
    [MatrixSizes(12, 9, 9, 12, 16, skipped=4, has_ones=True), MatrixSizes(7, 1, 1, 7, 8, has_ones=True)],
    [MatrixSizes.of_part(*one) for one in ((26, 65, 72), (26, 66, 72), (7, 1, 16), (16, 3, 8), (5, 16, 24))],
]


def expect_copies(sizes: list[MatrixSizes], dtype: torch.dtype, device: torch.device) -> None:
    """Each is torch's pad of both matrices, one above the other."""

    def drawn(rows: int, columns: int, stride: int) -> Tensor:
        return torch.randn(rows, stride, device=device).to(dtype)[:, :columns]

    matrices = [drawn(one.rows - one.skipped, one.width, one.stride) for one in sizes]
    above = [drawn(one.skipped, one.width, one.width) for one in sizes]
    run = PaddedRows(tuple(sizes), dtype, device)
    for of_above in (above, [None] * len(sizes)):
        for number, copied in enumerate(run(matrices, of_above)):
            first = above[number] if of_above is above else torch.zeros_like(above[number])
            size = sizes[number]
            wanted = pad(torch.cat((first, matrices[number])), (0, size.more_width, 0, size.more_rows))
            if size.has_ones:
                wanted[:, size.width] = 1
            assert torch.equal(copied, wanted)


of_sizes = pytest.mark.parametrize("sizes", SIZES, ids=str)
of_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


@on_simulator("kernels_on_cpu")
@of_sizes
@of_dtypes
def test_they_are_padded_with_zeros(sizes: list[MatrixSizes], dtype: torch.dtype) -> None:
    expect_copies(sizes, dtype, CPU)


def expect_zeros_in_padding(dtype: torch.dtype, device: torch.device) -> None:
    """Whatever is there, of sequences of no steps and of lengths out of range too."""
    x, lengths = torch.randn(7, 5, 16, device=device).to(dtype), torch.tensor([0, 7, 3, -2, 9], device=device)
    x[3:, 2] = x[:, 0] = torch.nan
    masked = zero_padding_in_one_launch(x, lengths)
    assert masked is not None
    assert torch.equal(masked, zero_padding(x, lengths, batch_first=False))
    assert torch.equal(masked[:, 1], x[:, 1])


@on_simulator("kernels_on_cpu")
@of_dtypes
def test_padding_is_zeros_whatever_is_there(dtype: torch.dtype) -> None:
    expect_zeros_in_padding(dtype, CPU)


def test_rows_with_gaps_and_of_parts_of_vectors_are_left_to_torch() -> None:
    lengths = torch.tensor([1, 2])
    assert zero_padding_in_one_launch(torch.zeros(2, 2, 5), lengths) is None
    assert zero_padding_in_one_launch(torch.zeros(2, 2, 8)[..., :4], lengths) is None


def test_copies_that_are_too_large_are_refused() -> None:
    with pytest.raises(ValueError, match=r"fewer than 2\^31 vectors of 16 bytes, got 2147483648"):
        PaddedRows((MatrixSizes(2**30, 8, 8, 2**30, 8),), torch.float32, CPU)


@needs_gpu
@of_sizes
@of_dtypes
def test_on_a_gpu(sizes: list[MatrixSizes], dtype: torch.dtype) -> None:
    expect_copies([*sizes], dtype, torch.device("cuda", 0))
    expect_copies(
        [MatrixSizes(1120, 650, 650, 1120, 656), MatrixSizes(2600, 650, 650, 2600, 656)], dtype, torch.device("cuda", 0)
    )
    expect_zeros_in_padding(dtype, torch.device("cuda", 0))
