"""When two results agree: error measures, the tolerance rule, and what a failure says.

A tensor is judged against the float64 reference, as a whole and slice by slice, by how far the yardstick (a plain loop in
the same precision) itself is from that reference, and one of 16 bits also by how it was rounded (`rounding_shares`). All of it
happens in float64 on the device where the reference lives. The rule is stated here once; its constants were fitted on random
correct implementations (docs/notes/tolerance.md, `make tolerance`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_ecornn.verification import rounding_shares
from pytest_ecornn.verification.rounding_shares import EXACT, Independent, Shares

Array = Tensor  # float64, on the reference's device
Mask = Tensor  # bool, on the same device, of a shape that broadcasts to the tensor's

# rms <= RMS_FACTOR * yardstick's + RMS_FLOOR * eps / sqrt(n); maximum <= MAX_FACTOR * yardstick's + MAX_FLOOR * eps.
RMS_FACTOR, RMS_FLOOR = 2.0, 2.0
MAX_FACTOR, MAX_FLOOR = 2.0, 4.0
# A sum of n terms added one after the other in float32 (float64) errs by 0.2 eps * sqrt(n), which the yardstick's blocked sums
# do not show: both limits rise by SUM_FLOOR * eps * sqrt(n), n being `summation_length`. Of few elements all sums may be near
# zero, whose terms are not: the limits of such a slice rise by 1 + FEW_SUMS / elements times as much.
SUM_FLOOR, FEW_SUMS = 0.5, 8.0
# Where the yardstick's rms is over UNSTABLE * eps, rounding is not what elements differ by, and shares are not judged.
UNSTABLE = 4.0
SLICE_SCALE = 2.0**-10
# Beyond: yardstick's error over CHAOS * eps * sqrt(T), or reference's maximum under VANISHED * smallest normal (of float32 for
# float64, whose yardstick is a float32 loop).
CHAOS, VANISHED = 2.0**10, 2.0**10


@dataclass(frozen=True)
class Error:
    """Relative error of one slice of `count` elements: `rms` over the reference's rms, `maximum` over its maximum.

    In 16 bits also how its elements were rounded: see `rounding_shares`.
    """

    rms: float
    maximum: float
    count: int
    shares: Shares = EXACT


NO_ERROR = Error(0.0, 0.0, 1)


@dataclass(frozen=True)
class TensorCheck:
    """The verdict on one tensor. status: passed, failed or uninformative; `share` is the worst error over its limit."""

    tensor: str
    status: str
    rms: float = 0.0
    maximum: float = 0.0
    share: float = 0.0
    slice: str = ""
    message: str = ""


def failed(tensor: str, problem: str) -> TensorCheck:
    """The verdict on a tensor that is wrong by no measure."""
    return TensorCheck(tensor, "failed", share=math.inf, message=f"{tensor}: {problem}")


class Slices(NamedTuple):
    """The parts of one axis in which a tensor is judged: (start, stop) by label, the whole axis under "".

    least_scale: of a slice, as a share of its tensor's: what is smaller is noise of the larger parts.
    """

    axis: int
    parts: dict[str, tuple[int, int]]
    least_scale: float = SLICE_SCALE


class TensorRule(NamedTuple):
    """All that the rule must know of a tensor. device: where it must lie.

    eps: of the dtype, or of products' operands where they are coarser.
    terms: of the longest sums on the way to it. depth: of the longest chain of steps, through which an error may grow.
    is_undefined: whether NaN in the reference stands for any value. least_shared: elements of a slice whose shares are judged.
    vanished: what the largest element must reach, where that is not by VANISHED.
    """

    tensor: str
    dtype: torch.dtype
    device: str
    eps: float
    slices: tuple[Slices, ...]
    terms: int
    depth: int
    independent: Independent
    is_undefined: bool = False
    least_shared: int = 0
    vanished: float = 0.0

    @property
    def subnormal(self) -> float:
        """The smallest number above 0."""
        finfo = torch.finfo(self.dtype)
        return finfo.smallest_normal * finfo.eps


def to_float64(tensor: Tensor, device: torch.device) -> Array:
    return tensor.detach().to(device, torch.float64)


def errors(
    actual: Array,
    reference: Array,
    slices: Sequence[Slices],
    valid: Mask | None,
    subnormal: float,
    dtype: torch.dtype | None = None,
) -> dict[str, Error]:
    """Relative errors of the whole tensor and of each slice, over finite elements where `valid` holds.

    Of a `dtype` of 16 bits also how elements were rounded.
    """
    differences = _differences(actual, reference, valid, subnormal)
    parts = [*differences, *rounding_shares.marks(actual, differences[2], dtype)]
    by_label: dict[str, Error] = {}
    for where in slices:
        by_label |= _errors_along(where, parts)
    return by_label


def _errors_along(where: Slices, parts: Sequence[Tensor]) -> dict[str, Error]:
    """Relative errors of the whole tensor and of its slices along one axis."""
    length = parts[0].shape[where.axis]
    usable, wrong, size, *marks = (part.transpose(0, where.axis).reshape(length, -1) for part in parts)
    squared = [torch.linalg.vector_norm(part, dim=1).square_() for part in (wrong, size)]
    counts = [mark.sum(1, dtype=torch.int32) for mark in (usable, *marks)]
    by_row = torch.stack([wrong.amax(1), size.amax(1), *squared, *counts])
    rows = by_row.cpu().numpy()  # one transfer: what is left to do is little
    found, least_rms, least_max = {}, 0.0, 0.0
    for label, (start, stop) in where.parts.items():
        wrong_max, largest = rows[:2, start:stop].max(axis=1).tolist()
        wrong_squares, squares, count, *counts = rows[2:, start:stop].sum(axis=1).tolist()
        if not count:
            continue
        rms_scale, max_scale = max(math.sqrt(squares / count), least_rms), max(largest, least_max)
        rms, maximum = _ratio(math.sqrt(wrong_squares / count), rms_scale), _ratio(wrong_max, max_scale)
        found[label] = Error(rms, maximum, int(count), rounding_shares.of_counts(*counts))
        if not label:
            least_rms, least_max = where.least_scale * rms_scale, where.least_scale * max_scale
    return found


def _differences(actual: Array, reference: Array, valid: Mask | None, subnormal: float) -> tuple[Mask, Array, Array]:
    """Mask of finite `valid` elements, and the sizes of error and reference there, 0 elsewhere.

    Works in place where it can: new memory takes longer than the arithmetic.
    """
    wrong, size = actual.abs(), reference.abs()
    usable = (wrong < math.inf) & (size < math.inf)
    if valid is not None:
        usable &= valid
    torch.sub(actual, reference, out=wrong).abs_().sub_(subnormal).clamp_min_(0.0)
    return usable, wrong.masked_fill_(~usable, 0.0), size.masked_fill_(~usable, 0.0)


def _ratio(error: float, scale: float) -> float:
    return error / scale if scale else (0.0 if error == 0 else math.inf)


class Measures(NamedTuple):
    """The measures by which a slice is judged, or the largest of each that passes."""

    rms: float
    maximum: float
    differing: float
    bias: float


_NAMES = (
    "rms relative error", "maximum relative error", "share of elements that differ from the rounded reference",
    "net share of elements on one side of the rounded reference, as seen from zero,",
)  # fmt: skip


def limits(rule: TensorRule, yardstick: Error, error: Error) -> Measures:
    """The largest measures of a slice with such an error, of whose elements only the numbers matter, that pass."""
    eps = rule.eps
    summed = SUM_FLOOR * min(eps, torch.finfo(torch.float32).eps) * rule.terms**0.5
    cancelled = summed * (1 + FEW_SUMS / error.count)
    rms = RMS_FACTOR * yardstick.rms + RMS_FLOOR * eps / error.count**0.5 + cancelled
    maximum = MAX_FACTOR * yardstick.maximum + MAX_FLOOR * eps + cancelled
    if yardstick.rms > UNSTABLE * eps or error.shares.counted < rule.least_shared:
        return Measures(rms, maximum, math.inf, math.inf)
    shares = rounding_shares.limits(yardstick.shares, error.shares.counted, rule.independent, summed / eps)
    return Measures(rms, maximum, *shares)


def measures(error: Error) -> Measures:
    return Measures(error.rms, error.maximum, error.shares.differing, error.shares.bias)


def check_tensor(
    rule: TensorRule, actual: Tensor | None, reference: Array, yardstick: Mapping[str, Error], valid: Mask | None = None
) -> TensorCheck:
    """The verdict on `actual`. valid: where elements count; elsewhere they must be exactly 0 (padding, pruned weights).

    None, which autograd returns of what no result depends on, stands for a gradient of zeros.
    """
    tensor = rule.tensor
    if actual is None and tensor.startswith("grad") and not reference.any():
        return TensorCheck(tensor, "uninformative", message=f"{tensor}: the reference's is zero, and there is none")
    if problem := form_problem(actual, tuple(reference.shape), rule.dtype, rule.device):
        return failed(tensor, problem)
    assert actual is not None
    values = to_float64(actual, reference.device)
    whole = limits(rule, yardstick.get("", NO_ERROR), Error(0.0, 0.0, max(1, reference.numel()))).maximum
    if problem := non_finite_problem(rule, values, reference, whole) or zero_problem(values, valid):
        return failed(tensor, problem)
    if reason := _uninformative(rule, reference, valid, yardstick):
        return TensorCheck(tensor, "uninformative", message=f"{tensor}: {reason}")
    found = errors(values, reference, rule.slices, valid, rule.subnormal, rule.dtype)
    share, label, position = max(
        (measure / most, label, position)
        for label, error in found.items()
        for allowed in [limits(rule, yardstick.get(label, NO_ERROR), error)]
        for position, (measure, most) in enumerate(zip(measures(error), allowed, strict=True))
    )
    message = ""
    if not share <= 1:
        index = _worst_place(_differences(values, reference, valid, rule.subnormal)[1], rule.slices, label)
        message = (
            f"{failure_text(rule, label, found[label], yardstick.get(label), position)}; "
            f"worst at {list(index)}: expected {reference[index].item():.9g}, got {values[index].item():.9g}"
        )
    return TensorCheck(
        tensor, "failed" if message else "passed", found[""].rms, found[""].maximum, share, label or "whole", message
    )


def _uninformative(rule: TensorRule, reference: Array, valid: Mask | None, yardstick: Mapping[str, Error]) -> str:
    if not reference.numel():
        return "the reference has no element"
    size, finfo = reference.abs(), torch.finfo(rule.dtype)
    usable = size < math.inf if valid is None else (size < math.inf) & valid
    largest = size.masked_fill_(~usable, -1.0).max().item()
    if largest < 0:
        return "the reference has no finite element to compare"
    if largest < (rule.vanished or VANISHED * max(finfo.smallest_normal, torch.finfo(torch.float32).smallest_normal)):
        return f"vanished: the reference's largest element is {largest:.2g}"
    chaos = CHAOS * rule.eps * rule.depth**0.5
    if "" not in yardstick or yardstick[""].rms > chaos:
        return "chaos: a plain loop in the same precision is itself too far from the reference"
    return ""


def _worst_place(wrong: Array, slices: Sequence[Slices], label: str) -> tuple[int, ...]:
    """The first place of a slice's largest error, in the whole tensor."""
    where = next(one for one in slices if label in one.parts)
    start, stop = where.parts[label]
    part = wrong.narrow(where.axis, start, stop - start)
    index = [int(i) for i in torch.unravel_index(part.argmax(), part.shape)]
    index[where.axis] += start
    return tuple(index)


def failure_text(rule: TensorRule, label: str, error: Error, yard: Error | None, measure: int) -> str:
    yard = yard or NO_ERROR
    allowed = limits(rule, yard, error)[measure]
    position = f"{rule.tensor} ({label})" if label else rule.tensor
    return (
        f"{position}: {_NAMES[measure]} {measures(error)[measure]:.3g} is over its limit {allowed:.3g} "
        f"(the yardstick's own: {measures(yard)[measure]:.3g})"
    )


def form_problem(actual: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> str:
    """Describes what is wrong with the type, shape, dtype or device of `actual`; empty if nothing is."""
    expected = f"expected a tensor of shape {list(shape)}, {str(dtype).removeprefix('torch.')}, on {device}"
    if not isinstance(actual, Tensor):
        return f"{expected}; got {'nothing' if actual is None else type(actual).__name__}"
    got = f"shape {list(actual.shape)}, {str(actual.dtype).removeprefix('torch.')}, on {actual.device}"
    same = tuple(actual.shape) == shape and actual.dtype == dtype and actual.device.type == torch.device(device).type
    return "" if same else f"{expected}; got {got}"


def non_finite_problem(rule: TensorRule, actual: Tensor, reference: Tensor, allowed: float) -> str:
    """NaN and infinities must stand where the reference, rounded to the dtype, has them, and be of the same kind.

    Of contents whose infinities leave a result undefined, NaN in the reference stands for any value. Where an error of
    `allowed`, relative to the reference's largest element, takes it over the edge, both sides are right.
    """
    largest = torch.finfo(rule.dtype).max
    if _largest(actual) < math.inf and _largest(reference) <= largest:
        return ""
    slack = max(allowed * _largest(reference[reference.isfinite()]), 0.01 * largest)
    places = (~(actual.isfinite() & (reference.abs() <= largest))).nonzero()
    got, wanted = actual[places.unbind(1)], reference[places.unbind(1)]
    edge = ((wanted.abs() - largest).abs() < slack) & (got.sign() == wanted.sign())
    rounded = torch.where(wanted.abs() > largest, wanted.sign() * math.inf, wanted)
    same = (got.isfinite() & rounded.isfinite()) | (got == rounded) | (got.isnan() & rounded.isnan())
    if rule.is_undefined:
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
    values = actual[places.unbind(1)]
    worst = values.abs().nan_to_num(math.inf).argmax()
    return (
        f"at {places[worst].tolist()} expected exactly 0 (padding or a pruned weight), got {values[worst].item():.6g} "
        f"({len(places)} such elements)"
    )
