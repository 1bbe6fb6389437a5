"""Casts of parameters under autocast, in one launch: values and gradients of casts one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_ecornn.nn.autocast import autocast_of, cast_parameters

CPU = torch.device("cpu")


def parameters() -> list[Tensor | None]:
    """A wide one, a frozen one, none, one in float64, one that has autocast's dtype already, and a small one."""
    torch.manual_seed(0)
    found = [torch.randn(5, 3), torch.randn(4), torch.randn(2, 2).double(), torch.randn(3).bfloat16(), torch.randn(7)]
    for number, one in enumerate(found):
        one.requires_grad_(number != 1)
    return [found[0], found[1], None, *found[2:]]


def one_by_one(given: Sequence[Tensor | None], device: torch.device) -> list[Tensor | None]:
    cast_one = autocast_of(device)
    return [None if one is None else cast_one(one) for one in given]


def cast(*given: Tensor | None, dtype: torch.dtype = torch.bfloat16) -> Any:
    with torch.autocast("cpu", dtype):
        return cast_parameters(given, CPU)


def summed(found: Sequence[Tensor | None]) -> Tensor:
    return sum((one.double().pow(3).sum() for one in found if one is not None), torch.zeros(()))


def test_they_are_those_of_casts_one_by_one() -> None:
    given = parameters()
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = cast_parameters(given, CPU), one_by_one(given, CPU)
    wants_gradient = [one for one in given if one is not None and one.requires_grad]
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert [getattr(one, "requires_grad", None) for one in found] == [getattr(one, "requires_grad", None) for one in wanted]
    for order in (1, 2):
        gradients = []
        for each in (found, wanted):
            once = torch.autograd.grad(summed(each), wants_gradient, create_graph=True, retain_graph=True)
            total = sum((one.double().pow(2).sum() for one in once), torch.zeros(()))
            gradients.append(once if order == 1 else torch.autograd.grad(total, wants_gradient, retain_graph=True))
        torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_a_copy_that_nobody_uses_has_no_gradient() -> None:
    used, unused = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    cast(used, unused)[0].sum().backward()
    assert torch.equal(used.grad, torch.ones(3))
    assert unused.grad is None


def test_each_use_of_a_tied_parameter_is_cast_alone() -> None:
    tied = torch.ones(1, requires_grad=True)
    first, second = cast(tied, tied)
    (gradient,) = torch.autograd.grad(first + second * 2.0**-9, tied)
    assert gradient.item() == 1 + 2.0**-9  # which bfloat16 does not have


def test_without_autocast_they_are_the_same_tensors() -> None:
    given = parameters()
    assert all(one is other for one, other in zip(cast_parameters(given, CPU), given, strict=True))


def test_under_a_transform_each_is_cast_alone() -> None:
    weight = torch.randn(3)
    gradient = torch.func.grad(lambda weight: summed(cast(weight)))(weight)
    torch.testing.assert_close(gradient, 3 * weight.bfloat16().float() ** 2, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_dtype_is_autocasts(dtype: torch.dtype) -> None:
    assert cast(torch.randn(3), dtype=dtype)[0].dtype == dtype
