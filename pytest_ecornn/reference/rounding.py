"""How the plain loop rounds where an implementation declares that it does: to nearest, or dithered to judge others by.

A number that other roundings came before may rightly end on either side of where the reference's does. Nearest rounding shows
one such case only, the same in every run; dithered rounding shows them at random.
"""

from __future__ import annotations

import torch
from torch import Tensor

TF32_EPS = 2.0**-10
PART = 192  # terms of a long sum, after which cuBLAS may round it: docs/notes/cudnn.md


class Rounding:
    """Rounds to nearest and a sum once; truncates operands of TF32 products, as tensor cores read them."""

    def __init__(self, is_other_form: bool = False):
        """is_other_form: of a loop as right as the first, in which `Cell.other` is a step, and output, final state and a state
        carried in storage are one, so that autograd rounds the sum of their gradients."""
        self.is_other_form = is_other_form

    def to(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """x in `dtype`, differentiable."""
        return x.to(dtype)

    def tf32(self, x: Tensor) -> Tensor:
        """float32 without the last 13 bits; what is not finite as it is."""
        cut = (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)
        return torch.where(x.isfinite(), cut, x)

    def partial_sum_terms(self, count: int) -> list[slice]:
        """The parts of a sum of `count` terms that are rounded by themselves, where a library may round them."""
        return [slice(count)]

    def running_parts(self, count: int) -> list[slice]:
        """The parts of a sum of `count` terms after each of which a library may round what it has summed."""
        return [slice(count)]


class Parted(Rounding):
    """Rounds to nearest. A sum has two parts, as where a library splits a long product."""

    def __init__(self, random: torch.Generator, is_other_form: bool = False):
        super().__init__(is_other_form)
        self._random = random

    def partial_sum_terms(self, count: int) -> list[slice]:
        cut = int(torch.randint(1, count, (), generator=self._random)) if count > 1 else count
        return [slice(cut), slice(cut, count)][: min(count, 2)]

    def running_parts(self, count: int) -> list[slice]:
        return [slice(start, min(start + PART, count)) for start in range(0, count, PART)]


class Dithered(Parted):
    """Rounds to one of the two neighbours at random, so that the mean is the value; exact values stay unchanged."""

    def to(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        finfo = torch.finfo(dtype)
        if finfo.eps <= torch.finfo(x.dtype).eps:
            return x.to(dtype)
        return self._neighbour(x, finfo.eps, finfo.smallest_normal).to(dtype)

    def tf32(self, x: Tensor) -> Tensor:
        return self._neighbour(x, TF32_EPS, torch.finfo(torch.float32).smallest_normal)

    def _neighbour(self, x: Tensor, eps: float, smallest_normal: float) -> Tensor:
        """One of the two next to x, differentiable, in a type with such an eps."""
        given = x.detach()
        size = given.abs()
        unit = torch.ldexp(torch.full_like(size, eps), torch.frexp(size.clamp(min=smallest_normal)).exponent - 1)
        share = torch.rand(x.shape, generator=self._random, dtype=x.dtype).to(x.device)
        selected = ((size / unit + share).floor() * unit).copysign(given)
        return x + torch.where(given.isfinite(), selected - given, 0.0)
