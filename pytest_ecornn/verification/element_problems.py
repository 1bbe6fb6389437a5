"""What a tensor may be wrong by before any error is measured: its form, what is not finite, and padding that is not zero."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pytest_ecornn.cases.non_finite import leaves_undefined
from pytest_ecornn.contract import Case


def form_problem(actual: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> str:
    """Describes what is wrong with the type, shape, dtype or device of `actual`; empty if nothing is."""
    expected = f"expected a tensor of shape {list(shape)}, {str(dtype).removeprefix('torch.')}, on {device}"
    if not isinstance(actual, Tensor):
        return f"{expected}; got {'nothing' if actual is None else type(actual).__name__}"
    got = f"shape {list(actual.shape)}, {str(actual.dtype).removeprefix('torch.')}, on {actual.device}"
    same = tuple(actual.shape) == shape and actual.dtype == dtype and actual.device.type == torch.device(device).type
    return "" if same else f"{expected}; got {got}"


def non_finite_problem(case: Case, actual: Tensor, reference: Tensor, allowed: float) -> str:
    """NaN and infinities must stand where the reference, rounded to the dtype, has them, and be of the same kind.

    Of contents whose infinities leave a result undefined, NaN in the reference stands for any value. Where an error of
    `allowed`, relative to the reference's largest element, takes it over the edge, both sides are right.
    """
    largest = torch.finfo(getattr(torch, case.dtype)).max
    if _largest(actual) < math.inf and _largest(reference) <= largest:
        return ""
    slack = max(allowed * _largest(reference[reference.isfinite()]), 0.01 * largest)
    places = (~(actual.isfinite() & (reference.abs() <= largest))).nonzero()
    got, wanted = actual[places.unbind(1)], reference[places.unbind(1)]
    edge = ((wanted.abs() - largest).abs() < slack) & (got.sign() == wanted.sign())
    rounded = torch.where(wanted.abs() > largest, wanted.sign() * math.inf, wanted)
    same = (got.isfinite() & rounded.isfinite()) | (got == rounded) | (got.isnan() & rounded.isnan())
    if leaves_undefined(case):
        same |= wanted.isnan()
    wrong = ~(same | edge)
    if not wrong.any():
        return ""
    position, expected, came = (found[wrong][0].tolist() for found in (places, rounded, got))
    return f"at {position} expected {expected:.6g}, got {came:.6g} ({int(wrong.sum())} such elements)"


def _largest(values: Tensor) -> float:
    """The largest absolute value: NaN where there is one, 0 of nothing."""
    if not values.numel():
        return 0.0
    low, high = torch.stack(values.aminmax()).tolist()
    return float(max(-low, high))


def zero_problem(actual: Tensor, valid: Tensor | None) -> str:
    if valid is None or not len(places := ((actual != 0) & ~valid).nonzero()):
        return ""
    value = actual[places[0].unbind()].item()
    return f"at {places[0].tolist()} expected exactly 0 (padding or a pruned weight), got {value:.6g}"
