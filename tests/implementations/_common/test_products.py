"""Products: on aligned copies and by views, when copies are made, and long sums, of which no term is dropped."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_ecornn.implementations._common import long_sums, padded_gemm
from pytest_ecornn.implementations._common.input_gemm import InputGemm, make_input_gemm
from pytest_ecornn.implementations._common.padded_gemm import matmul_nn, matmul_nt, matmul_nt_padded, matmul_tn
from pytest_ecornn.implementations.transposed_gpu.steps import product
from tests.helpers.requirements import needs_compiler, needs_gpu, on_simulator

SIZES = [(3, 5, 7, 9), (2, 8, 16, 24), (1, 1, 1, 1), (4, 3, 10, 12), (2, 2, 8, 13)]  # T, B, K, N
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


class OnCuda(Tensor):
    is_cuda = True  # type: ignore[assignment]


# On copies.


@pytest.fixture(params=[True, False])
def is_always_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(padded_gemm, "_is_fast", lambda *given: False)


@pytest.fixture(params=["torch", pytest.param("kernel", marks=needs_compiler)])
def copies(request: pytest.FixtureRequest, kernels_on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch, and by the kernel on a CPU."""
    monkeypatch.setattr(padded_gemm, "_is_copied_by_kernel", lambda one: request.param == "kernel" and one.stride(1) == 1)


@pytest.mark.usefixtures("is_always_slow", "copies")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("is_apart", [False, True])
def test_products_are_those_of_torch(sizes: tuple[int, int, int, int], dtype: torch.dtype, is_apart: bool) -> None:
    steps, batch, inner, outer = sizes

    def some(*shape: int) -> torch.Tensor:
        wide = torch.randint(-4, 5, (*shape[:-1], shape[-1] + 3 * is_apart)).to(dtype)
        return wide[..., : shape[-1]]

    x, weight, right, under = some(steps, batch, inner), some(outer, inner), some(inner, outer), some(steps * batch, outer)
    rows = x.flatten(0, 1)
    expected = torch.einsum("tbk,nk->tbn", x, weight)
    torch.testing.assert_close(matmul_nt(x, weight, False), expected)
    for wider in (0, 2, 30):
        found = matmul_nt_padded(outer + wider, x, weight, False)
        assert found.shape == (steps, batch, outer + wider)
        assert found.is_contiguous()
        torch.testing.assert_close(found[..., :outer], expected)
    torch.testing.assert_close(matmul_nn(x, right, False), torch.einsum("tbk,kn->tbn", x, right))
    expected, into = torch.einsum("mk,mn->kn", rows, under), rows.new_empty(inner, outer)
    for given in (None, into):
        torch.testing.assert_close(matmul_tn(rows, under, False, into=given), expected)
    torch.testing.assert_close(into, expected)


def test_what_is_no_number_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_gemm, "_is_fast", lambda *given: False)
    x, weight = torch.ones(1, 3, 5), torch.ones(6, 5)
    x[0, 1, 2] = float("inf")
    found = matmul_nt(x, weight, False)
    assert found[0, 1].isinf().all()
    assert (found[0, ::2] == 5).all()


@pytest.mark.parametrize(
    ("dtype", "tf32", "width", "is_fast"),
    [
        (torch.float16, False, 1504, True),
        (torch.float16, False, 1500, False),
        (torch.float32, True, 1500, True),
        (torch.float32, True, 650, False),
        (torch.float32, False, 650, True),
    ],
)
def test_copies_are_made_where_the_tensor_cores_would_wait(dtype: torch.dtype, tf32: bool, width: int, is_fast: bool) -> None:
    x = torch.empty(35, 32, width, dtype=dtype).as_subclass(OnCuda)
    weight = torch.empty(4 * width, width, dtype=dtype)
    assert padded_gemm._is_fast(x, weight, x.numel() * 4 * width, tf32) == is_fast
    assert padded_gemm._is_fast(x, weight, 1000, tf32)


# Of inputs.


@on_simulator("kernels_on_cpu")
@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize(("width", "wide"), [(5, 8), (8, 12), (1, 4)])
def test_an_input_product_is_that_of_einsum(width: int, wide: int, is_padded: bool) -> None:
    x, weight = torch.randn(2, 7, 3, width)[1], torch.randn(wide, width)
    found = InputGemm((7, 3), width, wide, torch.float32, torch.device("cpu"), is_padded)(x, weight)
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
def test_which_input_products_are_padded(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, tf32: bool, is_padded: bool | None
) -> None:
    first, second, width, wide = sizes
    found = make_input_gemm((first, second), width, wide, dtype, torch.device("cuda", 0), tf32)
    assert (None if found is None else found._is_padded) == is_padded


# Of long sums.


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
