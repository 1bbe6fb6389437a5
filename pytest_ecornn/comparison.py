"""When two results agree: error measures, the tolerance rule, and what a failure says.

A tensor is judged against the float64 reference, as a whole and slice by slice, by how far the yardstick (a plain loop in
the same precision) itself is from that reference. The rule is stated here once; its constants were fitted on random correct
implementations (docs/notes/tolerance.md, `make tolerance`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pytest_ecornn import cells
from pytest_ecornn.contract import Case

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Index = tuple[Any, ...]

# rms <= RMS_FACTOR * yardstick's + RMS_FLOOR * eps / sqrt(n); maximum <= MAX_FACTOR * yardstick's + MAX_FLOOR * eps.
RMS_FACTOR, RMS_FLOOR = 2.0, 2.0
MAX_FACTOR, MAX_FLOOR = 2.0, 4.0
# A sum of n terms added one after the other in float32 (float64) errs by 0.2 eps * sqrt(n), which the yardstick's blocked sums
# do not show: both limits rise by SUM_FLOOR * eps * sqrt(n), n being `terms`.
SUM_FLOOR = 0.5
# A slice's scale is at least this share of its tensor's: what is smaller is noise of the larger parts.
SLICE_SCALE = 2.0**-10
# Beyond: yardstick's error over CHAOS * eps * sqrt(T), or reference's maximum under VANISHED * smallest normal (of float32 for
# float64, whose yardstick is a float32 loop).
CHAOS, VANISHED = 2.0**10, 2.0**10


@dataclass(frozen=True)
class Error:
    """Relative error of one slice: `rms` over the reference's rms, `maximum` over its maximum, and the worst place."""

    rms: float
    maximum: float
    count: int
    index: tuple[int, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The verdict on one tensor. status: passed, failed or uninformative; `share` is the worst error over its limit."""

    tensor: str
    status: str
    rms: float = 0.0
    maximum: float = 0.0
    share: float = 0.0
    slice: str = ""
    message: str = ""


def slices(case: Case, tensor: str, shape: tuple[int, ...]) -> dict[str, Index]:
    """Where each slice of a tensor lies: octaves of time, layers and directions of a state, gates of a weight gradient."""
    if tensor in ("output", "grad x"):
        before = (slice(None),) if case.batch_first else ()
        edges = [0, *(2**k for k in range(case.steps.bit_length()) if 2**k < case.steps), case.steps]
        pairs = list(itertools.pairwise(edges))
        return {f"steps {a}..{b - 1}": (*before, slice(a, b)) for a, b in pairs} if len(pairs) > 1 else {}
    if tensor.startswith(("final", "grad initial")):
        places = [suffix.removeprefix("_") for _, _, suffix in cells.suffixes(case)]
        return {place: (index,) for index, place in enumerate(places)} if len(places) > 1 else {}
    blocks, hidden = shape[0] // case.hidden_size, case.hidden_size
    gates = cells.get(case.cell).gates if blocks == len(cells.get(case.cell).gates) else tuple(map(str, range(blocks)))
    return {f"gate {gate}": (slice(k * hidden, (k + 1) * hidden),) for k, gate in enumerate(gates)} if blocks > 1 else {}


def errors(
    actual: Array, reference: Array, where: Mapping[str, Index], valid: Mask | None, subnormal: float
) -> dict[str, Error]:
    """Relative errors of the whole tensor (under "") and of each slice, over finite elements where `valid` holds."""
    usable = np.isfinite(reference) & np.isfinite(actual)
    if valid is not None:
        usable &= valid
    with np.errstate(invalid="ignore"):
        wrong = np.where(usable, np.maximum(np.abs(actual - reference) - subnormal, 0.0), 0.0)
    size = np.where(usable, np.abs(reference), 0.0)
    whole = _scales(size, usable)
    found = {}
    for label, index in {"": (), **where}.items():
        part, count = wrong[index], int(np.count_nonzero(usable[index]))
        if not count:
            continue
        rms_scale, max_scale = (
            max(a, SLICE_SCALE * b) for a, b in zip(_scales(size[index], usable[index]), whole, strict=True)
        )
        worst = np.unravel_index(int(part.argmax()), part.shape)
        rms = float(np.sqrt(np.sum(part * part) / count))
        found[label] = Error(_ratio(rms, rms_scale), _ratio(float(part[worst]), max_scale), count, _absolute(index, worst))
    return found


def _scales(size: Array, usable: Mask) -> tuple[float, float]:
    count = np.count_nonzero(usable)
    return (float(np.sqrt(np.sum(size * size) / count)), float(size.max())) if count else (0.0, 0.0)


def _ratio(error: float, scale: float) -> float:
    return error / scale if scale else (0.0 if error == 0 else float("inf"))


def _absolute(index: Index, within: tuple[Any, ...]) -> tuple[int, ...]:
    """A place in the tensor from its place within a slice."""
    rest, place = list(within), []
    for part in index:
        place.append(part if isinstance(part, int) else (part.start or 0) + rest.pop(0))
    return tuple(int(i) for i in (*place, *rest))


def terms(case: Case, tensor: str) -> int:
    """How many terms the longest sums on the way to a tensor have: over inputs and states, over gates, over T*B."""
    cell, widest = cells.get(case.cell), case.directions * case.hidden_size if case.layers > 1 else 0
    inputs = max(widest, 0 if case.projected else case.input_size)
    count = inputs + (case.hidden_size if cell.recurrent else 0)
    if tensor.startswith("grad"):
        count += len(cell.gates) * case.hidden_size if count else 0
    return count + (case.steps * case.batch if tensor.startswith(("grad weight", "grad bias")) else 0)


def precision_eps(case: Case) -> float:
    """The unit in the last place of one, of products' operands where they are coarser than the dtype."""
    is_coarser = case.precision == "tf32" and case.dtype == "float32"
    return 2.0**-10 if is_coarser else torch.finfo(getattr(torch, case.dtype)).eps


def limits(case: Case, tensor: str, yardstick: Error, count: int) -> tuple[float, float]:
    """The largest rms and maximum error of a slice of `count` elements that pass."""
    eps = precision_eps(case)
    summed = SUM_FLOOR * min(eps, torch.finfo(torch.float32).eps) * terms(case, tensor) ** 0.5
    rms = RMS_FACTOR * yardstick.rms + RMS_FLOOR * eps / count**0.5 + summed
    return rms, MAX_FACTOR * yardstick.maximum + MAX_FLOOR * eps + summed


def judge(
    case: Case, tensor: str, actual: Tensor | None, reference: Array, yardstick: Mapping[str, Error], valid: Mask | None
) -> Comparison:
    """The verdict on `actual`. valid: where elements count; elsewhere they must be exactly 0 (padding, pruned weights)."""
    dtype = getattr(torch, case.dtype)
    if problem := _form_problem(actual, tuple(reference.shape), dtype, case.device):
        return Comparison(tensor, "failed", share=float("inf"), message=f"{tensor}: {problem}")
    assert actual is not None
    values = to_array(actual)
    whole = limits(case, tensor, yardstick.get("", Error(0.0, 0.0, 1)), reference.size)[1]
    if problem := _non_finite_problem(values, reference, dtype, whole) or _zero_problem(values, valid):
        return Comparison(tensor, "failed", share=float("inf"), message=f"{tensor}: {problem}")
    finfo = torch.finfo(dtype)
    found = errors(values, reference, slices(case, tensor, reference.shape), valid, finfo.smallest_normal * finfo.eps)
    if reason := _uninformative(case, reference, valid, yardstick, finfo):
        return Comparison(tensor, "uninformative", message=f"{tensor}: {reason}")
    share, label, is_maximum = max(
        max((error.rms / allowed[0], label, False), (error.maximum / allowed[1], label, True))
        for label, error in found.items()
        for allowed in [limits(case, tensor, yardstick.get(label, Error(0.0, 0.0, 1)), error.count)]
    )
    message = ""
    if not share <= 1:
        message = _describe(case, tensor, label, found[label], yardstick.get(label), is_maximum, values, reference)
    return Comparison(
        tensor, "failed" if message else "passed", found[""].rms, found[""].maximum, share, label or "whole", message
    )


def to_array(tensor: Tensor) -> Array:
    return tensor.detach().to("cpu", torch.float64).numpy()


def _form_problem(actual: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> str:
    """What is wrong with the kind of thing that came, if anything."""
    expected = f"expected a tensor of shape {list(shape)}, {str(dtype).removeprefix('torch.')}, on {device}"
    if not isinstance(actual, Tensor):
        return f"{expected}; got {'nothing' if actual is None else type(actual).__name__}"
    got = f"shape {list(actual.shape)}, {str(actual.dtype).removeprefix('torch.')}, on {actual.device}"
    same = tuple(actual.shape) == shape and actual.dtype == dtype and actual.device.type == torch.device(device).type
    return "" if same else f"{expected}; got {got}"


def _non_finite_problem(actual: Array, reference: Array, dtype: torch.dtype, allowed: float) -> str:
    """NaN and infinities must stand where the reference, rounded to the dtype, has them, and be of the same kind.

    Where an error of `allowed`, relative to the reference's largest element, takes it over the edge, both sides are right.
    """
    largest = torch.finfo(dtype).max
    with np.errstate(invalid="ignore"):
        slack = max(allowed * float(np.abs(reference[np.isfinite(reference)]).max(initial=0.0)), 0.01 * largest)
        near = np.abs(np.abs(reference) - largest) < slack
        edge = near & (np.sign(actual) == np.sign(reference))
        rounded = np.where(np.abs(reference) > largest, np.copysign(np.inf, reference), reference)
    same = (np.isfinite(actual) & np.isfinite(rounded)) | (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    wrong = ~(same | edge)
    if not wrong.any():
        return ""
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"at {list(index)} expected {rounded[index]:.6g}, got {actual[index]:.6g} ({int(wrong.sum())} such elements)"


def _zero_problem(actual: Array, valid: Mask | None) -> str:
    if valid is None or not (bad := (actual != 0) & ~valid).any():
        return ""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"at {list(index)} expected exactly 0 (padding or a pruned weight), got {actual[index]:.6g}"


def _uninformative(case: Case, reference: Array, valid: Mask | None, yardstick: Mapping[str, Error], finfo: torch.finfo) -> str:
    finite = np.abs(reference[np.isfinite(reference) if valid is None else np.isfinite(reference) & valid])
    if not finite.size:
        return "the reference has no finite element to compare"
    if finite.max() < VANISHED * max(finfo.smallest_normal, torch.finfo(torch.float32).smallest_normal * (finfo.bits == 64)):
        return f"vanished: the reference's largest element is {finite.max():.2g}"
    chaos = CHAOS * precision_eps(case) * case.steps**0.5
    if "" not in yardstick or yardstick[""].rms > chaos:
        return "chaos: a plain loop in the same precision is itself too far from the reference"
    return ""


def _describe(
    case: Case,
    tensor: str,
    label: str,
    error: Error,
    yard: Error | None,
    is_maximum: bool,
    actual: Array,
    reference: Array,
) -> str:
    yard = yard or Error(0.0, 0.0, 1)
    allowed = limits(case, tensor, yard, error.count)[is_maximum]
    got, own = (error.maximum, yard.maximum) if is_maximum else (error.rms, yard.rms)
    place = f"{tensor} ({label})" if label else tensor
    return (
        f"{place}: {'maximum' if is_maximum else 'rms'} relative error {got:.3g} is over its limit {allowed:.3g} "
        f"(the yardstick's own: {own:.3g}); worst at {list(error.index)}: "
        f"expected {reference[error.index]:.9g}, got {actual[error.index]:.9g}"
    )
