"""Products with long sums: no term is dropped, and one product is made where that is right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._common import long_sums
from pytest_ecornn.implementations.transposed_gpu.steps import product
from tests.helpers.requirements import needs_gpu


class OnCuda(Tensor):
    is_cuda = True  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("terms", "dtype", "summed"),
    [
        (20485, torch.float16, 20480),
        (20485, torch.bfloat16, 20480),
        (20480, torch.float16, 20480),
        (4100, torch.float16, 4096),
        (4095, torch.float16, 4095),
        (20485, torch.float32, 20485),
    ],
)
def test_the_end_of_a_long_sum_is_added_apart(
    terms: int, dtype: torch.dtype, summed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = torch.ones(terms, 3, dtype=dtype).t(), torch.ones(terms, 2, dtype=dtype)
    assert long_sums.summed_terms(a.as_subclass(OnCuda)) == summed
    assert long_sums.summed_terms(a) == terms
    monkeypatch.setattr(long_sums, "_wide_mm", lambda a, b, dtype: a.as_subclass(Tensor).to(dtype) @ b.to(dtype))
    a[:, -1], out = 2, torch.empty(3, 2, dtype=dtype)
    found = long_sums.mm(a.as_subclass(OnCuda), b, out=out)
    assert found.data_ptr() == out.data_ptr()
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=4 * torch.finfo(dtype).eps, atol=0)


def test_rows_of_inputs_are_one_product() -> None:
    assert long_sums.summed_terms(torch.ones(3, 20485, dtype=torch.float16).as_subclass(OnCuda)) == 20485


def test_a_part_may_overflow_where_the_whole_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_sums, "_wide_mm", lambda a, b, dtype: a.as_subclass(Tensor).to(dtype) @ b.to(dtype))
    a, b = torch.full((4127, 1), 16.0, dtype=torch.float16).t(), torch.ones(4127, 1, dtype=torch.float16)
    b[4096:] = -16
    a = a.as_subclass(OnCuda)
    assert a.double().as_subclass(Tensor)[:, :4096].sum() > 65_504
    assert long_sums.mm(a, b).item() == 57_600


@needs_gpu
@pytest.mark.parametrize("terms", [20481, 20485, 20488, 20495, 24581, 40965])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_gpu_every_term_is_in_a_product(terms: int, dtype: torch.dtype) -> None:
    for rows, columns in ((16, 16), (32, 32), (64, 32), (512, 128)):
        a, b = torch.randn(terms, rows, device="cuda", dtype=dtype).t(), torch.randn(terms, columns, device="cuda", dtype=dtype)
        wanted = a.double() @ b.double()
        for found in (long_sums.mm(a, b), product(a, b, torch.empty(rows, columns, device="cuda"))):
            assert (found.double() - wanted).norm() < torch.finfo(dtype).eps * wanted.norm()
