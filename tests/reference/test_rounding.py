"""Rounding of the plain loop: to nearest, or to either neighbour with the reference's value as the mean."""

from __future__ import annotations

import pytest
import torch

from pytest_ecornn.reference.rounding import Dithered, Rounding


def dithered(seed: int = 0) -> Dithered:
    return Dithered(torch.Generator().manual_seed(seed))


def test_tf32_operands_have_11_bits() -> None:
    x = torch.tensor([1 + 2**-10 + 2**-11, -3.0, 0.0, float("inf")])
    assert Rounding().tf32(x).tolist() == [1 + 2**-10, -3.0, 0.0, float("inf")]
    assert Rounding().tf32(torch.tensor([float("nan")])).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 100.0, 1e-3, 1e-6])
def test_a_dithered_value_is_one_of_the_two_neighbours_and_right_on_average(dtype: torch.dtype, scale: float) -> None:
    x = (torch.rand(50, generator=torch.Generator().manual_seed(1)) - 0.5) * scale
    runs = torch.stack([dithered(seed).to(x, dtype).double() for seed in range(400)])
    nearest = x.to(dtype)
    ends = [torch.nextafter(nearest, torch.tensor(end, dtype=dtype)).double() for end in (float("inf"), float("-inf"))]
    unit = torch.maximum(ends[0] - nearest.double(), nearest.double() - ends[1])
    assert ((runs - x).abs() <= unit * 1.001).all()
    assert ((runs.mean(0) - x).abs() <= unit * 0.15).all()
    assert (runs != runs[0]).any()


def test_a_dithered_tf32_operand_is_one_of_the_two_neighbours() -> None:
    x = torch.tensor([1 + 2**-11, -(1 + 2**-11), 3.0, 0.0, float("-inf")])
    found = {tuple(dithered(seed).tf32(x).tolist()) for seed in range(40)}
    up, down, rest = 1 + 2**-10, 1.0, (3.0, 0.0, float("-inf"))
    assert found == {(a, -b, *rest) for a in (up, down) for b in (up, down)}


def test_what_is_representable_or_not_finite_stays() -> None:
    x = torch.tensor([1.5, -2.0, 0.0, 2.0**-24, float("inf"), float("nan")])
    for seed in range(20):
        torch.testing.assert_close(dithered(seed).to(x, torch.float16).float(), x, rtol=0, atol=0, equal_nan=True)
    wide = torch.tensor([0.1])
    assert dithered().to(wide, torch.float64) == wide.double()
    assert dithered().to(wide, torch.float32) is wide


def test_the_gradient_passes_through() -> None:
    x = torch.tensor([0.1], requires_grad=True)
    dithered().to(x, torch.float16).backward(torch.tensor([2.0], dtype=torch.float16))
    assert x.grad == 2
