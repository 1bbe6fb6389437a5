"""Products on aligned copies: what they are of, and when copies are made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_ecornn.implementations._common import padded_gemm
from pytest_ecornn.implementations._common.padded_gemm import matmul_nn, matmul_nt, matmul_nt_padded, matmul_tn
from pytest_ecornn.implementations._cuda import padded_rows
from tests.helpers.requirements import needs_compiler
from tests.simulator.clusters_on_cpu import running_kernels

SIZES = [(3, 5, 7, 9), (2, 8, 16, 24), (1, 1, 1, 1), (4, 3, 10, 12), (2, 2, 8, 13)]  # T, B, K, N
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(params=[True, False])
def is_always_slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(padded_gemm, "_is_fast", lambda *given: False)


@pytest.fixture(params=["torch", pytest.param("kernel", marks=needs_compiler)])
def copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """By torch, and by the kernel on a CPU."""
    monkeypatch.setattr(padded_gemm, "_is_copied_by_kernel", lambda one: request.param == "kernel" and one.stride(1) == 1)
    with running_kernels(padded_rows):
        yield


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
    class OnCuda(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    x = torch.empty(35, 32, width, dtype=dtype).as_subclass(OnCuda)
    weight = torch.empty(4 * width, width, dtype=dtype)
    assert padded_gemm._is_fast(x, weight, x.numel() * 4 * width, tf32) == is_fast
    assert padded_gemm._is_fast(x, weight, 1000, tf32)
