"""Input products by views, and by copies with rows of whole vectors."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.implementations._common.input_gemm import InputGemm, make_input_gemm
from pytest_ecornn.implementations._cuda import padded_rows
from tests.helpers.requirements import needs_compiler
from tests.simulator.clusters_on_cpu import running_kernels

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@needs_compiler
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(("width", "wide"), [(5, 8), (8, 12), (1, 4)])
def test_it_is_that_of_einsum(width: int, wide: int, is_padded: bool) -> None:
    x, weight = torch.randn(2, 7, 3, width)[1], torch.randn(wide, width)
    with running_kernels(padded_rows):
        found = InputGemm((7, 3), width, wide, torch.float32, CPU, is_padded)(x, weight)
    torch.testing.assert_close(found, torch.einsum("tbi,gi->tbg", x, weight), rtol=1e-5, atol=1e-5)
    assert found.is_contiguous()


@pytest.mark.parametrize(
    ("sizes", "dtype", "tf32", "is_padded"),
    [
        ((35, 32, 650, 2600), torch.float32, True, True),
        ((35, 32, 650, 2600), torch.float32, False, False),
        ((35, 32, 656, 2624), torch.bfloat16, False, False),
        ((35, 32, 650, 2600), torch.bfloat16, False, True),
        ((35, 32, 650, 1950), torch.bfloat16, False, None),
        ((2, 1, 650, 1950), torch.bfloat16, False, False),
    ],
)
def test_what_is_padded(sizes: tuple[int, int, int, int], dtype: torch.dtype, tf32: bool, is_padded: bool | None) -> None:
    first, second, width, wide = sizes
    found = make_input_gemm((first, second), width, wide, dtype, GPU, tf32)
    assert (None if found is None else found._is_padded) == is_padded
